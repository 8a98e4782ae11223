"""What schedulers decided and kubelet has not asked for yet: whose turn it is to get which GPU.

Of two equal requests in flight nobody can tell, on some kubelets, which one is asked for. So decisions on equal
requests are a pool: what one of them got instead of its own is taken from the pool, and its own is left to the others.
In the end every GPU has what the schedulers' book says, whoever has it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuagent.domain.decision import Decision
from gpuagent.domain.pods import Owner, Pod

Role = frozenset[str]
"""UUIDs of the GPUs that one container of the pool is to get."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A container with a decision.

    Attributes:
        size: units of its memory, or of the resource it asks for: equal ones are a pool.
        role: UUIDs of the GPUs a scheduler chose for it.
        units: resource to units on each of them.
    """

    owner: Owner
    uid: str
    size: tuple[str, int]
    role: Role
    units: Mapping[str, int]
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Stray:
    """What was given to a container that no scheduler had decided on, because it was taken for another.

    Attributes:
        meant: UID of the pod it was taken for.
        size: as in `Ask`.
        took: UUIDs of the GPUs it got.
    """

    meant: str
    size: tuple[str, int]
    took: Role


def asks_of(pod: Pod, decision: Decision) -> Iterator[Ask]:
    """The containers of a pod that a scheduler decided on."""
    by_container: dict[str, dict[str, Mapping[str, int]]] = defaultdict(dict)
    for (name, resource), gpus in decision.units.items():
        by_container[name][resource] = gpus
    for name, resources in by_container.items():
        first = next(iter(resources))  # memory comes first
        total = sum(resources[first].values())
        each = {resource: next(iter(gpus.values())) for resource, gpus in resources.items()}
        yield Ask(Owner(pod.name, name), pod.uid, (first, total), Role(resources[first]), each, pod.deleting)


def roles_left(
    asks: Iterable[Ask],
    places: Mapping[Owner, Role],
    refused: Collection[str],
    strays: Iterable[Stray],
) -> dict[Owner, Role | None]:
    """Which GPUs each container that has nothing yet is to get; None where somebody else has them for good.

    Args:
        asks: all containers with a decision.
        places: GPUs of those that have their units.
        refused: UIDs of pods that kubelet gives up.
        strays: what went to others in place of these containers.
    """
    pools: dict[tuple[str, int], Counter[Role | None]] = defaultdict(Counter)
    waiting = []
    for ask in asks:
        held = places.get(ask.owner)
        if held == ask.role or (held is None and (ask.deleting or ask.uid in refused)):
            continue
        pools[ask.size][ask.role] += 1
        if held is None:
            waiting.append(ask)
        else:
            pools[ask.size][held] -= 1
    known = {(ask.uid, ask.size) for ask in waiting}
    for stray in strays:
        if (stray.meant, stray.size) in known:
            pools[stray.size][stray.took] -= 1
            pools[stray.size][None] += 1
    left: dict[Owner, Role | None] = {}
    for ask in waiting:
        if pools[ask.size][ask.role] > 0:
            left[ask.owner] = ask.role
            pools[ask.size][ask.role] -= 1
    for ask in waiting:
        if ask.owner not in left:
            pool = pools[ask.size]
            role: Role | None = _first(pool) if any(n > 0 for n in pool.values()) else ask.role
            left[ask.owner] = role
            pool[role] -= 1
    return left


def _first(pool: Counter[Role | None]) -> Role | None:
    """One that is left, the same for the same pool; none of their own where there is another."""
    left = [(sorted(role), role) for role, count in pool.items() if count > 0 and role is not None]
    return min(left)[1] if left else None
