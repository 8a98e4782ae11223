"""Short words for GPUs, pods, holdings and states, so that a test says only what it is about."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.gpus.gpu import Gpu, Inventory, UnreadableGpu, key_of
from gpuagent.domain.gpus.link_reports import End, Nvlink, Relation, Wiring
from gpuagent.domain.node_state.device_lists import Advertised
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, Pod, PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, MODE_LABEL, PLACEMENT_LABEL, Isolates, Kind, Mode
from gpuagent.domain.snapshot import Snapshot, ids_of, snapshot
from gpuagent.domain.state import State
from gpuagent.domain.step import step

MEM, CORE, WHOLE = GPU_MEM, GPU_CORE, GPU_WHOLE
EVERYTHING = frozenset(Isolates)


def uuid(index: int) -> str:
    """They begin alike, as those of NVIDIA's own C mock of NVML do."""
    return f"GPU-000000a0-0000-0000-0000-{index:012x}"


def key(index: int) -> str:
    return key_of(uuid(index))


def gpu(n: int, gib: int = 16, **changes: Any) -> Gpu:
    values: dict[str, Any] = {
        "uuid": uuid(n),
        "index": n,
        "minor": n,
        "pci_bus_id": f"00000000:{n + 1:02X}:00.0",
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": gib * 1024,
    }
    return Gpu(**{**values, **changes})


def nodes(count: int) -> frozenset[str]:
    return frozenset({*(f"/dev/nvidia{n}" for n in range(count)), "/dev/nvidiactl", "/dev/nvidia-uvm"})


def box(count: int = 2, gib: int = 16) -> tuple[Gpu, ...]:
    return tuple(gpu(index, gib) for index in range(count))


UNWIRED = Wiring(relations={f"00000000:{n + 1:02X}:00.0": Relation.SYS for n in range(16)}, pcie=(3, 16))
"""A GPU without NVLinks, far from all others."""


def wired(nvlinks: Mapping[tuple[int, int], int], count: int = 8) -> dict[str, Wiring]:
    """What `gpu(0)` to `gpu(count - 1)` report when these pairs have so many NVLinks 2.0 between them."""

    def links(n: int) -> tuple[Nvlink, ...]:
        others = [(sum(pair) - n, many) for pair, many in nvlinks.items() if n in pair]
        return tuple(Nvlink("2.0", End.GPU, gpu(other).pci_bus_id) for other, many in others for _ in range(many))

    return {uuid(n): replace(UNWIRED, nvlinks=links(n)) for n in range(count)}


DGX1V = wired(
    dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2)
    | dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1)
)
"""The hybrid cube mesh."""


def unit_ids(index: int, kind: Kind, *numbers: int) -> frozenset[str]:
    return frozenset(f"{key(index)}-{kind.value}-{n}" for n in numbers)


def owner(pod: str, container: str = "main") -> ContainerRef:
    return ContainerRef(PodName("ml", pod), container)


def holding(pod: str, ids: Iterable[str], resource: str = MEM, container: str = "main") -> Holding:
    return Holding(owner(pod, container), resource, frozenset(ids))


def pod_json(
    name: str,
    *containers: Mapping[str, int],
    init: tuple[Mapping[str, int], ...] = (),
    sidecar: tuple[Mapping[str, int], ...] = (),
    labels: Mapping[str, str] | None = None,
    phase: str = "Pending",
    created: str = "2026-01-01T00:00:00Z",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    def one(title: str, limits: Mapping[str, int], **more: str) -> dict[str, Any]:
        return {"name": title, "resources": {"limits": {k: str(v) for k, v in limits.items()}}, **more}

    app = [one("main" if n == 0 else f"main-{n}", limits) for n, limits in enumerate(containers)]
    first = [one(f"init-{n}", limits) for n, limits in enumerate(init)]
    always = [one(f"side-{n}", limits, restartPolicy="Always") for n, limits in enumerate(sidecar)]
    return {
        "metadata": {
            "namespace": "ml",
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"initContainers": [*first, *always], "containers": app},
        "status": {"phase": phase},
    }


def node_json(mode: str | None = None, placement: str | None = None) -> dict[str, Any]:
    labels = {MODE_LABEL: mode, PLACEMENT_LABEL: placement}
    return {"metadata": {"name": "n", "labels": {name: text for name, text in labels.items() if text is not None}}}


class NodeUnderTest:
    """A state that lives: `tell` one thing after the other, each `after` seconds later; look at what comes of it."""

    def __init__(
        self,
        mode: Mode = Mode.DEFAULT,
        gpus: Iterable[Gpu] = (),
        *,
        isolates: frozenset[Isolates] = EVERYTHING,
        **policy: Any,
    ) -> None:
        settings = Policy(**{"core_step": 1, "core_mem_both": False, **policy})
        layers = {"all": Layer(driver="all", installed=bool(isolates), isolates=isolates, modes=frozenset(Mode))}
        self.state = State(
            policy=settings,
            node=Node(mode=mode),
            advertised=Advertised(lists=dict.fromkeys(settings.resources.names, ())),
            isolation=IsolationDrivers(layers=layers),
        )
        self.now = 0.0
        self.announcements: list[Announcement] = []
        if gpus := tuple(gpus):
            self.inventory(*gpus)
            self.holdings()

    def send(self, event: ev.Event) -> "NodeUnderTest":
        self.state, announcements = step(self.state, event)
        self.announcements += announcements
        return self

    def wait(self, seconds: float) -> "NodeUnderTest":
        """Let time pass without anything happening; the loop's tick at its end."""
        self.now += seconds
        return self.send(ev.Tick(self.now))

    def inventory(
        self, *gpus: Gpu, unreadable: tuple[UnreadableGpu, ...] = (), wiring: Mapping[str, Wiring] | None = None
    ) -> "NodeUnderTest":
        seen = Inventory(gpus, unreadable, "580.1", nodes(8), {gpu.uuid: UNWIRED for gpu in gpus} | dict(wiring or {}))
        return self.send(ev.InventoryRead(seen, self.now))

    def label(self, mode: str | None, placement: str | None = None) -> "NodeUnderTest":
        return self.send(ev.NodeSeen(node_json(mode, placement), self.now))

    def holdings(self, *held: Holding, began: float | None = None) -> "NodeUnderTest":
        return self.send(ev.HoldingsRead(held, self.now if began is None else began, self.now))

    def pods(self, *pods: Mapping[str, Any], together: bool = False) -> "NodeUnderTest":
        """As the watch does: a pod that is as it was is the one that it was. `together`: one list has shown them."""
        known = {(pod.uid, pod.version): pod for pod in self.state.pods.seen if pod.version}
        seen = tuple(known.get((pod.uid, pod.version), pod) for pod in map(parse_pod, pods))
        unordered = frozenset(pod.uid for pod in seen) if together else frozenset[str]()
        return self.send(ev.PodsSeen(seen, self.now, unordered=unordered))

    def allocate_begins(self) -> "NodeUnderTest":
        return self.send(ev.AllocatesSeen(self.state.allocates.in_flight + 1, self.state.allocates.last_end, self.now))

    def allocate_ends(self) -> "NodeUnderTest":
        return self.send(ev.AllocatesSeen(self.state.allocates.in_flight - 1, self.now, self.now))

    def isolation(self, **changes: Any) -> "NodeUnderTest":
        """The isolation drivers are as `changes` say, and the lists do not follow yet."""
        self.state = replace(self.state, isolation=replace(self.state.isolation, **changes))
        return self

    @property
    def snap(self) -> Snapshot:
        return snapshot(self.state)

    def ids(self, resource: str) -> set[str]:
        """Every id on the list of `resource`, healthy or not."""
        return {device_id for block in self.state.advertised.lists[resource] for device_id in ids_of(block)}

    def offer(self, resource: str) -> dict[int, int]:
        """GPU index to healthy units of `resource`."""
        return {b.gpu.index: b.count for b in self.state.advertised.lists[resource] if b.healthy}

    def fenced(self, resource: str) -> dict[int, int]:
        """GPU index to unhealthy units of `resource`."""
        return {b.gpu.index: b.count for b in self.state.advertised.lists[resource] if not b.healthy}

    def announced(self) -> list[str]:
        """Reasons announced since the last look."""
        reasons = [announcement.reason for announcement in self.announcements]
        self.announcements.clear()
        return reasons


def in_force(mode: Mode, gpus: Iterable[Gpu] | None = None, **policy: Any) -> NodeUnderTest:
    """A node in a settled mode, two GPUs of 16 GiB unless said otherwise."""
    node = NodeUnderTest(mode, box() if gpus is None else gpus, **policy)
    # The API server keeps all fields of slices.
    return node.send(ev.SliceProbed({}, {}, node.now))


def state_of(
    mode: Mode = Mode.SHARE,
    gpus: Iterable[Gpu] | None = None,
    *more: ev.Event,
    pods: tuple[Pod, ...] | None = (),
    holdings: tuple[Holding, ...] | None = (),
    checkpoint: tuple[CheckpointEntry, ...] = (),
) -> State:
    """The state after these facts, on a node without isolation; None for what was not read."""
    node = NodeUnderTest(mode, isolates=frozenset()).inventory(*(box() if gpus is None else gpus))
    if pods is not None:
        node.send(ev.PodsSeen(pods, node.now))
    if holdings is not None:
        node.send(ev.HoldingsRead(holdings, node.now, node.now, checkpoint))
    for event in more:
        node.send(event)
    return node.state
