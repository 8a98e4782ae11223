"""Kinds of pods that are not decided ahead for a while, because kube-scheduler refused what was decided for one."""

from collections.abc import Iterable

PAUSE_S = 30.0
"""How long pods of such a kind are not decided ahead."""
MOST_KINDS = 1024
"""Kinds that are kept. Any author of pods may name thousands of controllers."""

Kind = tuple[str, str]
"""Namespace and controller of pods; empty for all pods of the namespace."""


class Pauses:
    """The kinds of pods that pause."""

    def __init__(self) -> None:
        self._until: dict[Kind, float] = {}

    def begin(self, kind: Kind, now: float) -> None:
        """Have pods of a kind pause from now on."""
        # It goes to the end, so that the first ones are over first.
        self._until.pop(kind, None)
        self._until[kind] = now + PAUSE_S
        if len(self._until) > MOST_KINDS:
            first = next(iter(self._until))
            del self._until[first]

    def any(self, kinds: Iterable[Kind], now: float) -> bool:
        """Whether pods of one of the kinds pause."""
        return any(now < self._until.get(kind, now) for kind in kinds)
