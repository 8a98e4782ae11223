"""Driver `limits`: NVIDIA's driver (from 615 on) limits the GPU memory of a pod's cgroup, for every process in it.

The limits are set by a privileged helper, `gpuagent memory-limits`, and this driver says which. A pod's limit is in
force before any of its containers with a share runs, because kubelet makes the pod's cgroup before it asks. After that,
the limits of all pods are read again every few seconds, and put right.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import LIMITS, Layer
from gpuagent.domain.sharing.mode import Isolates, Mode
from gpuagent.host.cgroups import PodsRoot
from gpuagent.host.limits_client import Description, LimitsClient, LimitsError
from gpuagent.isolation.interface import Isolation, IsolationError, Need, Options, Report, Starting
from gpuagent.isolation.limits.keeper import AUDIT_S, Findings, LimitsKeeper
from gpuagent.isolation.limits.plan import Backend, PodPlan
from gpuagent.isolation.limits.pods import PodLimits
from gpuagent.isolation.limits.record import LimitsRecord

log = logging.getLogger(__name__)

PREFERENCE = 15
DESCRIBE_S = 60.0
"""How often the helper is asked what the node can do, while nothing is wrong."""
FIRST_ANSWER_S = 4.0
"""How long the helper may take to start beside the agent. Until then, the driver reports nothing."""
RETRY_S = 1.0
STOP_S = 1.0

NOT_DEPLOYED = (
    "the helper that sets memory limits does not run on this node (no {directory}): "
    "set limits.enabled=true in the chart for nodes with driver 615 or later"
)
NO_ANSWER_YET = "the helper has not answered yet; if that stays, look at the log of the agent's container memory-limits"
CHECKPOINT = "if that stays, mount kubelet's directory device-plugins readable"
PODS_CGROUP = "if that stays, start the helper with --pods-cgroup and the cgroup of all pods"
NOT_KNOWN = "the memory limits of running pods are not checked, because their shares are not known"
NOT_AUDITED = "the memory limits of running pods are being checked"
CAVEATS = (
    "Unified memory (cudaMallocManaged) is counted for no container, so a program can crowd others out with it.",
    "Memory that is imported from another process is counted for the process that exported it.",
    "The limits do not share out compute: without MPS, the containers take turns on the GPU.",
    "A claim that comes to another pod later is limited for each of its pods; claims for several pods are refused.",
)
DMEM_CAVEAT = (
    "A container sees the whole GPU in cudaMemGetInfo until its own limit is set, usually before its first instruction."
)


def make(options: Options) -> Isolation:
    """The driver."""
    return LimitsIsolation(options.limits_socket, LimitsRecord(options.state_dir))


class LimitsIsolation:
    """Asks the helper for the limits of all pods that this driver serves, and reports whether they hold.

    Args:
        socket: of the helper.
        record: whether limits have worked on this node.
        audit_s: seconds between two audits.
        first_answer_s: how long the helper may take to start.
        clock: monotonic seconds.
    """

    name = LIMITS

    def __init__(
        self,
        socket: Path,
        record: LimitsRecord,
        *,
        audit_s: float = AUDIT_S,
        first_answer_s: float = FIRST_ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket = socket
        self._client = LimitsClient(socket)
        self._record = record
        self._audit_s = audit_s
        self._first_answer_s = first_answer_s
        self._clock = clock
        self._report: Report = lambda _: None
        self._layer: Layer | None = None
        self._need = Need()
        self._problem: str | None = None
        self._description: Description | None = None
        self._describe_at = float("-inf")
        self._keeper: LimitsKeeper | None = None
        self._connections_lost = 0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="limits", daemon=True)

    # -- the interface ---------------------------------------------------------------------------------------

    def start(self, report: Report) -> None:
        self._report = report
        self._thread.start()

    def desire(self, need: Need) -> None:
        self._need = need
        keeper = self._keeper
        if keeper is not None:
            keeper.desire(need)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        keeper = self._keeper
        if keeper is not None:
            keeper.stop()
        self._client.close()

    def prepare(self, grant: Grant) -> Grant:
        """Nothing in the container's environment matters: the limit is the driver's."""
        return grant

    def verify(self, grant: Grant, starting: Starting) -> None:
        owner = starting.owner
        whose = str(owner) if owner else "the container"
        container = starting.container or (owner.container if owner else "")
        keeper = self._keeper
        if keeper is None:
            raise IsolationError(f"{whose} has to wait for memory limits: {self._problem or NO_ANSWER_YET}")
        if not starting.pods:
            raise IsolationError(f"{whose} has to wait: kubelet's checkpoint does not show its pod yet; {CHECKPOINT}")
        has_cgroup = False
        for uid, shares in starting.pods.items():
            try:
                plan, outcome = keeper.limit(uid, shares, container)
            except LimitsError as err:
                self._wake.set()
                raise IsolationError(f"{whose} has to wait for the memory limit of its pod: {err}") from err
            _check_covers(plan, grant, whose)
            failures = "; ".join([*outcome.unlimited.values(), *outcome.refused.values()])
            if failures:
                raise IsolationError(f"{whose} has to wait: the memory limit of its pod is not in force: {failures}")
            has_cgroup = has_cgroup or outcome.exists
        if self._client.connections_lost != self._connections_lost:
            # Another process of the helper answers, and the driver may have dropped limits meanwhile.
            keeper.audit_soon()
        if not has_cgroup:
            # Kubelet makes the pod's cgroup before it asks. So this passes, or the pod has ended.
            raise IsolationError(f"{whose} has to wait: kubelet shows no cgroup of its pod yet; {PODS_CGROUP}")

    # -- the driver's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        patient_until = self._clock() + self._first_answer_s
        while not self._stopping.is_set():
            try:
                self._look()
            except Exception as err:
                # Without this thread, no limit would be put right any more.
                log.exception("Failed to look after memory limits")
                self._problem = f"looking after memory limits failed: {err!r}"
            is_awaited = self._description is None and self._socket.parent.is_dir()
            if not is_awaited or self._clock() >= patient_until:
                self._report_change()
            self._wake.wait(self._pause_s())
            self._wake.clear()

    def _pause_s(self) -> float:
        keeper = self._keeper
        if keeper is None:
            return RETRY_S
        if self._describe_at == float("-inf"):
            return RETRY_S  # it does not answer, and asking at once would not help
        return min(keeper.pause_s(), DESCRIBE_S)

    def _look(self) -> None:
        """Ask the helper what the node can do, if it is time, and look at the pods."""
        try:
            is_gone = not self._socket.parent.is_dir()
            if is_gone or self._clock() >= self._describe_at:
                self._describe()
            if self._keeper is not None:
                if self._client.connections_lost != self._connections_lost:
                    self._connections_lost = self._client.connections_lost
                    self._keeper.audit_soon()
                self._keeper.look()
        except LimitsError as err:
            self._lose(err)

    def _describe(self) -> None:
        """Raises LimitsError: the helper does not answer."""
        if not self._socket.parent.is_dir():
            self._problem = NOT_DEPLOYED.format(directory=self._socket.parent)
            self._description = None
            return
        description = self._client.describe()
        self._description = description
        self._problem = description.problem
        if description.problem is None and description.pods_root is not None:
            self._keep(PodsRoot(description.pods_root), Backend(description.backend))
            self._record.note()
            self._describe_at = self._clock() + DESCRIBE_S

    def _keep(self, root: PodsRoot, backend: Backend) -> None:
        """Look after the pods below this cgroup from now on."""
        pods = PodLimits(self._client, root, backend)
        if self._keeper is not None and self._keeper.serves(pods):
            return
        if self._keeper is not None:
            self._keeper.stop()
        keeper = LimitsKeeper(pods, self._wake.set, audit_s=self._audit_s, clock=self._clock)
        keeper.desire(self._need)
        keeper.start()
        self._keeper = keeper

    def _lose(self, err: LimitsError) -> None:
        """The helper does not answer. What it has set stays in force as long as a process has the GPU open."""
        self._problem = f"{err}. The limits of running pods are not checked meanwhile"
        self._describe_at = float("-inf")
        if self._keeper is not None:
            self._keeper.distrust()

    # -- the report ------------------------------------------------------------------------------------------

    def _report_change(self) -> None:
        layer = self._layer_now()
        if layer == self._layer or self._stopping.is_set():
            return
        self._layer = layer
        self._report(layer)

    def _is_installed(self) -> bool:
        """Whether this node can limit memory, as far as is known."""
        if self._description is not None:
            return self._description.problem is None
        # A node on which limits have worked keeps this driver while the helper starts.
        return self._record.worked and self._socket.parent.is_dir()

    def _layer_now(self) -> Layer:
        keeper = self._keeper
        description = self._description
        problem = self._problem
        if problem is None and keeper is not None:
            problem = _problem_of(keeper, description)
        findings = keeper.findings if keeper else Findings()
        return Layer(
            driver=self.name,
            installed=self._is_installed(),
            isolates=frozenset({Isolates.MEMORY}),
            modes=frozenset({Mode.CGPU}),
            problem=problem,
            left_out={**_unable(description), **findings.left_out},
            version=f"{description.driver} {description.backend}".strip() if description else "",
            caveats=_caveats(description),
            limits_pods=True,
            unlimited=findings.unlimited,
            repaired=keeper.repaired if keeper else {},
            refused=findings.refused,
            applied=findings.applied,
        )


def _problem_of(keeper: LimitsKeeper, description: Description | None) -> str | None:
    """Why no container may start, although the helper answers."""
    if keeper.unknown:
        return f"{NOT_KNOWN}: {keeper.unknown}"
    if not keeper.has_audited:
        return NOT_AUDITED
    # On backend dmem, the pod's limit holds for new containers whether they are watched or not.
    is_misc = description is not None and description.backend == Backend.MISC
    return keeper.watch_problem if is_misc else None


def _unable(description: Description | None) -> dict[str, str]:
    """GPU UUID to why its memory cannot be limited."""
    if description is None:
        return {}
    return {uuid: why for uuid, why in description.gpus.items() if why is not None}


def _caveats(description: Description | None) -> tuple[str, ...]:
    if description is not None and description.backend == Backend.DMEM:
        return (*CAVEATS, DMEM_CAVEAT)
    return CAVEATS


def _check_covers(plan: PodPlan, grant: Grant, whose: str) -> None:
    """Check that the plan has a limit for each GPU of the container's share. Raises IsolationError."""
    if not grant.kind.is_memory:
        return
    for gpu in grant.gpus:
        if gpu.uuid not in plan.pod:
            text = f"kubelet's checkpoint does not show its share of GPU {gpu.index} yet"
            raise IsolationError(f"{whose} has to wait: {text}; {CHECKPOINT}")
