"""Errors for people."""


class UsageError(Exception):
    """A mistake in flags, or no way to a cluster."""
