"""Times as objects of the API carry them."""

import time


def timestamp() -> str:
    """Return now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
