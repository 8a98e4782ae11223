"""docs/reference/container-environment.md: what containers receive, as the code that grants it answers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from docsite.markdown import MADE
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.grant import CONTROL_NODES, DeviceAccess, DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, Kind
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import OWN_DIRECTORY
from gpuagent.isolation.cgpu import CgpuIsolation
from gpuagent.isolation.mps import share as mps_share

GPUS = tuple(
    Gpu(
        uuid=f"GPU-{number}a56a4bc-5b4b-4d07-9c3e-0f6a2b1d7e90",
        index=number,
        minor=number,
        pci_bus_id="",
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
    )
    for number in (2, 3)
)
ACCESS = DeviceAccess(unit=MemoryUnit(), device_nodes=(*(f"/dev/nvidia{one.minor}" for one in GPUS), *CONTROL_NODES))


def page() -> str:
    """The page."""
    sections = "\n".join(f"## {title}\n\n```text\n{_shown(grant)}```\n" for title, grant in _grants())
    return f"""# Container environment

{MADE}

Environment (`NAME=value`), device nodes, mounts and CDI names that a container receives on a node with GPUs of 80 GiB
and units of 1 GiB. The [reference](../reference.md#what-a-container-receives) explains the variables, and
[isolation](../isolation.md#what-a-container-gets) those of the drivers. A claim in mode `dra` gives the same.

{sections}"""


def _grants() -> Iterator[tuple[str, Grant]]:
    one = GPUS[:1]
    cgpu = CgpuIsolation()
    memory, compute = (_core_mem(kind) for kind in (Kind.MEMORY_CORE_MEM, Kind.CORE_CORE_MEM))
    yield "share: 8 GiB", ACCESS.grant(GPU_MEM, Kind.MEMORY_SHARE, 8, one)
    yield "share: 8 GiB, 4 on each of two GPUs", ACCESS.grant(GPU_MEM, Kind.MEMORY_SHARE, 4, GPUS)
    smaller = replace(ACCESS, unit=MemoryUnit.parse("256MiB"))
    yield "share: 8 GiB with --memory-unit 256MiB", smaller.grant(GPU_MEM, Kind.MEMORY_SHARE, 32, one)
    cdi = replace(ACCESS, strategy=DeviceStrategy.CDI)
    yield "share: 8 GiB with --device-strategy cdi", cdi.grant(GPU_MEM, Kind.MEMORY_SHARE, 8, one)
    yield "mps: 8 GiB, with MPS", _mps(ACCESS.grant(GPU_MEM, Kind.MEMORY_MPS, 8, one))
    yield "core_mem: 8 GiB and 30 percent, with cGPU", _both(cgpu.prepare(memory), cgpu.prepare(compute))
    yield "core_mem: 8 GiB and 30 percent, with MPS", _both(_mps(memory), _mps(compute))
    yield "topology: two GPUs", ACCESS.grant(GPU_WHOLE, Kind.WHOLE_TOPOLOGY, 1, GPUS)


def _core_mem(kind: Kind) -> Grant:
    return ACCESS.grant(GPU_MEM, kind, 8, GPUS[:1]) if kind.is_memory else ACCESS.grant(GPU_CORE, kind, 30, GPUS[:1])


def _mps(grant: Grant) -> Grant:
    return mps_share.share(grant, unit=ACCESS.unit, pipe_dir=Path(OWN_DIRECTORY), shm=None)


def _both(memory: Grant, compute: Grant) -> Grant:
    """One container's, as kubelet merges both answers."""
    return replace(memory, env={**memory.env, **compute.env})


def _shown(grant: Grant) -> str:
    lines = [
        *(f"{name}={value}" for name, value in sorted(grant.env.items())),
        *grant.device_nodes,
        *(f"{mount.host_path} on {mount.container_path}" for mount in grant.mounts),
        *grant.cdi_names,
    ]
    return "".join(f"{line}\n" for line in lines)
