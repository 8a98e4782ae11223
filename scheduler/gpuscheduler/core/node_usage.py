"""The GPUs of one node, and what bound pods and reservations use of them."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuscheduler.core.gpu_request import NOTHING, WHOLE, Amounts, GpuRequest, RequestKind, Used
from gpuscheduler.core.node_facts import NodeFacts

Units = tuple[tuple[Amounts, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Room:
    """What is free on a node.

    Attributes:
        most: the most units of memory and of compute that are free on a GPU, which may be two different ones.
        total: the units that are free on all GPUs together.
        gpus: how many GPUs have free units.
        largest: the units of the GPU that has most.
        unused: positions of the GPUs that a request for whole GPUs may get.
        units: what is free of each GPU, and how many more pods may share it.
    """

    most: Amounts
    total: Amounts
    gpus: int
    largest: Amounts
    unused: tuple[int, ...]
    units: Units


@lru_cache(maxsize=4096)
def _first(units: Units) -> Units:
    """The first value that was equal to this one."""
    return units


class NodeUsage:
    """The free units of each GPU of a node. Numbers may be negative: the API server shows more use than the node has.

    Attributes:
        facts: the node.
        free: free units of each GPU of `facts.gpus.gpus`, by position.
        places: by position, how many more pods may share the GPU.
        cpu_used: cores that the pods of the node ask for.
    """

    def __init__(self, facts: NodeFacts) -> None:
        self.facts = facts
        self.cpu_used = 0.0
        self._uses: dict[str, Used | GpuRequest] = {}
        self._room: Room | None = None
        self._count()

    def refresh(self, facts: NodeFacts) -> None:
        """Take the node as it is now, with the same users."""
        self.facts = facts
        self._count()

    def use(self, uid: str, use: Used | GpuRequest) -> None:
        """Count a pod on these GPUs, in place of those it counted on.

        It counts on every GPU where only its request is known, or the node lacks one of the GPUs that it names.
        """
        self.release(uid)
        self._uses[uid] = use
        self._add(use, 1)

    def release(self, uid: str) -> None:
        """Count a pod no longer; without effect if it is not counted."""
        if (use := self._uses.pop(uid, None)) is not None:
            self._add(use, -1)

    @property
    def users(self) -> Mapping[str, Used | GpuRequest]:
        """UID of each pod that counts, and its use."""
        return self._uses

    def usable(self) -> Iterator[tuple[int, NodeGpu]]:
        """Position and GPU of each that may take another pod."""
        for position, gpu in enumerate(self.facts.gpus.gpus):
            if gpu.usable and self.places[position] > 0:
                yield position, gpu

    def unused(self) -> list[int]:
        """Positions of the GPUs that a request for whole GPUs may get."""
        return list(self.room.unused)

    def has_room(self, used: Used) -> bool:
        """Whether the GPUs have these units free."""
        usable = {gpu.minor: position for position, gpu in self.usable()}
        for minor, amounts in used:
            position = usable.get(minor)
            if position is None or self.facts.gpus.gpus[position].whole is not (amounts == WHOLE):
                return False
            if not (self.is_unused(position) if amounts == WHOLE else amounts.within(self.free[position])):
                return False
        return True

    def still_has(self, used: Used) -> bool:
        """Whether the GPUs have these units, which count already, although the node or other users changed."""
        for minor, amounts in used:
            position = self._positions.get(minor)
            gpu = None if position is None else self.facts.gpus.gpus[position]
            if position is None or gpu is None or not gpu.usable or gpu.whole is not (amounts == WHOLE):
                return False
            if self.places[position] < 0 or not NOTHING.within(self.free[position]):
                return False
        return True

    @property
    def room(self) -> Room:
        """What is free. It is worked out once after a change: thousands of nodes are asked for it at one time."""
        if self._room is None:
            self._room = self._room_now()
        return self._room

    def alike(self) -> Hashable:
        """Equal for nodes with equal GPUs of which as much is free. A request fits on all of them, or on none."""
        return id(self.facts.gpus), id(self.room.units)  # nodes that are alike share both

    def copy(self) -> "NodeUsage":
        """A node of its own with the same users."""
        copy = NodeUsage(self.facts)
        copy.cpu_used = self.cpu_used
        copy.free = list(self.free)
        copy.places = list(self.places)
        copy._uses.update(self._uses)
        return copy

    def is_unused(self, position: int) -> bool:
        """Whether no pod uses the GPU."""
        return self.places[position] == self.facts.gpus.most_pods

    def free_part(self, position: int) -> float:
        """The free part of a GPU, 0 to 1: of memory or of compute, whichever is smaller."""
        gpu, free = self.facts.gpus.gpus[position], self.free[position]
        if gpu.whole:
            return float(self.is_unused(position))
        parts = [left / total for left, total in ((free.memory, gpu.memory), (free.core, gpu.core)) if total]
        return max(min(parts, default=0.0), 0.0)

    def _room_now(self) -> Room:
        usable = list(self.usable())
        on_each = [self.free[position] for position, _ in usable]
        most = NOTHING
        for free in on_each:
            most = most.at_least(free)
        some = [free for free in on_each if free != NOTHING and NOTHING.within(free)]
        return Room(
            most=most,
            total=sum(some, NOTHING),
            gpus=len(some),
            largest=max(some, default=NOTHING),
            unused=tuple(position for position, gpu in usable if gpu.whole and self.is_unused(position)),
            units=_first((tuple(self.free), tuple(self.places))),
        )

    def _count(self) -> None:
        gpus = self.facts.gpus.gpus
        self._positions = {gpu.minor: position for position, gpu in enumerate(gpus)}
        self._room = None
        self.free = [Amounts(gpu.memory, gpu.core) for gpu in gpus]
        self.places = [self.facts.gpus.most_pods] * len(gpus)
        for use in self._uses.values():
            self._add(use, 1)

    def _add(self, use: Used | GpuRequest, sign: int) -> None:
        if isinstance(use, GpuRequest):
            each = WHOLE if use.kind is RequestKind.WHOLE else use.need.over(use.gpus)
            use = tuple((minor, each) for minor in self._positions)
        elif any(minor not in self._positions for minor, _ in use):
            named = [amounts for _, amounts in use]
            most = Amounts(max(one.memory for one in named), max(one.core for one in named))
            use = tuple((minor, WHOLE if WHOLE in named else most) for minor in self._positions)
        for minor, amounts in use:
            self._add_at(self._positions[minor], amounts, sign)

    def _add_at(self, position: int, amounts: Amounts, sign: int) -> None:
        self._room = None
        gpu, most = self.facts.gpus.gpus[position], self.facts.gpus.most_pods
        if amounts == WHOLE:
            amounts, pods = Amounts(gpu.memory, gpu.core), most
        else:
            pods = most if gpu.whole else 1
        free = self.free[position]
        change = Amounts(sign * amounts.memory, sign * amounts.core)
        self.free[position] = free - change
        self.places[position] -= sign * pods
