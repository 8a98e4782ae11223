"""What docs/security.md says about a stolen token, tied to the tests that try it.

tests/unit/docs/test_stolen_token.py fails if a line of that page has no test, and if a test names a line that is gone.
"""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


def tries(*lines: str) -> Callable[[Test], Test]:
    """The test tries these lines of the page, word for word."""
    assert lines
    return lambda test: test
