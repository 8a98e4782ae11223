"""How a decision of the product is taken away in the running process."""

from typing import Any


def put(owner: Any, name: str, value: Any) -> None:  # noqa: ANN401 (any module or class)
    """Put `value` in the place of an attribute. Raises AttributeError: the product has no such attribute any more."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: the fault has to be put back in another place")
    setattr(owner, name, value)
