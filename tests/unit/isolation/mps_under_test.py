"""The mps driver on a host with stand-ins, for tests."""

import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import Control, MpsError
from gpuagent.isolation.interface import Need, Starting
from gpuagent.isolation.mps.clients.client_state import DEFAULT_WEDGES, WedgePolicy
from gpuagent.isolation.mps.clients.client_watch import PodOf
from gpuagent.isolation.mps.clients.unseen_starts import Starts
from gpuagent.isolation.mps.daemon import MpsDaemons
from gpuagent.isolation.mps.daemon_record import MpsRecord
from gpuagent.isolation.mps.daemon_state import MpsPolicy
from gpuagent.isolation.mps.driver import MpsIsolation
from gpuagent.isolation.mps.exclusive import ExclusiveModes
from standin.mps import cuda
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S

OWNER = Starting(ContainerRef(PodName("default", "train"), "main"))


def gpu(index: int = 0, **other: Any) -> Gpu:
    options = {"model": "NVIDIA A10", "memory_mib": 23028, "compute_capability": (8, 6), **other}
    return Gpu(uuid=f"GPU-{index}a", index=index, minor=index, pci_bus_id=f"00000000:0{index + 1}:00.0", **options)


def memory(*gpus: Gpu, units: int = 4, kind: Kind = Kind.MEMORY_MPS, env: dict[str, str] | None = None) -> Grant:
    return Grant(
        resource="aliyun.com/gpu-mem",
        kind=kind,
        gpus=gpus or (gpu(),),
        units=units,
        env={"A": "b"} if env is None else env,
    )


PROBE = (sys.executable, "-S", "-E", cuda.__file__)
"""A program that uses CUDA through the stand-in, in place of one that needs the driver."""


class MpsUnderTest:
    """A running driver and the layers it reports, in order."""

    def __init__(
        self,
        host: MpsHost,
        *,
        program: str = "",
        own: Path | None = None,
        exclusive: bool = False,
        unit: MemoryUnit | None = None,
        shm: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        wedges: WedgePolicy = DEFAULT_WEDGES,
        pod_of: PodOf | None = None,
        container_starts: Starts | None = None,
        **policy: Any,
    ) -> None:
        self.host = host
        self.record = MpsRecord(host.root / "state")
        self._layers: queue.SimpleQueue[Layer] = queue.SimpleQueue()
        daemons = MpsDaemons(
            program or str(host.control),
            self.record,
            own=own or host.own,
            logs=host.logs,
            known=(host.ack,),
            ask_s=PATIENCE_S,
        )
        modes = ExclusiveModes(self.record, smi=str(host.smi)) if exclusive else None
        pace = MpsPolicy(**{"every_s": 30.0, "first_retry_s": 0.05, "release_s": 0.0, **policy})
        self.driver = MpsIsolation(
            daemons,
            modes,
            unit=unit or MemoryUnit(),
            shm=shm,
            policy=pace,
            wedges=wedges,
            probe=PROBE,
            pod_of=pod_of,
            starts=container_starts,
            clock=clock,
            wall=wall,
        )
        self.daemons = daemons
        self.daemon = daemons.of_gpu("GPU-0a")

    def start(self, need: Need | None = None) -> "MpsUnderTest":
        if need:
            self.driver.desire(need)
        self.driver.start(self._layers.put)
        return self

    def next(self) -> Layer:
        return self._layers.get(timeout=PATIENCE_S)

    def until(self, so: Callable[[Layer], bool]) -> Layer:
        """The next layer of which that is so."""
        until = time.monotonic() + PATIENCE_S
        while True:
            layer = self._layers.get(timeout=max(0.01, until - time.monotonic()))
            if so(layer):
                return layer

    def well(self) -> Layer:
        return self.until(lambda layer: layer.problem is None)

    def problem(self, words: str) -> str:
        return str(self.until(lambda layer: words in (layer.problem or "")).problem)

    def quiet(self) -> bool:
        return self._layers.empty()


def alive(host: MpsHost, pipes: Any) -> bool:
    """A daemon that is just ending breaks the connection or gives an empty answer: it is not alive either."""
    try:
        Control(host.control, pipes, deadline_s=PATIENCE_S).alive()
    except MpsError:
        return False
    return True


def wait_for(so: Callable[[], bool]) -> None:
    """For what another process does and tells nobody."""
    until = time.monotonic() + PATIENCE_S
    while not so():
        assert time.monotonic() < until
        time.sleep(0.01)


def running() -> list[threading.Thread]:
    """The threads of drivers."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("isolation-mps")]
