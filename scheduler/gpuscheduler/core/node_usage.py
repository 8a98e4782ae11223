"""The GPUs of one node, and what bound pods and reservations use of them."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpuagent.domain.scheduling.node_gpus import NodeGpu
from gpuscheduler.core.constraints.resources import MILLI, NO_RESOURCES, Resources
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
        pods_left: by position, how many more pods may share the GPU.
        used: what all pods of the node ask for of its CPU, memory and other resources, with those that are reserved.
    """

    def __init__(self, facts: NodeFacts) -> None:
        self.facts = facts
        self.used: Resources = NO_RESOURCES
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
        use = self._uses.pop(uid, None)
        if use is not None:
            self._add(use, -1)

    @property
    def users(self) -> Mapping[str, Used | GpuRequest]:
        """UID of each pod that counts, and its use."""
        return self._uses

    @property
    def cpu_free(self) -> float:
        """Cores that no pod asks for; negative where pods ask for more than there is."""
        free = self.facts.allocatable.cpu - self.used.cpu
        return free / MILLI

    def usable(self) -> Iterator[tuple[int, NodeGpu]]:
        """Position and GPU of each that may take another pod."""
        for position, gpu in enumerate(self.facts.gpus.gpus):
            if gpu.usable and self.pods_left[position] > 0:
                yield position, gpu

    def unused(self) -> list[int]:
        """Positions of the GPUs that a request for whole GPUs may get."""
        return list(self.room.unused)

    def has_room(self, used: Used) -> bool:
        """Whether the GPUs have these units free."""
        gpus = self.facts.gpus.gpus
        usable = {gpu.minor: position for position, gpu in self.usable()}
        for minor, amounts in used:
            position = usable.get(minor)
            if position is None:
                return False
            is_whole = amounts == WHOLE
            if gpus[position].whole is not is_whole:
                return False
            has_room = self.is_unused(position) if is_whole else amounts.within(self.free[position])
            if not has_room:
                return False
        return True

    def has_in_sum(self, gpus: int, units: Amounts, requests: Resources) -> bool:
        """Whether so many whole GPUs, units of all GPUs together, and other resources are free.

        kube-scheduler counts like this.
        """
        if gpus > len(self.room.unused) or not units.within(self.room.total):
            return False
        return bool(requests.times_in(self.facts.allocatable, self.used, 1))

    def still_has(self, used: Used) -> bool:
        """Whether the GPUs have these units, which count already, although the node or other users changed."""
        for minor, amounts in used:
            position = self._positions.get(minor)
            if position is None:
                return False
            gpu = self.facts.gpus.gpus[position]
            is_whole = amounts == WHOLE
            if not gpu.usable or gpu.whole is not is_whole:
                return False
            is_overused = self.pods_left[position] < 0 or not NOTHING.within(self.free[position])
            if is_overused:
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
        # Nodes that are alike share both values. To compare numbers is faster than to compare the values.
        return id(self.facts.gpus), id(self.room.units)

    def copy(self) -> "NodeUsage":
        """A node of its own with the same users."""
        copy = NodeUsage(self.facts)
        copy.used = self.used
        # Counted already, so the users need not be added one by one.
        copy.free = list(self.free)
        copy.pods_left = list(self.pods_left)
        copy._uses.update(self._uses)
        return copy

    def is_unused(self, position: int) -> bool:
        """Whether no pod uses the GPU."""
        return self.pods_left[position] == self.facts.gpus.most_pods

    def free_part(self, position: int) -> float:
        """The free part of a GPU, 0 to 1: of memory or of compute, whichever is smaller."""
        gpu = self.facts.gpus.gpus[position]
        free = self.free[position]
        if gpu.whole:
            return float(self.is_unused(position))
        part = free.memory / gpu.memory if gpu.memory else 1.0
        if gpu.core:
            part = min(part, free.core / gpu.core)
        has_units = gpu.memory or gpu.core
        return max(part, 0.0) if has_units else 0.0

    def _room_now(self) -> Room:
        most_memory = 0
        most_core = 0
        with_units: list[Amounts] = []
        unused: list[int] = []
        for position, gpu in self.usable():
            free = self.free[position]
            most_memory = max(most_memory, free.memory)
            most_core = max(most_core, free.core)
            has_units = free != NOTHING and NOTHING.within(free)
            if has_units:
                with_units.append(free)
            if gpu.whole and self.is_unused(position):
                unused.append(position)
        total_memory = sum([free.memory for free in with_units])
        total_core = sum([free.core for free in with_units])
        # One value for all nodes that are alike, which `alike` compares by its identity.
        units = _first((tuple(self.free), tuple(self.pods_left)))
        return Room(
            most=Amounts(most_memory, most_core),
            total=Amounts(total_memory, total_core),
            gpus=len(with_units),
            largest=max(with_units, default=NOTHING),
            unused=tuple(unused),
            units=units,
        )

    def _count(self) -> None:
        """Count all users anew."""
        rules = self.facts.gpus
        gpus = rules.gpus
        self._positions = {gpu.minor: position for position, gpu in enumerate(gpus)}
        self._room = None
        self.free = [Amounts(gpu.memory, gpu.core) for gpu in gpus]
        self.pods_left = [rules.most_pods] * len(gpus)
        for use in self._uses.values():
            self._add(use, 1)

    def _add(self, use: Used | GpuRequest, sign: int) -> None:
        """Count a use, or with -1 count it no longer."""
        if isinstance(use, GpuRequest):
            is_whole = use.kind is RequestKind.WHOLE
            each = WHOLE if is_whole else use.need.over(use.gpus)
            self._add_everywhere(each, sign)
            return
        minors = {minor for minor, _ in use}
        if minors <= self._positions.keys():
            for minor, amounts in use:
                position = self._positions[minor]
                self._add_at(position, amounts, sign)
        else:
            # Which GPUs the pod holds is not certain, so any of them may have the most that it holds of one.
            self._add_everywhere(_most(use), sign)

    def _add_everywhere(self, amounts: Amounts, sign: int) -> None:
        for position in self._positions.values():
            self._add_at(position, amounts, sign)

    def _add_at(self, position: int, amounts: Amounts, sign: int) -> None:
        self._room = None
        rules = self.facts.gpus
        gpu = rules.gpus[position]
        is_whole = amounts == WHOLE
        memory = gpu.memory if is_whole else amounts.memory
        core = gpu.core if is_whole else amounts.core
        # Whoever is on a GPU that is given whole keeps all others from it.
        keeps_others_off = is_whole or gpu.whole
        pods = rules.most_pods if keeps_others_off else 1
        free = self.free[position]
        self.free[position] = Amounts(
            free.memory - sign * memory,
            free.core - sign * core,
        )
        self.pods_left[position] -= sign * pods


def _most(used: Used) -> Amounts:
    """The most that a use has of one GPU: all of it, or the most units."""
    named = [amounts for _, amounts in used]
    if WHOLE in named:
        return WHOLE
    return Amounts(
        memory=max(amounts.memory for amounts in named),
        core=max(amounts.core for amounts in named),
    )
