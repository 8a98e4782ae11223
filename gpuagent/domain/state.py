"""The whole state of the agent, as one frozen value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Gpu, UnreadableGpu
from gpuagent.domain.gpus.health import GpuHealth
from gpuagent.domain.gpus.link_reports import Wiring
from gpuagent.domain.gpus.topology import Topology
from gpuagent.domain.node_state.device_lists import Draining, Lists
from gpuagent.domain.pods.exchange import picks_itself
from gpuagent.domain.pods.failed_pod import ControllerKey, Round
from gpuagent.domain.pods.holdings import held_otherwise, told
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, Pod, PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.sharing.isolation_layers import Layer, chosen
from gpuagent.domain.sharing.mode import DISABLE_LABEL, PROMISES, Mode, Placement
from gpuagent.domain.sharing.units import UnitId, parse_id

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class State:
    """All facts that the agent has received, and the lists that it advertises. Times are monotonic seconds.

    Attributes:
        gpus: by UUID, every GPU ever read in this run: a lost GPU keeps its identity.
        wiring: by UUID, the connections that each GPU reported in its last read.
        topology: the links between every two of `gpus`.
        health: by UUID, the health of each GPU in `gpus`.
        early: by UUID, the health of GPUs that were not read yet, so that the first list includes it.
        untied_xids: how often the driver reported each XID without a GPU of this node.
        fence: the content of the operator's file when it was last valid.
        mode: the mode in force; the target while a switch is in progress.
        mode_known: False until the label was read, if neither a flag nor an earlier run sets the mode.
        holdings: kubelet's allocations; None before the first read, and until then every resource is at zero.
        holdings_at: when the call that read them began.
        checkpoint: kubelet's checkpoint as of the same moment.
        exchanged: ids in kubelet's allocations to the units in their place, for kubelets that do not ask which ids to
            take. Both `holdings` and `checkpoint` have the units.
        registration_problems: resource name to why kubelet does not follow its list.
        connected: resources whose list kubelet follows now.
        rounds: by controller, its last round of deletions of failed pods.
        deleted: cause of failure to the number of failed pods deleted in this run.
        lists: the devices that the agent advertises now.
        draining: units that leave the lists.
        layers: isolation driver's name to its reported state, best first.
        bound: mode to the isolation driver of its running containers, which they keep if another driver appears.
        former_units: pods with units of another size than the current one, in words.
        unheard: isolation drivers that have not reported their state yet.
        unaudited: UUIDs of GPUs that another mode or another plugin may have advertised until `cleared_at`. Kubelet's
            allocations have not been read since.
    """

    policy: Policy
    mode: Mode = Mode.DEFAULT
    mode_known: bool = True
    placement: Placement = Placement.BINPACK
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    wiring: Mapping[str, Wiring] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    unreadable: tuple[UnreadableGpu, ...] = ()
    health: Mapping[str, GpuHealth] = field(default_factory=dict)
    early: Mapping[str, GpuHealth] = field(default_factory=dict)
    untied_xids: Mapping[int, int] = field(default_factory=dict)
    fence: Fence = field(default_factory=Fence)
    fence_problem: str | None = None
    driver_version: str = ""
    device_nodes: frozenset[str] = frozenset()
    driver_problem: str | None = "not read yet"
    node: Mapping[str, Any] | None = None
    label: str | None = None
    label_problem: str | None = None
    placement_problem: str | None = None
    node_problem: str | None = None
    pods_problem: str | None = None
    reports_problem: str | None = None
    annotations_problem: str | None = None
    mode_unsaved: str | None = None
    pods: tuple[Pod, ...] = ()
    pods_known: bool = False
    holdings: tuple[Holding, ...] | None = None
    holdings_at: float = float("-inf")
    checkpoint: tuple[CheckpointEntry, ...] = ()
    exchanged: Mapping[str, str] = field(default_factory=dict)
    registration_problems: Mapping[str, str] = field(default_factory=dict)
    connected: frozenset[str] = frozenset()
    rounds: Mapping[ControllerKey, Round] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    deletions_problem: str | None = None
    holdings_problem: str | None = None
    lists: Lists = field(default_factory=dict)
    draining: tuple[Draining, ...] = ()
    in_flight: int = 0
    last_allocate_end: float = float("-inf")
    layers: Mapping[str, Layer] = field(default_factory=dict)
    bound: Mapping[Mode, str] = field(default_factory=dict)
    former_units: tuple[str, ...] = ()
    unheard: frozenset[str] = frozenset()
    unaudited: frozenset[str] = frozenset()
    cleared_at: float = float("-inf")

    @cached_property
    def gpus_by_index(self) -> list[Gpu]:
        """In NVML's order."""
        return sorted(self.gpus.values(), key=lambda gpu: gpu.index)

    @cached_property
    def faults(self) -> dict[str, str]:
        """GPU UUID to why it is unhealthy."""
        return {uuid: case.cause for uuid, case in self.health.items() if case.cause is not None}

    @property
    def layer(self) -> Layer:
        """The isolation driver for the mode in force."""
        return self.layer_of(self.mode)

    def layer_of(self, mode: Mode) -> Layer:
        """The isolation driver for `mode`: the one its running containers have, if there are any."""
        return chosen(mode, self.policy.isolation, self.layers, self.bound)

    @cached_property
    def fenced(self) -> dict[str, str]:
        """GPU UUID to the entry of the fence file that names it, in words."""
        named = {uuid: self.fence.entry_of(gpu) for uuid, gpu in self.gpus.items()}
        return {uuid: f"fenced by file ({entry})" for uuid, entry in named.items() if entry}

    @cached_property
    def unhealthy(self) -> dict[str, str]:
        """By UUID, why the agent shows a GPU as unhealthy: it has a fault, is fenced, or has not answered yet."""
        whys = (self.faults, self.fenced, self._unasked)
        return {uuid: "; ".join(why[uuid] for why in whys if uuid in why) for uuid in whys[0] | whys[1] | whys[2]}

    @cached_property
    def _unasked(self) -> dict[str, str]:
        waiting = (uuid for uuid, case in self.health.items() if case.awaited_until is not None and not case.cause)
        return dict.fromkeys(waiting, "it was not asked yet: the driver takes its time")

    @cached_property
    def held_units(self) -> list[UnitId]:
        """One unit of each holding of this agent's resources, also on a GPU that was never read."""
        units = (parse_id(next(iter(holding.ids), "")) for holding in self.living_holdings)
        return [unit for unit in units if unit]

    @cached_property
    def held_under(self) -> set[tuple[Mode, str]]:
        """Mode and GPU UUID of every unit of this agent that a container holds by kubelet's allocations."""
        by_key = {gpu.key: gpu.uuid for gpu in self.gpus.values()}
        return {(unit.kind.mode, by_key[unit.gpu_key]) for unit in self.held_units if unit.gpu_key in by_key}

    @cached_property
    def verified(self) -> frozenset[str]:
        """Resources whose containers PreStartContainer verifies: those of the mode, and of units still held."""
        modes = {self.mode, *(unit.kind.mode for unit in self.held_units)}
        return frozenset(name for mode in modes if PROMISES[mode] for name in self.policy.resources.sold(mode))

    @cached_property
    def kubelet(self) -> str:
        """Kubelet's version as the Node object shows it (``v1.36.3``); empty if it is not available."""
        info = ((self.node or {}).get("status") or {}).get("nodeInfo") or {}
        return str(info.get("kubeletVersion") or "")

    @cached_property
    def living_uids(self) -> set[str]:
        """UIDs of the pods that have not ended."""
        return {pod.uid for pod in self.pods if not pod.ended}

    @cached_property
    def counts_only(self) -> bool:
        """Whether kubelet picks ids itself, so that its ids are counts and do not identify a GPU."""
        return bool(self.exchanged) or picks_itself(self.kubelet, asked=True)

    @property
    def pods_watched(self) -> bool:
        """The agent follows the pods' changes now."""
        return self.pods_known and self.pods_problem is None

    @property
    def isolation_disabled(self) -> bool:
        """Whether the node's label makes cGPU run containers without isolation."""
        labels = ((self.node or {}).get("metadata") or {}).get("labels") or {}
        return labels.get(DISABLE_LABEL) == "true"

    @cached_property
    def held_otherwise(self) -> dict[str, list[Holding]]:
        """GPU UUID to the holdings that block its resources in the mode in force."""
        exclusive = self.policy.resources.exclusive is not None
        return held_otherwise(self.living_holdings, self.gpus, self.mode, exclusive=exclusive)

    @cached_property
    def living_holdings(self) -> tuple[Holding, ...]:
        """Holdings of pods that have not ended (kubelet up to 1.33 lists those too), init containers' included."""
        # While the watch is down, the agent does not see a new pod of the same name.
        ended = set() if self.pods_problem else {pod.name for pod in self.pods if pod.ended}
        pods = {pod.name: pod for pod in self.pods}
        listed = tuple(told(h, pods.get(h.owner.pod)) for h in self.holdings or () if h.owner.pod not in ended)
        listed = tuple(self._of_their_uid(listed, pods))
        return (*listed, *self._unlisted(listed))

    def _of_their_uid(self, listed: Iterable[Holding], pods: Mapping[PodName, Pod]) -> Iterator[Holding]:
        """Correct owners by UID: kubelet lists terminating pods by name, and a new pod may have the name already."""
        uids = {(entry.container, entry.resource, entry.ids): entry.pod_uid for entry in self.checkpoint}
        for holding in listed:
            pod = pods.get(holding.owner.pod)
            uid = uids.get((holding.owner.container, holding.resource, holding.ids)) if pod and not pod.static else None
            if pod and uid and uid != pod.uid:
                yield replace(holding, owner=ContainerRef(PodName("", uid), holding.owner.container))
            else:
                yield holding

    def same_book(self, other: "State") -> bool:
        """Whether kubelet's allocations, and the GPUs to interpret them, are those of `other`."""
        return all(getattr(self, part) is getattr(other, part) for part in ("holdings", "checkpoint", "gpus"))

    def _unlisted(self, listed: tuple[Holding, ...]) -> Iterator[Holding]:
        """Holdings that only the checkpoint has: devices of living pods' ordinary init containers."""
        living = {pod.uid: pod.name for pod in self.pods if not pod.ended}
        known = {device_id for holding in listed for device_id in holding.ids}
        for entry in self.checkpoint:
            name = living.get(entry.pod_uid) if self.pods_watched else PodName("", entry.pod_uid)
            if name is not None and (rest := entry.ids - known):
                known |= rest  # the next init container reuses them
                yield Holding(ContainerRef(name, entry.container), entry.resource, rest)


def once(work: Callable[[State], T]) -> Callable[[State], T]:
    """A cached property of the state, for a function of a module that imports this one."""
    name = f"{work.__module__}.{work.__name__}"

    @wraps(work)
    def worked_out(state: State) -> T:
        if name not in vars(state):
            vars(state)[name] = work(state)
        found: T = vars(state)[name]
        return found

    return worked_out
