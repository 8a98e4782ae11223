"""Driver `cgpu`: Alibaba's kernel module isolates memory, and compute as its policy says. ECS only; never run here.

The module's container runtime wrapper reads the environment and makes the instance when the container starts. This
driver only sets that environment, and watches the module through `/proc/cgpu_km`.
"""

import threading
from dataclasses import replace
from pathlib import Path

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.host import cgpu_proc
from gpuagent.isolation.interface import CannotIsolateError, Isolation, IsolationError, Need, Options, Report, Starting

PREFERENCE = 10
PERIOD_S = 2.0
ANSWER_S = 3.0
MODES = frozenset({Mode.CGPU, Mode.CORE_MEM})
NO_CDI = "cGPU's wrapper does not see GPUs that come as CDI devices; use --device-strategy device-nodes"

WEIGHED = frozenset({2, 3})
"""Policies by which a container's weight decides its share of compute."""
CAVEATS = (
    "that cGPU's wrapper is in the container runtime's way is seen on the host only: gpu-isolation-installer status",
    "unified memory (cudaMallocManaged) is not limited",
    "what a policy gives to a container's compute depends on the node's policy: see gpu-isolation-installer policy",
)


def make(options: Options) -> Isolation:
    """The driver."""
    return CgpuIsolation(percent_per_weight=options.percent_per_weight, cdi=options.cdi)


class CgpuIsolation:
    """Watches `proc` and adds cGPU's environment.

    Args:
        proc: the module's directory in procfs.
        percent_per_weight: compute percent that make one unit of weight.
        cdi: whether containers get their GPUs as CDI devices.
        period_s: seconds between two reads of `proc`.
        answer_s: how long the kernel may take for one read.
    """

    name = "cgpu"

    def __init__(
        self,
        *,
        proc: Path = cgpu_proc.CGPU_PROC,
        percent_per_weight: int = 5,
        cdi: bool = False,
        period_s: float = PERIOD_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._proc = proc
        self._percent_per_weight = percent_per_weight
        self._period_s = period_s
        self._need = Need()
        self._cdi = cdi
        self._answer_s = answer_s
        self._stopping = threading.Event()
        self._nudged = threading.Event()
        self._reading: _Reading | None = None
        self._thread: threading.Thread | None = None

    def start(self, report: Report) -> None:
        self._thread = threading.Thread(target=self._watch, args=(report,), name="cgpu", daemon=True)
        self._thread.start()

    def desire(self, need: Need) -> None:
        if need != self._need:
            self._need = need
            self._nudged.set()

    def stop(self) -> None:
        self._stopping.set()
        self._nudged.set()
        if self._thread:
            self._thread.join(1.0)

    def _watch(self, report: Report) -> None:
        reported: Layer | None = None
        while True:
            layer = self.look()
            if layer != reported:
                reported = layer
                report(layer)
            self._nudged.wait(self._period_s)
            self._nudged.clear()
            if self._stopping.is_set():
                return

    def _read(self) -> cgpu_proc.CgpuState | None:
        """The module's state. Raises TimeoutError: the kernel does not answer."""
        if not self._proc.exists():  # most nodes: no thread for that
            return None
        reading = self._reading
        if reading is None or reading.ended.is_set():
            reading = _Reading(self._proc)
            # A read that hangs is kept, so that a locked-up module costs one thread and not one for each look.
            self._reading = reading
        if not reading.ended.wait(self._answer_s):
            msg = f"{self._proc} has not answered for {self._answer_s:g} s: cGPU hangs; drain and reboot the node"
            raise TimeoutError(msg)
        return reading.state

    def look(self) -> Layer:
        """The module as it is now."""
        try:
            state = self._read()
        except TimeoutError as err:
            return Layer(driver=self.name, installed=True, modes=MODES, problem=str(err))
        if state is None:
            return Layer(
                driver=self.name,
                installed=False,
                isolates=frozenset({Isolates.MEMORY}),
                modes=MODES,
                problem=cgpu_proc.problem(state),
                max_sharers=cgpu_proc.MAX_PODS,
                caveats=CAVEATS,
            )
        return self._layer_of(state)

    def _layer_of(self, state: cgpu_proc.CgpuState) -> Layer:
        """The layer of a module that is loaded."""
        version = state.version
        isolates = {Isolates.MEMORY}
        unserved: dict[Mode, str] = {}
        if version is not None and version >= cgpu_proc.CORE_MEM_SINCE:
            isolates.add(Isolates.COMPUTE)
            unserved = _unserved(state)
        limits = [gpu.max_inst for gpu in state.gpus if gpu.max_inst]
        limits.append(cgpu_proc.MAX_PODS)
        caveats = [*CAVEATS]
        if version:
            caveats += cgpu_proc.caveats(version)
        return Layer(
            driver=self.name,
            installed=True,
            isolates=frozenset(isolates),
            modes=MODES,
            problem=NO_CDI if self._cdi else cgpu_proc.problem(state),
            unserved=unserved,
            left_out=self._left_out(state),
            max_sharers=min(limits),
            version=str(version or ""),
            caveats=tuple(caveats),
        )

    def _left_out(self, state: cgpu_proc.CgpuState) -> dict[str, str]:
        known = {gpu.index for gpu in state.gpus}
        if not known:
            return {}  # a problem of the whole node says so already
        left_out = {}
        for gpu in self._need.gpus:
            if gpu.minor not in known:
                missing = f"cGPU does not have it (no {self._proc}/{gpu.minor})"
                left_out[gpu.uuid] = f"{missing}; load the module again on the empty node"
        return left_out

    def prepare(self, grant: Grant) -> Grant:
        env = dict(grant.env)
        if "," in env.get("ALIYUN_COM_GPU_MEM_DEV", ""):
            sizes = [f"GPU {gpu.index}: {gpu.memory_mib} MiB" for gpu in grant.gpus]
            words = ", ".join(sizes)
            raise CannotIsolateError(f"cGPU takes one size for all GPUs of a container, and these differ ({words})")
        if grant.kind is Kind.CORE_CORE_MEM:
            weight = grant.units // self._percent_per_weight
            env["ALIYUN_COM_GPU_SCHD_WEIGHT"] = str(max(1, weight))
        if self._need.disabled:
            env["CGPU_DISABLE"] = "true"
        return replace(grant, env=env)

    def verify(self, grant: Grant, starting: Starting) -> None:  # noqa: ARG002 (the interface's)
        """Check that the module is loaded, lists the GPUs, and has room for one more instance on each."""
        try:
            state = self._read()
        except TimeoutError as err:
            raise IsolationError(str(err)) from err
        problem = cgpu_proc.problem(state)
        if problem or state is None:
            raise IsolationError(problem)
        known = {gpu.index: gpu for gpu in state.gpus}
        for gpu in grant.gpus:
            seen = known.get(gpu.minor)
            if seen is None:
                text = f"cGPU {state.version} does not have GPU {gpu.index} (no {self._proc}/{gpu.minor})"
                raise IsolationError(f"{text}; load the module again when the node is empty")
            count = len(seen.instances)
            if seen.max_inst is not None and count >= seen.max_inst:
                text = f"cGPU has {count} instances on GPU {gpu.index} and takes {seen.max_inst}"
                raise IsolationError(f"{text}; wait until a container ends")


class _Reading:
    """One read of `proc`, in a thread of its own: a kernel module that locks up does not answer."""

    def __init__(self, proc: Path) -> None:
        self.state: cgpu_proc.CgpuState | None = None
        self.ended = threading.Event()
        self._proc = proc
        threading.Thread(target=self._run, name="cgpu-read", daemon=True).start()

    def _run(self) -> None:
        self.state = cgpu_proc.read(self._proc)
        self.ended.set()


def _unserved(state: cgpu_proc.CgpuState) -> dict[Mode, str]:
    """Mode core_mem needs a policy by which the weight counts."""
    gpus = [gpu for gpu in state.gpus if gpu.policy not in WEIGHED]
    if not gpus:
        return {}
    policies = ", ".join(f"GPU {gpu.index}: {_policy(gpu.policy)}" for gpu in gpus)
    text = (
        f"cGPU's policy does not share compute by weight ({policies}); set policy 3 (fixed) or 2 on every GPU with "
        "`gpu-isolation-installer policy` while no container runs"
    )
    return {Mode.CORE_MEM: text}


def _policy(number: int | None) -> str:
    if number is None:
        return "unreadable"
    if number not in cgpu_proc.POLICIES:
        return str(number)
    name = cgpu_proc.POLICIES[number].name
    return f"{number} ({name})"
