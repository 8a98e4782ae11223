"""Kinds of pods that are not decided ahead for a while, because kube-scheduler refused what was decided for them."""

from collections.abc import Iterable
from dataclasses import dataclass

PAUSE_S = 30.0
"""How long pods of such a kind are not decided ahead."""
MOST_KINDS = 1024
"""Kinds that are kept. Any author of pods may name thousands of controllers."""

Kind = tuple[str, str]
"""Namespace and controller of pods; the controller is empty for all pods of the namespace."""


@dataclass(slots=True)
class _Refused:
    """A kind of which pods were refused.

    Attributes:
        times: in a row.
        until: monotonic seconds when its pause ends.
    """

    times: int = 0
    until: float = float("-inf")


class Pauses:
    """The kinds of pods that pause."""

    def __init__(self) -> None:
        self._refused: dict[Kind, _Refused] = {}

    def count(self, kind: Kind, now: float, most: int) -> None:
        """Count a refusal. After `most` in a row, and after each further one, pods of the kind pause."""
        # It goes to the end, so that the kind that was refused least recently is forgotten first.
        refused = self._refused.pop(kind, None) or _Refused()
        self._refused[kind] = refused
        refused.times += 1
        if refused.times >= most:
            refused.until = now + PAUSE_S
        if len(self._refused) > MOST_KINDS:
            first = next(iter(self._refused))
            del self._refused[first]

    def end(self, kind: Kind) -> None:
        """Take that kube-scheduler accepted what was decided for a pod of the kind."""
        self._refused.pop(kind, None)

    def any(self, kinds: Iterable[Kind], now: float) -> bool:
        """Whether pods of one of the kinds pause."""
        for kind in kinds:
            refused = self._refused.get(kind)
            if refused is not None and now < refused.until:
                return True
        return False
