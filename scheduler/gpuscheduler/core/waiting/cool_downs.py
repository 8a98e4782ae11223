"""The cool-downs of nodes that refused a pod: its owner's pods pass over them, for longer after each refusal."""

from dataclasses import dataclass

from gpuscheduler.core.pod_facts import PodFacts

FIRST_COOL_DOWN_S = 30.0
"""How long pods of an owner pass over a node that refused one of them. Each refusal doubles it."""
LONGEST_COOL_DOWN_S = 600.0
"""The longest time that they do."""


@dataclass(slots=True)
class _CoolDown:
    """A node that a pod's owner passes over."""

    until: float
    length_s: float
    ended: bool = False


_Owner = tuple[str, str]
"""Namespace and owner of pods. A tenant may name any owner in the references of its pods."""


class CoolDowns:
    """The nodes that owners of pods pass over. A node is forgotten `LONGEST_COOL_DOWN_S` after it may be used again."""

    def __init__(self) -> None:
        self._cool_downs: dict[_Owner, dict[str, _CoolDown]] = {}

    def refused(self, pod: PodFacts, now: float) -> float:
        """Take that a pod was refused by its node; for how many seconds its owner passes over the node."""
        of_owner = self._cool_downs.setdefault(_owner(pod), {})
        former = of_owner.get(pod.node)
        length_s = FIRST_COOL_DOWN_S
        if former:
            length_s = min(former.length_s * 2, LONGEST_COOL_DOWN_S)
        of_owner[pod.node] = _CoolDown(now + length_s, length_s)
        return length_s

    def of(self, pod: PodFacts, now: float) -> frozenset[str]:
        """Names of the nodes that the pod's owner passes over."""
        of_owner = self._cool_downs.get(_owner(pod), {})
        return frozenset(name for name, cool_down in of_owner.items() if now < cool_down.until)

    def node_changed(self, name: str) -> None:
        """Let everybody use a node again, as the reason of a refusal may be gone."""
        for of_owner in self._cool_downs.values():
            of_owner.pop(name, None)

    def end(self, now: float) -> int:
        """End those that are over; how many have ended since the last call."""
        ended = 0
        for owner, of_owner in list(self._cool_downs.items()):
            for cool_down in of_owner.values():
                if cool_down.until <= now and not cool_down.ended:
                    cool_down.ended = True
                    ended += 1
            # A further refusal soon after one lasts longer, so the last one is kept for a while.
            kept = {}
            for name, cool_down in of_owner.items():
                forget_at = cool_down.until + LONGEST_COOL_DOWN_S
                if now < forget_at:
                    kept[name] = cool_down
            if kept:
                self._cool_downs[owner] = kept
            else:
                del self._cool_downs[owner]
        return ended

    def next_end(self) -> float | None:
        """When the next one ends; None without any."""
        ends: list[float] = []
        for of_owner in self._cool_downs.values():
            ends += [cool_down.until for cool_down in of_owner.values() if not cool_down.ended]
        return min(ends, default=None)


def _owner(pod: PodFacts) -> _Owner:
    return pod.name.namespace, pod.owner
