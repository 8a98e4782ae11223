"""Driver `cgpu`: Alibaba's kernel module keeps memory, and by its policy compute, apart. ECS only; never run here.

The module's wrapper of the container runtime reads the environment and makes the instance when the container starts;
this driver only says what the container gets and watches the module through `/proc/cgpu_km`.
"""

import threading
from dataclasses import replace
from pathlib import Path

from gpuagent.domain.grant import Grant
from gpuagent.domain.isolation import Layer
from gpuagent.domain.mode import Isolates, Kind, Mode
from gpuagent.domain.pods import Owner
from gpuagent.host import cgpu
from gpuagent.isolation import Isolation, IsolationError, Need, Options, Report

PREFERENCE = 10
PERIOD_S = 1.0

WEIGHED = frozenset({2, 3})
"""Policies by which a container's weight decides what compute it gets."""
CAVEATS = (
    "unified memory (cudaMallocManaged) is not limited",
    "what a policy gives to a container's compute depends on the node's policy: see gpu-isolation-installer policy",
)


def make(options: Options) -> Isolation:
    """The driver."""
    return CgpuIsolation(percent_per_weight=options.percent_per_weight)


class CgpuIsolation:
    """Watches `proc` and adds cGPU's environment.

    Args:
        proc: where the module shows itself.
        percent_per_weight: compute percent that make one unit of weight.
        period_s: between two looks at `proc`.
    """

    name = "cgpu"

    def __init__(self, *, proc: Path = cgpu.CGPU_PROC, percent_per_weight: int = 5, period_s: float = PERIOD_S) -> None:
        self._proc = proc
        self._percent_per_weight = percent_per_weight
        self._period_s = period_s
        self._need = Need()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, report: Report) -> None:
        self._thread = threading.Thread(target=self._watch, args=(report,), name="cgpu", daemon=True)
        self._thread.start()

    def desire(self, need: Need) -> None:
        self._need = need

    def stop(self) -> None:
        self._stopping.set()
        if self._thread:
            self._thread.join(1.0)

    def _watch(self, report: Report) -> None:
        told = None
        while True:
            if (layer := self.look()) != told:
                told = layer
                report(layer)
            if self._stopping.wait(self._period_s):
                return

    def look(self) -> Layer:
        """The module as it is now."""
        state = cgpu.read(self._proc)
        version = state.version if state else None
        computes = version is not None and version >= cgpu.CORE_MEM_SINCE
        caps = [gpu.max_inst for gpu in state.gpus if gpu.max_inst] if state else []
        return Layer(
            driver=self.name,
            installed=state is not None,
            isolates=frozenset(Isolates) if computes else frozenset({Isolates.MEMORY}),
            modes=frozenset({Mode.CGPU, Mode.CORE_MEM}),
            problem=cgpu.problem(state),
            unserved=_unserved(state) if state and computes else {},
            left_out=self._left_out(state) if state else {},
            max_sharers=min(*caps, cgpu.MAX_PODS) if caps else cgpu.MAX_PODS,
            version=str(version or ""),
            caveats=CAVEATS + (cgpu.caveats(version) if version else ()),
        )

    def _left_out(self, state: cgpu.CgpuState) -> dict[str, str]:
        known = {gpu.index for gpu in state.gpus}
        return {
            gpu.uuid: f"cGPU does not know it (no {self._proc}/{gpu.minor}); load the module again on the empty node"
            for gpu in self._need.gpus
            if known and gpu.minor not in known
        }

    def prepare(self, grant: Grant) -> Grant:
        env = dict(grant.env)
        if grant.kind is Kind.CORE_CORE_MEM:
            env["ALIYUN_COM_GPU_SCHD_WEIGHT"] = str(max(1, grant.units // self._percent_per_weight))
        if self._need.disabled:
            env["CGPU_DISABLE"] = "true"
        return replace(grant, env=env)

    def verify(self, grant: Grant, owner: Owner | None) -> None:  # noqa: ARG002 (the interface's)
        """The module is there, knows the GPUs, and has room for one more instance on each."""
        state = cgpu.read(self._proc)
        if (problem := cgpu.problem(state)) or state is None:
            raise IsolationError(problem)
        known = {gpu.index: gpu for gpu in state.gpus}
        for gpu in grant.gpus:
            seen = known.get(gpu.minor)
            if seen is None:
                text = f"cGPU {state.version} does not know GPU {gpu.index} (no {self._proc}/{gpu.minor})"
                raise IsolationError(f"{text}; load the module again when the node is empty")
            if seen.max_inst is not None and len(seen.instances) >= seen.max_inst:
                text = f"cGPU has {len(seen.instances)} instances on GPU {gpu.index} and takes {seen.max_inst}"
                raise IsolationError(f"{text}; wait until a container ends")


def _unserved(state: cgpu.CgpuState) -> dict[Mode, str]:
    """Mode core_mem needs a policy by which the weight counts."""
    other = [gpu for gpu in state.gpus if gpu.policy not in WEIGHED]
    if not other:
        return {}
    policies = ", ".join(f"GPU {gpu.index}: {_policy(gpu.policy)}" for gpu in other)
    text = (
        f"cGPU's policy does not share compute by weight ({policies}); set policy 3 (fixed) or 2 on every GPU with "
        "`gpu-isolation-installer policy` while no container runs"
    )
    return {Mode.CORE_MEM: text}


def _policy(number: int | None) -> str:
    if number is None:
        return "unreadable"
    return f"{number} ({cgpu.POLICIES[number].name})" if number in cgpu.POLICIES else str(number)
