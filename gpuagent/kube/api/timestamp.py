"""Times as Kubernetes objects carry them."""

from datetime import UTC, datetime


def rfc3339(epoch_s: float) -> str:
    """Return seconds since the epoch as ``2026-01-31T12:00:00Z``, whole seconds, UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
