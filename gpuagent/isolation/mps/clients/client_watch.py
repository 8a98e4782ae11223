"""Looks after the clients of one GPU's daemon: ends those of deleted pods, and sees and cures a server that hangs."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuagent.host.cuda_probe import CudaProbe
from gpuagent.host.mps_client import MpsError
from gpuagent.isolation.mps.clients.client_state import ClientState, Cure, WedgePolicy
from gpuagent.isolation.mps.clients.drain import clients_to_end, due_pods, next_due_s
from gpuagent.isolation.mps.daemon_state import Phase
from gpuagent.isolation.mps.daemon_watch import DaemonWatch

log = logging.getLogger(__name__)

TERMINATE_S = 30.0
"""How long the daemon may take to end a client. The list of clients has the usual, short time."""
DRAIN_AGAIN_S = 0.5

PodOf = Callable[[int], str | None]
"""UID of the pod of a process."""


@dataclass(frozen=True, slots=True)
class GpuPods:
    """The pods that hold a GPU through MPS.

    Attributes:
        gpu: the GPU's name for people.
        holds: a container holds it.
        names: UID to name.
        ending: UID of those that are being deleted to when kubelet kills them, in seconds since 1970.
    """

    gpu: str = "the GPU"
    holds: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    ending: Mapping[str, float] = field(default_factory=dict)


class ClientWatch:
    """The clients of one daemon. `look` is for the daemon's thread; any thread may call the rest.

    Args:
        watch: of the daemon.
        probe: makes a context through the daemon.
        pod_of: None if the agent does not see the processes of containers.
        policy: when a server is probed, and its daemon ended.
        clock: monotonic seconds.
        wall: seconds since 1970.
    """

    def __init__(  # noqa: PLR0913 (what it is put together from)
        self,
        watch: DaemonWatch,
        probe: CudaProbe,
        pod_of: PodOf | None,
        policy: WedgePolicy,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._watch = watch
        self._probe = probe
        self._pod_of = pod_of
        self._policy = policy
        self._clock = clock
        self._wall = wall
        self._pods = GpuPods()
        self._servers: dict[int, int] = {}
        self.servers: tuple[int, ...] | None = None
        """PIDs of the servers; None if the last look has not read them."""
        self.state = ClientState()
        self._changing = threading.Lock()
        # No container starts while the daemon is ended.
        self._starting = threading.Lock()

    @property
    def problem(self) -> str | None:
        """Why new containers cannot use the GPU, although its daemon answers."""
        restarts = self._watch.daemon.may_end
        return self.state.problem(self._pods.gpu, self._pods.names.values(), restarts=restarts)

    def pause_s(self, pods: GpuPods) -> float | None:
        """Seconds until clients have to be ended; None if no pod with clients is being deleted."""
        if self._pod_of is None:
            return None
        now = self._wall()
        is_draining = self.state.pids and due_pods(pods.ending, now)
        return DRAIN_AGAIN_S if is_draining else next_due_s(pods.ending, now)

    def admit(self) -> None:
        """Check just before a container starts that it will be served.

        Raises:
            MpsError: it will not.
        """
        with self._starting:
            at = self._clock()
            if self.state.needs_probe_before_start(at, self._policy):
                self._try()
            problem = self.problem
            if problem is not None:
                raise MpsError(problem)
            self._change(lambda state: state.started(self._clock()))

    def look(self, pods: GpuPods) -> None:
        """Look once."""
        self._pods = pods
        self.servers = None
        daemon = self._watch.state
        if not daemon.has_daemon:
            self._servers = {}
            self._change(ClientState.ended)
        if daemon.phase is not Phase.SERVING:
            return  # another problem says why
        is_used = pods.holds or self.state.pids
        if is_used or self.state.is_suspect or self.state.hangs:
            self._read()
        self._drain(pods)
        if self.state.needs_probe(self._clock(), self._policy):
            self._try()
        self._cure(pods)

    def _read(self) -> None:
        """Read the clients, and how their servers are."""
        servers: dict[int, int] = {}
        statuses = []
        try:
            control = self._watch.daemon.control
            every_server = control.servers()
            for server in every_server:
                servers.update(dict.fromkeys(control.clients_of(server), server))
                statuses.append(control.status(server))
        except MpsError as err:
            log.debug("Failed to read the clients of MPS", extra={"error": str(err)})
            return
        self._servers = servers
        self.servers = every_server
        self._change(lambda state: state.read(servers, statuses))

    def _drain(self, pods: GpuPods) -> None:
        """End the clients of pods that kubelet is about to kill."""
        due = due_pods(pods.ending, self._wall())
        if self._pod_of is None or not due:
            return
        clients = {pid: self._pod_of(pid) for pid in self._servers}
        for pid in clients_to_end(due, clients):
            extra = {"pid": pid, "pod": pods.names.get(str(clients[pid]), "")}
            try:
                self._watch.daemon.control.terminate(self._servers[pid], pid, deadline_s=TERMINATE_S)
            except MpsError as err:
                log.warning("Failed to end an MPS client", extra={**extra, "error": str(err)})
            else:
                log.info("Ended an MPS client before kubelet kills it", extra=extra)

    def _try(self) -> None:
        """Probe the server."""
        daemon = self._watch.daemon
        result = self._probe.run(daemon.pipe_dir, daemon.gpu)
        hung = self.state.hangs
        self._change(lambda state: state.probed(result, self._clock()))
        if self.state.hangs and not hung:
            log.error("MPS serves no new program", extra={"gpu": daemon.gpu, "error": result.text})

    def _cure(self, pods: GpuPods) -> None:
        """End a daemon that hangs, so that it is started again."""
        if self.state.cure(self._clock(), self._policy) is Cure.NONE or not self._watch.daemon.may_end:
            return
        with self._starting:
            # A container may have started meanwhile.
            self._read()
            cure = self.state.cure(self._clock(), self._policy)
            if cure is Cure.NONE:
                return
            reason = f"MPS hung on {pods.gpu} ({self.state.symptom}), so its daemon was ended"
            if self._watch.restart(reason, kill=cure is Cure.KILL):
                self._servers = {}
                self.servers = None
                self._change(ClientState.restarted)

    def _change(self, event: Callable[[ClientState], ClientState]) -> None:
        with self._changing:
            self.state = event(self.state)
