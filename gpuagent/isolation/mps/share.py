"""Pure functions: one container's environment for NVIDIA MPS, and the GPUs that MPS can share."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.gpu_share import ALL_PERCENT, GpuShare
from gpuagent.domain.sharing.grant import Grant, Mount
from gpuagent.domain.sharing.units import MemoryUnit, units_of
from gpuagent.isolation.interface import CannotIsolateError

VOLTA = (7, 0)

MAX_SHARERS = 48
"""Client contexts per GPU, from Volta on.

NVIDIA, Multi-Process Service, "Client-Server Connection Limits": 48 up to CUDA 13.0, 60 from CUDA 13.1 on, with the
default CUDA_DEVICE_MAX_CONNECTIONS. The node cannot determine the CUDA version of a container, so this is the lower.
"""

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

SEVERAL_GPUS = (
    "MPS forgets every cap when a program sees only some of its GPUs: ask for one GPU per container. "
    "A node in mode share takes several GPUs without limits, and cGPU or the driver's memory limits in mode cgpu "
    "take them with limits"
)
"""The variable of the caps is read like CUDA_VISIBLE_DEVICES: one number that names no visible GPU voids all of them.
Workers of torchrun and vLLM see one GPU each."""

ONE_DAEMON = (
    "MPS has a daemon for each GPU here, and a program reaches one daemon: ask for one GPU per container. "
    "A node in mode share takes several GPUs without limits, and cGPU or the driver's memory limits in mode cgpu "
    "take them with limits"
)

CEILING = (
    "The limits are variables of the container's environment; a program that clears or raises them may use as much as "
    "the largest share of a container on its GPU."
)
NO_CEILING = (
    "The limits are variables of the container's environment; a program that clears or raises them is not limited, "
    "because the MPS daemon has no limit for all programs. A daemon of one GPU has it, from CUDA 11.5 on."
)
VOIDED = (
    "A limit for a GPU that the program does not see voids all limits, also those of the MPS daemon, so a program can "
    "do without them on purpose."
)
MEMORY_CAVEATS = (
    "The limits hold for each client process; a container that starts several gets its share several times.",
    CEILING,
    NO_CEILING,
    VOIDED,
)
"""What holds only where MPS limits memory, and not its partner."""

CAVEATS = (
    *MEMORY_CAVEATS,
    "A thread percentage is an upper bound on compute and reserves none.",
    f"One GPU takes {MAX_SHARERS} client contexts for sure; a container with many CUDA processes uses many of them.",
    "A fatal GPU fault of one client ends the clients of every container on its GPU.",
)

NODE_WIDE = (
    "The MPS daemon at {pipe_dir} serves all GPUs: after a fatal fault on one, no GPU takes new clients until those "
    "of the faulty one have ended. The agent does not look after the clients of such a daemon."
)

UNPROBED = "Whether MPS serves new programs cannot be tried here, so a server that hangs is not seen: {why}."

NO_PROCESSES = (
    "The agent does not see the processes of containers (in a pod it needs hostPID), so it cannot end the MPS clients "
    "of a deleted pod before kubelet kills them."
)

ONE_USER = "This driver's MPS serves one user at a time: containers of another user ID wait until the first ones end."


def why_not(gpu: Gpu) -> str | None:
    """Why MPS cannot limit clients on this GPU, and what to do; None where it can."""
    if gpu.mig:
        return (
            f"GPU {gpu.index} is in MIG mode, where MPS is not used: disable MIG mode, or use its instances as they are"
        )
    if gpu.compute_capability is None:
        return (
            f"the driver does not say the compute capability of GPU {gpu.index}; MPS limits need 7.0: update the driver"
        )
    if gpu.compute_capability < VOLTA:
        major, minor = gpu.compute_capability
        return (
            f"GPU {gpu.index} ({gpu.model}) has compute capability {major}.{minor}; MPS limits need 7.0 (Volta): "
            "use mode share or default for it"
        )
    return None


def left_out(gpus: Iterable[Gpu]) -> dict[str, str]:
    """UUID to reason for every GPU that cannot be shared through MPS."""
    reasons = {}
    for gpu in gpus:
        reason = why_not(gpu)
        if reason is not None:
            reasons[gpu.uuid] = reason
    return reasons


def share_of(grant: Grant, unit: MemoryUnit) -> GpuShare:
    """What a container may use of each of its GPUs. It has all of what the grant is not about."""
    gpu = grant.gpus[0]
    total_units = units_of(gpu, grant.kind, unit)
    if grant.kind.is_memory:
        return GpuShare(gpu.memory_mib * grant.units // total_units, ALL_PERCENT)
    return GpuShare(gpu.memory_mib, grant.units)


def share(grant: Grant, *, unit: MemoryUnit, pipe_dir: Path, shm: Path | None, caps: bool = True) -> Grant:
    """Return the grant with MPS's environment and mounts. The same grant always gives the same result.

    A memory share adds the pipe directory and the cap, in MiB and keyed by the GPU's ordinal in the container. A
    compute share adds the directory and its percentage: kubelet merges equal values of both answers.

    Args:
        grant: the share.
        unit: the node's memory unit.
        pipe_dir: of the daemon.
        shm: a directory to mount at /dev/shm; None for none.
        caps: MPS limits memory. False where another driver does: then the share may have several GPUs of one daemon.

    Raises:
        CannotIsolateError: the share has several GPUs.
    """
    is_capped = grant.kind.is_memory and caps
    if is_capped and len(grant.gpus) > 1:
        raise CannotIsolateError(SEVERAL_GPUS)
    # A grant that has the mounts already does not get them twice.
    mounts = dict.fromkeys(grant.mounts)
    pipes = str(pipe_dir)
    mounts[Mount(pipes, pipes, read_only=False)] = None
    if shm is not None:
        mounts[Mount(str(shm), "/dev/shm", read_only=False)] = None  # noqa: S108 (the container's)
    env = {**grant.env, PIPE_VARIABLE: pipes}
    if is_capped:
        # 0 is the GPU's ordinal in the container, which has this GPU only.
        env[MEMORY_VARIABLE] = f"0={share_of(grant, unit).memory_mib}M"
    elif not grant.kind.is_memory:
        env[THREADS_VARIABLE] = str(grant.units)
    return dataclasses.replace(grant, env=env, mounts=tuple(mounts))
