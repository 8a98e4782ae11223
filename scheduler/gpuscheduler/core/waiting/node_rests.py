"""Nodes that refused a pod. Pods of its owner pass over them for a while, which is longer after each refusal."""

from dataclasses import dataclass

from gpuscheduler.core.pod_facts import PodFacts

REST_FIRST_S, REST_LIMIT_S = 30.0, 600.0
"""How long the scheduler passes over a node that refused a pod, for pods of its owner. Each refusal doubles it."""


@dataclass(slots=True)
class _Rest:
    """A node that a pod's owner passes over."""

    until: float
    length_s: float
    ended: bool = False


_Owner = tuple[str, str]
"""Namespace and owner of pods. A tenant may name any owner in the references of its pods."""


class NodeRests:
    """The nodes that owners of pods pass over. A node is forgotten `REST_LIMIT_S` after it may be used again."""

    def __init__(self) -> None:
        self._rests: dict[_Owner, dict[str, _Rest]] = {}

    def refused(self, pod: PodFacts, now: float) -> float:
        """Take that a pod was refused by its node; for how many seconds its owner passes over the node."""
        of_owner = self._rests.setdefault(_owner(pod), {})
        former = of_owner.get(pod.node)
        length_s = min(former.length_s * 2, REST_LIMIT_S) if former else REST_FIRST_S
        of_owner[pod.node] = _Rest(now + length_s, length_s)
        return length_s

    def of(self, pod: PodFacts, now: float) -> frozenset[str]:
        """Names of the nodes that the pod's owner passes over."""
        of_owner = self._rests.get(_owner(pod), {})
        return frozenset(name for name, rest in of_owner.items() if now < rest.until)

    def node_changed(self, name: str) -> None:
        """Let everybody use a node again, as the reason of a refusal may be gone."""
        for of_owner in self._rests.values():
            of_owner.pop(name, None)

    def end(self, now: float) -> int:
        """End those that are over; how many have ended since the last call."""
        ended = 0
        for owner, of_owner in list(self._rests.items()):
            for rest in of_owner.values():
                if rest.until <= now and not rest.ended:
                    rest.ended = True
                    ended += 1
            kept = {name: rest for name, rest in of_owner.items() if now < rest.until + REST_LIMIT_S}
            self._rests[owner] = kept
            if not kept:
                del self._rests[owner]
        return ended

    def next_end(self) -> float | None:
        """When the next one ends; None without any."""
        rests = (rest for of_owner in self._rests.values() for rest in of_owner.values())
        return min((rest.until for rest in rests if not rest.ended), default=None)


def _owner(pod: PodFacts) -> _Owner:
    return pod.name.namespace, pod.owner
