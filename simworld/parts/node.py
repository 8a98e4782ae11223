"""One node: a kubelet, an agent, GPUs, and files that outlive both."""

import itertools
import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from gpuagent.agent.agent import Agent
from gpuagent.domain.sharing.isolation_layers import LIMITS, NONE
from gpuagent.isolation.interface import Isolation
from gpuagent.isolation.none import NoIsolation
from gpuagent.kubelet.pod_resources import PodResources
from gpuagent.nvml.watch import NvmlWatch
from gpuagent.settings.settings import Settings
from gpuagent.simulation.boxes import Box
from simworld.history import History
from simworld.parts.api_view import ApiView
from simworld.parts.cgroups import NodeCgroups
from simworld.parts.drivers import NodeDriver
from simworld.parts.isolation import SimulatedIsolation
from simworld.parts.limits_helper import LimitsHelper, limits_isolation
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, kernel
from standin.api.objects import Json
from standin.kubelet.devices import Ask
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.pod_workers import Runtime, kubelets_pod
from standin.kubelet.kubelet import Kubelet
from standin.kubelet.pods import Admission, Pod
from standin.kubelet.reporting import StatusReporter

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
FIRST_INSTRUCTION_S = 0.02
"""From the moment at which a container has a cgroup until its program begins; measured with containerd."""


class NodeView:
    """The API server as one process of a node's kubelet uses it."""

    def __init__(self, api: SimulatedApi, node_name: str) -> None:
        self.objects: Any = ApiView(api)
        self.node_name = node_name

    def write_status(self, status: dict[str, Any]) -> Json:
        """Merge into the status of the Node."""
        node: Json = self.objects.patch(("nodes", "", self.node_name), "status", {"status": status}, strategic=True)
        return node


class RecordingRuntime(Runtime):
    """Containers of a node, whose starts and ends go into the history.

    Attributes:
        ends_after: draws the seconds that containers take to end.
        cgroups: of its pods and containers; None on a node whose driver knows no cgroups.
    """

    def __init__(self, cdi_dir: Path, node: str, history: History) -> None:
        super().__init__(cdi_dir)
        self._node = node
        self._history = history
        self.started = self._note_start
        self.ends_after: Callable[[], float] = lambda: 0.0
        self.cgroups: NodeCgroups | None = None

    def _note_start(self, uid: str) -> None:
        for (owner, container), granted in list(self.containers.items()):
            if owner == uid:
                self._history.started(self._node, uid, container, granted)

    def make_pod(self, uid: str) -> None:
        if self.cgroups is not None:
            self.cgroups.make_pod(uid)

    def create(self, uid: str, name: str) -> None:
        if self.cgroups is not None:
            self.cgroups.make_container(uid, name)
            # The runtime has more to do before the container's first instruction.
            kernel().sleep(FIRST_INSTRUCTION_S)

    def container_id(self, uid: str, name: str) -> str:
        return super().container_id(uid, name) if self.cgroups is None else self.cgroups.container_id(uid, name)

    def _remove_pod(self, uid: str) -> None:
        if self.cgroups is not None:
            self.cgroups.remove_pod(uid)

    def end_init(self, uid: str, name: str) -> None:
        super().end_init(uid, name)
        if self.cgroups is not None:
            self.cgroups.remove_container(uid, name)
        self._history.ended_init(self._node, uid, name)

    def lose_containers(self) -> None:
        """A reboot: no container is left, and the folder of CDI specifications is empty."""
        uids = {uid for uid, _ in self.containers} | self.sandboxes
        for uid in sorted(uids):
            super().kill(uid)
            self._remove_pod(uid)
            self._history.ended(self._node, uid)
        for path in self.cdi_dir.glob("*"):
            path.unlink()

    def kill(self, uid: str) -> None:
        seconds = self.ends_after()
        if seconds:
            kernel().sleep(seconds)
        super().kill(uid)
        self._remove_pod(uid)
        self._history.ended(self._node, uid)


class SimulatedKubelet(Kubelet):
    """A kubelet that admits pods again after a restart, as a real one does: with their containers running.

    Attributes:
        admitting: entered for each admission.
        pod_refused: called with the UID of each pod that is refused, and the reason.
        has_disk_pressure: whether it rejects each pod before it asks any plugin, as its eviction manager does then.
    """

    admitting: Callable[[], AbstractContextManager[None]] = nullcontext
    pod_refused: Callable[[str, str], None] = lambda *_: None
    has_disk_pressure: Callable[[], bool] = lambda *_: False

    def admit(self, pod: Pod, *, numa: Collection[int] | None = None) -> Admission:
        with self.admitting():
            admission = self._admit(pod, numa)
        if admission.failed:
            self.pod_refused(pod.uid, admission.failed)
        return admission

    @property
    def last_question(self) -> tuple[str, Ask] | None:
        """The resource of the last question for a preference, and what kubelet offered; None if it asked nothing."""
        return self._admitter.last_question

    def _admit(self, pod: Pod, numa: Collection[int] | None) -> Admission:
        running = {container for uid, container in self.claims.containers() if uid == pod.uid}
        if not running and self.has_disk_pressure():
            self.receive(pod)
            return self._settle(Admission(pod, {}, "The node had condition: [DiskPressure]. ", "Evicted"))
        if not running:
            return super().admit(pod, numa=numa)
        self.receive(pod)
        return self._settle(self._admitter.admit(pod, numa=None, running=running, sources_ready=False))


class SimulatedNode:
    """Its processes may end at any moment and start again.

    Attributes:
        name: of the Node.
        driver: its NVML, with faults.
        runtime: its containers.
        kubelet: the kubelet that runs, or that ran last.
        agent: the agent that runs, or that ran last; None before the first one.
        agent_started_at: when that one was started, in virtual seconds.
        booted_at: when its containers ended because it booted, in virtual seconds; minus infinity if it never did.
        lost: UUID of each GPU that is lost for good to the moment when it was.
        lost_at: the same for each GPU that is lost now, for good or for a while.
        ever_lost: UUIDs of the GPUs that are lost now or were.
        fenced: UUID of each GPU that an operator has fenced to the UIDs of the pods that ran on it at that moment.
        loses_reservations: whether the next kubelet forgets what it reserves if it is asked for a list meanwhile.
        has_disk_pressure: whether its kubelet rejects each pod before it asks any plugin.
        periods: how long its kubelet waits.
        isolates: whether its agents have an isolation driver that works all the time.
        limits: the helper of driver `limits`, which its agents have then; None if they have not.
        isolation: the driver of its agent, if that is `limits`.
        publishes_sets: whether its agents publish sets of linked GPUs.
        clock_wrong_by_s: what its wall clock is ahead.
        disk_s: how long a write to its disk takes at most.
        has_inotify: whether an inotify instance is left on it.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self, name: str, box: Box, version: str, root: Path, api: SimulatedApi, history: History
    ) -> None:
        self.name = name
        self.box = box
        self.version = version
        self._root = root / name
        self._cgroup_root = self._root / "cgroup"
        self.driver = NodeDriver(box, self._cgroup_root)
        self._api = api
        self._view = NodeView(api, name)
        self._history = history
        self._dev = self._root / "dev"
        self._dev.mkdir(parents=True)
        for device in (*CONTROL_NODES, *(f"nvidia{gpu.minor}" for gpu in box.gpus)):
            (self._dev / device).touch()
        self.runtime = RecordingRuntime(self.cdi_dir, name, history)
        self._kubelets = 0
        self._kubelet_process = Process(f"{name} kubelet", host=self, alive=False)
        self._agent_process = Process(f"{name} agent", host=self, alive=False)
        self.kubelet: SimulatedKubelet
        self.agent: Agent | None = None
        self.agent_started_at = -math.inf
        self.booted_at = -math.inf
        self.lost: dict[str, float] = {}
        self._has_one_loop = False
        self.lost_at: dict[str, float] = {}
        self.ever_lost: set[str] = set()
        self.fenced: dict[str, frozenset[str]] = {}
        self.loses_reservations = False
        self.has_disk_pressure = False
        self.periods = Periods()
        self.isolates = False
        self.limits: LimitsHelper | None = None
        self.isolation: Isolation | None = None
        self.publishes_sets = False
        self.clock_wrong_by_s = 0.0
        self.disk_s = 0.0
        self.has_inotify = True

    @property
    def _kubelet_root(self) -> Path:
        return self._root / "k"

    @property
    def cdi_dir(self) -> Path:
        """Where the runtime reads CDI specifications."""
        return self._kubelet_root / "cdi"

    @property
    def records(self) -> Path:
        """The agent's records of prepared claims."""
        return self._root / "state" / "claims"

    @property
    def fence_file(self) -> Path:
        """Where an operator names GPUs that new pods do not get."""
        return self._root / "fence.json"

    def have_limits(self) -> None:
        """Have the helper of driver `limits` beside each agent. The node's box has to have such a driver."""
        self.runtime.cgroups = NodeCgroups(self._cgroup_root)
        self._limits_socket.parent.mkdir()
        self.limits = LimitsHelper(self, self.name, self.driver, self.runtime.cgroups, self._history)

    @property
    def _limits_socket(self) -> Path:
        return self._root / "limits" / "limits.sock"

    @property
    def has_kubelet(self) -> bool:
        return self._kubelet_process.alive

    @property
    def has_agent(self) -> bool:
        return self._agent_process.alive

    def start_kubelet(self) -> None:
        if self._kubelet_process.alive:
            return
        self._kubelets += 1
        self._kubelet_process = Process(f"{self.name} kubelet", host=self)
        kernel().spawn(self._run_kubelet, f"{self.name} kubelet", self._kubelet_process)

    def _run_kubelet(self) -> None:
        self._view = NodeView(self._api, self.name)
        self.kubelet = SimulatedKubelet(
            self._kubelet_root,
            self.version,
            seed=kernel().chance.getrandbits(32),
            api=self._view,
            periods=self.periods,
            runtime=self.runtime,
            every_pod=True,
            double_allocation=self.loses_reservations,
        )
        self.kubelet.admitting = self._admitting
        self.kubelet.pod_refused = partial(self._history.refused, self.name)
        self.kubelet.has_disk_pressure = lambda: self.has_disk_pressure
        self._wait_for_pods()
        # The private names of former processes' sockets are still there.
        self.kubelet._numbers = itertools.count(self._kubelets * 1000)  # noqa: SLF001 (the stand-in's own names)
        self._receive_running()
        self.kubelet.start()
        StatusReporter(self.kubelet, self._view.write_status).start()

    def _receive_running(self) -> None:
        """Have kubelet know the pods that run before it admits another one.

        A real kubelet takes the pods of its first list by age. So it may admit an older pod that waited before it knows
        of a younger one that runs, and gives it the devices of that one. No device plugin can tell, so it is left out.
        """
        for pod in self._view.objects.peek("pods"):
            if pod["metadata"]["uid"] in self.runtime.sandboxes:
                self.kubelet.receive(kubelets_pod(pod))

    def _wait_for_pods(self) -> None:
        """Wait for the API server: a kubelet that has not read its pods ends none, and admits none."""
        while self._api.is_away:
            kernel().sleep(0.1)
        # From now on they are known, also if the server goes away again.
        self._view.objects.peek("pods")

    def use_one_loop(self) -> None:
        """Have kubelet learn nothing of pods while it admits one, from its next admission on.

        So it is with a real one: its only loop waits for the plugin's answers. What was deleted meanwhile counts, and
        what was created is not there yet.
        """
        self._has_one_loop = True

    def _admitting(self) -> AbstractContextManager[None]:
        """What lasts as long as an admission."""
        if not self._has_one_loop:
            return nullcontext()
        held: AbstractContextManager[None] = self._view.objects.pods_held()
        return held

    def run_monitor(self, pause_s: float, seconds: float) -> None:
        """Have another program list kubelet's allocations for so long, with a pause after each list."""
        until = kernel().now + seconds

        def run() -> None:
            while kernel().now < until:
                kernel().sleep(pause_s)
                if self.has_kubelet:
                    client = PodResources(self._kubelet_root / "pod-resources" / "kubelet.sock")
                    client.list()
                    client.close()

        kernel().spawn(run, f"{self.name} monitor", Process(f"{self.name} monitor", host=self))

    def kill_kubelet(self) -> None:
        kernel().end(self._kubelet_process)

    def start_agent(self) -> None:
        if self._agent_process.alive:
            return
        self._agent_process = Process(f"{self.name} agent", host=self)
        self.agent_started_at = kernel().now
        kernel().spawn(self._run_agent, f"{self.name} agent", self._agent_process)

    def _run_agent(self) -> None:
        settings = Settings(
            node_name=self.name,
            kubelet_dir=self._kubelet_root,
            cdi_dir=self.cdi_dir,
            state_dir=self._root / "state",
            kubeconfig=self._root / "kubeconfig",
            fence_file=self.fence_file,
            http_address=None,
            allow_unisolated=self.limits is None,
            limits_socket=self._limits_socket,
            gpu_sets=self.publishes_sets,
        )
        isolation: dict[str, Isolation] = {NONE: NoIsolation()}
        if self.isolates:
            isolation = {SimulatedIsolation.name: SimulatedIsolation(), **isolation}
        if self.limits is not None:
            self.isolation = limits_isolation(settings)
            isolation = {LIMITS: self.isolation, **isolation}
        agent = Agent(settings, isolation=isolation)
        agent.nvml = NvmlWatch(agent.post, dev=self._dev, sysfs=Path("/dev/null"), proc=Path("/dev/null"))
        self.agent = agent
        agent.start()

    def kill_agent(self) -> None:
        kernel().end(self._agent_process)
