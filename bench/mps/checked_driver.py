"""The mps driver on a real GPU, in a temporary folder, and what `bench.mps_check` finds wrong with it."""

import queue
import time
from pathlib import Path

from bench.mps.programs import PATIENCE_S
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import CONTROL, MpsError, ServerLimit
from gpuagent.isolation.interface import Need, Starting
from gpuagent.isolation.mps.ceiling import RECENT_S
from gpuagent.isolation.mps.daemon import MpsDaemons
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.isolation.mps.daemon_state import MpsPolicy
from gpuagent.isolation.mps.driver import MpsIsolation

GIB_MIB = 1024


class Check:
    """One run: the driver, its reports, and the number of faults found."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu = gpu
        self.wrong = 0
        self._ahead_s = 0.0
        self._layers: queue.SimpleQueue[Layer] = queue.SimpleQueue()
        daemons = MpsDaemons(CONTROL, MpsRecord(folder), own=folder / "pipe", logs=folder / "log", known=())
        self.daemon = daemons.of_gpu(gpu.uuid)
        policy = MpsPolicy(release_s=0.0)
        self.driver = MpsIsolation(daemons, None, unit=MemoryUnit(), policy=policy, clock=self._clock)
        self.driver.start(self._layers.put)

    def forget_reports(self) -> None:
        """Look at later reports only."""
        while not self._layers.empty():
            layer = self._layers.get_nowait()
            self.note(f"the driver said meanwhile: {layer.problem or 'works'}")

    def well(self, *, well: bool = True) -> float:
        """Wait until the driver reports itself working, or not; returns the seconds it took."""
        began = time.monotonic()
        while True:
            layer = self._layers.get(timeout=PATIENCE_S)
            print(f"  driver: {layer.problem or 'works'}", flush=True)
            works = layer.problem is None
            if works is well:
                return time.monotonic() - began

    def say(self, good: bool, text: str) -> None:
        """One finding."""
        if good:
            print(f"ok    {text}", flush=True)
            return
        self.wrong += 1
        print(f"WRONG {text}", flush=True)

    def note(self, text: str) -> None:
        """What was found where nothing is promised."""
        print(f"note  {text}", flush=True)

    def share(self, gib: int, percent: int = 100) -> GpuShare:
        """The share of a container with so many units of 1 GiB, to which the rest of the GPU's memory is spread."""
        units = self.gpu.memory_mib // 1024
        return GpuShare(self.gpu.memory_mib * gib // units, percent)

    def start(self, gib: int, percent: int = 100) -> None:
        """A container with such a share is about to start. Raises IsolationError: it has to wait."""
        grant = Grant(resource="", kind=Kind.MEMORY_CORE_MEM, gpus=(self.gpu,), units=gib, env={})
        shares = {self.gpu.uuid: self.share(gib, percent)}
        self.driver.verify(self.driver.prepare(grant), Starting(shares=shares))

    def hold(self, gib: int, percent: int = 100) -> bool:
        """Containers have this share at most, and none has just started; whether the driver sets the ceiling."""
        self._ahead_s += RECENT_S
        share = self.share(gib, percent)
        need = Need(
            gpus=(self.gpu,),
            serves=True,
            in_use=True,
            held=frozenset({self.gpu.uuid}),
            largest={self.gpu.uuid: share},
        )
        self.driver.desire(need)
        until = time.monotonic() + PATIENCE_S
        while not self._has(share):
            if time.monotonic() >= until:
                self.say(good=False, text=f"the ceiling was not set to {share}")
                return False
            time.sleep(0.05)
        return True

    def limits(self) -> str:
        """What the daemon and its servers limit programs to, in the daemon's words."""
        control = self.daemon.control
        servers: list[int | None] = [None, *control.servers()]
        texts = []
        for server in servers:
            memory = control.ask(ServerLimit.MEMORY.get(server))
            percentage = control.ask(ServerLimit.PERCENTAGE.get(server))
            whose = "servers to come" if server is None else f"server {server}"
            texts.append(f"{whose}: {memory or 'no memory limit'}, {percentage} %")
        return "; ".join(texts)

    def _has(self, share: GpuShare) -> bool:
        """Whether the daemon has that ceiling, and so have its servers."""
        control = self.daemon.control
        try:
            servers: list[int | None] = [None, *control.servers()]
            memory = [control.limit(ServerLimit.MEMORY, server) for server in servers]
            percentage = [control.limit(ServerLimit.PERCENTAGE, server) for server in servers]
        except MpsError:
            return False  # the daemon is on its way
        # The daemon of driver 580 shows whole GiB, rounded down.
        shown = {None if mib is None else mib // GIB_MIB for mib in memory}
        return shown == {share.memory_mib // GIB_MIB} and {*percentage} == {share.percent}

    def _clock(self) -> float:
        return time.monotonic() + self._ahead_s

    def environment(self, gib: int, percent: int | None = None) -> dict[str, str]:
        """The environment of a container with that share."""
        visible = {"CUDA_VISIBLE_DEVICES": self.gpu.uuid}
        grant = Grant(resource="", kind=Kind.MEMORY_CORE_MEM, gpus=(self.gpu,), units=gib, env=visible)
        env = dict(self.driver.prepare(grant).env)
        if percent is not None:
            core = Grant(resource="", kind=Kind.CORE_CORE_MEM, gpus=(self.gpu,), units=percent, env={})
            env |= self.driver.prepare(core).env
        return env
