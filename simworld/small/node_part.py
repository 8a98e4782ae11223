"""One node as a part of a small world: a kubelet that admits one pod after another, and the agent's core."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Self

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.gpus.gpu import Gpu, Inventory, key_of
from gpuagent.domain.node_state.device_lists import Advertised
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, PodName
from gpuagent.domain.policy import Policy
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy, Grant
from gpuagent.domain.sharing.isolation_layers import NONE
from gpuagent.domain.sharing.mode import GPU_MEM, Mode
from gpuagent.domain.snapshot import Snapshot, ids_of, snapshot
from gpuagent.domain.state import State
from gpuagent.domain.step import step
from gpuagent.isolation.none import NoIsolation
from gpuagent.kube.watch.node_watch import NodePods
from simworld.small.canonical import EARLIEST
from simworld.small.scheduler_part import TURN_S, News, Stored

CONTAINER = "main"
MIB = 1024
POLICY = Policy()


@dataclass(frozen=True, slots=True)
class Failed:
    """Kubelet has refused a pod.

    Attributes:
        reason: of the agent's refusal; empty if kubelet itself had no device for the pod.
        message: for people.
    """

    reason: str
    message: str


class NodePart:
    """Kubelet and agent of a node.

    Attributes:
        name: of the Node.
        texts: of `books`, once they are worked out.
        bound: UID to each pod of this node that the API server has.
        to_admit: pods that kubelet has been shown and has yet to admit.
        known: UID to each pod that kubelet has in its list: those that live, and the one in admission.
        held: UID to the device ids of each living container.
        asked: the pod in admission, with the ids that kubelet will allocate; None between two pods.
        agent: the agent's process; None while it is down.
        news: what the agent's watch of pods has not shown it yet.
        reading: kubelet's allocations on their way to the agent.
        saw_scheduler: what the agent has stored for its next run.
    """

    def __init__(self, name: str, gpus: int, units: int) -> None:
        self.name = name
        self.gpus = tuple(_gpu(name, number, units) for number in range(gpus))
        self.bound: dict[str, Stored] = {}
        self.to_admit: deque[str] = deque()
        self.known: dict[str, Stored] = {}
        self.held: dict[str, frozenset[str]] = {}
        self.asked: tuple[str, frozenset[str]] | None = None
        self.agent: AgentPart | None = None
        self.news: deque[News] = deque()
        self.reading: ev.HoldingsRead | None = None
        self.saw_scheduler: bool | None = None
        self.turns = 0
        self.waited_s = 0.0
        self.patient = True
        self.texts: dict[str, str] = {}

    def now(self) -> float:
        return EARLIEST + self.waited_s + self.turns * TURN_S

    def gpu_of(self, device_id: str) -> Gpu:
        """The GPU that a device id names."""
        return next(gpu for gpu in self.gpus if device_id.startswith(gpu.key))

    def free(self) -> dict[int, int]:
        """Minor number of each GPU to its units that no living container has."""
        units = {gpu.minor: gpu.memory_mib // MIB for gpu in self.gpus}
        for ids in self.held.values():
            for device_id in ids:
                units[self.gpu_of(device_id).minor] -= 1
        return units

    # -- kubelet --------------------------------------------------------------------------------------------------

    def ask(self, pod: Stored, *, patient: bool) -> Failed | None:
        """Begin to admit a pod: kubelet asks the agent which devices it should get. Returns why it gets none."""
        self.turns += 1
        self.patient = patient
        uid = pod.json["metadata"]["uid"]
        self.known[uid] = pod
        amount = wanted(pod)
        available = self._available()
        if len(available) < amount:
            del self.known[uid]
            return Failed("", f"{len(available)} devices are there for {amount}")
        assert self.agent is not None
        try:
            ids = self.agent.allocator.prefer(GPU_MEM, available, (), amount)
        except Refusal as refusal:
            del self.known[uid]
            return Failed(str(refusal.reason), refusal.message)
        self.asked = uid, frozenset(ids)
        return None

    def allocate(self, *, patient: bool) -> Failed | Grant:
        """Go on with the pod in admission. Returns what its container gets, or why it gets nothing."""
        assert self.asked is not None
        self.turns += 1
        self.patient = patient
        uid, ids = self.asked
        self.asked = None
        if self.agent is None:
            del self.known[uid]
            return Failed("", "the agent does not answer")
        try:
            grant = self.agent.allocator.allocate(GPU_MEM, ids)
        except Refusal as refusal:
            del self.known[uid]
            return Failed(str(refusal.reason), refusal.message)
        self.held[uid] = ids
        return grant

    def end(self, uid: str) -> None:
        """The pod's containers are gone."""
        self.known.pop(uid, None)
        self.held.pop(uid, None)

    @property
    def healthy(self) -> frozenset[str]:
        """The device ids on the list that kubelet has; none while the agent is down or has not read everything."""
        return frozenset() if self.agent is None else self.agent.healthy()

    def _available(self) -> frozenset[str]:
        return self.healthy.difference(*self.held.values())

    # -- kubelet's pod-resources API ------------------------------------------------------------------------------

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:  # noqa: ARG002 (as the API)
        """As `KubeletAllocations.query`."""
        listed = []
        for uid, pod in self.known.items():
            name = name_of(pod)
            if pods is None or name in pods:
                listed.append((name, self._holdings(uid, name)))
        return listed

    def read(self, timeout_s: float) -> ev.HoldingsRead:  # noqa: ARG002 (as the API)
        """As `KubeletAllocations.read`."""
        holdings: list[Holding] = []
        checkpoint: list[CheckpointEntry] = []
        for uid, ids in self.held.items():
            holdings += self._holdings(uid, name_of(self.known[uid]))
            checkpoint.append(CheckpointEntry(uid, CONTAINER, GPU_MEM, ids))
        return ev.HoldingsRead(tuple(holdings), self.now(), self.now(), tuple(checkpoint))

    def _holdings(self, uid: str, name: PodName) -> tuple[Holding, ...]:
        ids = self.held.get(uid)
        return (Holding(ContainerRef(name, CONTAINER), GPU_MEM, ids),) if ids else ()

    # -- the agent's life ----------------------------------------------------------------------------------------------

    def start_agent(self, node: Stored) -> None:
        """A new process, which has read the driver and its Node, and nothing else yet."""
        self.turns += 1
        agent = AgentPart(self)
        self.agent = agent
        agent.send(ev.NodeSeen(node.json, self.now()))
        devices = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{gpu.minor}" for gpu in self.gpus)})
        agent.send(ev.InventoryRead(Inventory(self.gpus, (), "580", devices), self.now()))

    def crash_agent(self) -> None:
        self.agent = None
        self.news.clear()
        self.reading = None

    @property
    def has_unlisted_pods(self) -> bool:
        """Whether the agent has yet to read the pods of its node for the first time."""
        return self.agent is not None and not self.agent.pods.complete

    def list_pods(self) -> None:
        """The agent reads all pods of its node, and follows them from there on."""
        self.turns += 1
        self._running().list()

    def take_news(self) -> None:
        """The agent's watch shows the next change of a pod."""
        self.turns += 1
        agent = self._running()
        agent.take(self.news.popleft())
        agent.show_pods()

    def begin_reading(self) -> None:
        """The agent reads kubelet's allocations; the answer is on its way."""
        self.turns += 1
        self.reading = self.read(0.0)

    def take_reading(self) -> None:
        self.turns += 1
        reading = self.reading
        assert reading is not None
        self.reading = None
        self._running().send(reading)

    @property
    def differs_from_reading(self) -> bool:
        """Whether a read of kubelet's allocations would tell the agent something."""
        if self.agent is None or self.reading is not None:
            return False
        listed = self.agent.state.holdings.listed
        if listed is None:
            return True
        known = {holding.ids for holding in listed}
        return known != set(self.held.values())

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.waited_s += seconds
        if self.agent is not None:
            self.agent.send(ev.Tick(self.now()))

    def _running(self) -> "AgentPart":
        assert self.agent is not None, "the agent is down"
        return self.agent

    def books(self) -> dict[str, Any]:
        """What kubelet and agent know and have to do, under the node's name."""
        own = (
            self.bound,
            self.to_admit,
            self.known,
            self.held,
            self.asked,
            self.news,
            self.reading,
            self.saw_scheduler,
        )
        return {self.name: own if self.agent is None else (*own, *self.agent.books())}


class AgentPart:
    """The agent's core: its state, its pods, and the allocator that answers kubelet from their snapshot."""

    def __init__(self, node: NodePart) -> None:
        self._node = node
        self.state = State(
            policy=POLICY,
            node=Node(mode=Mode.SHARE, mode_known=True),
            pods=Pods(decided_before=node.saw_scheduler, presumed_decided=bool(node.saw_scheduler)),
            advertised=Advertised(lists=dict.fromkeys(POLICY.resources.names, ())),
        )
        self.snapshot: Snapshot | None = None
        self.pods = NodePods(node.name, _no_post, node.now, 0.0, POLICY.resources.names)
        self.fetched: Callable[[], Collection[Stored]] | None = None
        self.allocator = Allocator(
            clock=node.now,
            kubelet=node,
            isolation={NONE: NoIsolation()},
            strategy=DeviceStrategy.DEVICE_NODES,
            send_event=_no_event,
            fetch=self.fetch,
        )
        # One thread cannot wait: what it waits for comes in the middle of the call, or not at all.
        self.allocator._state._changed = Waiting(self)  # type: ignore[assignment]  # noqa: SLF001
        self.allocator.expect_pods()

    def send(self, event: ev.Event) -> None:
        """As the agent's loop does."""
        running, last_end = self.allocator.in_flight.now()
        seen = ev.AllocatesSeen(running, last_end, self._node.now(), self.allocator.recent_ids())
        counted, _ = step(self.state, seen)
        self.state, _ = step(counted, event)
        self.snapshot = snapshot(self.state, self.snapshot)
        self.allocator.publish(self.snapshot)
        if self.snapshot.schedulers.seen is not None:
            self._node.saw_scheduler = self._node.saw_scheduler or self.snapshot.schedulers.seen

    def take(self, news: News) -> None:
        if news.pod is None:
            former = self.pods.known.get(news.uid)
            if former is not None:
                self.pods.changed("DELETED", former)
        else:
            self.pods.changed("MODIFIED", self.pods.read(news.pod.json))

    def list(self) -> None:
        node = self._node
        node.news.clear()
        self.pods.listed([self.pods.read(pod.json) for pod in node.bound.values()])
        self.show_pods()

    def show_pods(self) -> None:
        self.send(self.pods.seen())

    def healthy(self) -> frozenset[str]:
        """The device ids on the list that kubelet has."""
        ids: set[str] = set()
        for block in self.state.advertised.lists.get(GPU_MEM, ()):
            if block.healthy:
                ids.update(ids_of(block))
        return frozenset(ids)

    def annotations(self) -> dict[str, str]:
        """What the agent writes on its Node."""
        return node_annotations(self.state)

    def fetch(self, pods: Collection[PodName] | None, timeout_s: float) -> frozenset[str] | None:
        """As `Fetch`: the API server answers at once, or not in time."""
        if not self._node.patient or timeout_s <= 0:
            return None
        self.catch_up()
        known = self.pods.known
        if pods is None:
            return frozenset(known)
        return frozenset(uid for uid, pod in known.items() if pod.name in pods)

    def catch_up(self) -> None:
        """Have everything arrive that is on its way from the API server."""
        node = self._node
        if not self.pods.complete:
            self.list()
            return
        if not node.news:
            return
        while node.news:
            self.take(node.news.popleft())
        self.show_pods()

    def books(self) -> tuple[Any, ...]:
        state = self.state
        answering = self.allocator._state  # noqa: SLF001 (all that the allocator keeps)
        return (
            state.pods,
            tuple(self.pods.known),
            sorted(self.pods._read_alone),  # noqa: SLF001
            tuple(self.pods._deleted),  # noqa: SLF001
            sorted(self.pods._listed_together),  # noqa: SLF001
            state.holdings,
            state.advertised,
            state.published_pods,
            state.allocates,
            answering._latest(),  # noqa: SLF001
            answering._answered,  # noqa: SLF001
            answering._half,  # noqa: SLF001
            sorted(answering._begun),  # noqa: SLF001
            tuple(answering._grants),  # noqa: SLF001
            answering._registered_at,  # noqa: SLF001
        )


class Waiting:
    """In the place of the allocator's condition: a patient caller's wait ends when what is on its way has come."""

    def __init__(self, agent: AgentPart) -> None:
        self._agent = agent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is one thread."""

    def notify_all(self) -> None:
        """No thread waits."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:  # noqa: ANN401 (as Python's)
        holds = predicate()
        may_wait = self._agent._node.patient and (timeout is None or timeout > 0)  # noqa: SLF001
        if holds or not may_wait:
            return holds
        self._agent.catch_up()
        return predicate()


def wanted(pod: Stored) -> int:
    """Units that the pod's container asks for."""
    return int(pod.json["spec"]["containers"][0]["resources"]["limits"][GPU_MEM])


def name_of(pod: Stored) -> PodName:
    meta = pod.json["metadata"]
    return PodName(meta["namespace"], meta["name"])


def gpu_keys(node: str, gpus: int) -> Iterator[str]:
    """How the device ids of a node name its GPUs. Their UUIDs have the node's name in them."""
    for number in range(gpus):
        yield key_of(_uuid(node, number))


def _uuid(node: str, number: int) -> str:
    return f"GPU-{node}-{number}"


def _gpu(node: str, number: int, units: int) -> Gpu:
    return Gpu(
        uuid=_uuid(node, number),
        index=number,
        minor=number,
        pci_bus_id=f"00000000:{number + 1:02X}:00.0",
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=units * MIB,
    )


def _no_post(_event: object) -> None:
    """The model shows pods itself."""


def _no_event(_announcement: object) -> None:
    """Events are not looked at."""
