"""GPUs whose memory has changed: while the agent runs, or since an earlier run.

For example, ECC was switched on, a virtual machine got another vGPU profile, or another driver counts otherwise. While
the agent runs, the units of a GPU stay as they are: a new size takes effect when the agent starts again.
"""

from collections.abc import Iterator

from gpuagent.domain.missing_gpus import accept_words, former_memory_mib
from gpuagent.domain.state import State
from gpuagent.domain.usable_gpus import has_shrunk, shares_memory

_CAUSES = "its ECC mode (nvidia-smi -q -d ECC), its vGPU profile and the version of the driver"


def changed_words(state: State) -> Iterator[str]:
    """A sentence for each GPU whose memory has changed while the agent runs."""
    for gpu in state.gpus.by_index:
        memory_mib = state.gpus.resized_mib.get(gpu.uuid)
        if memory_mib is None:
            continue
        reported = f"has {memory_mib} MiB of memory now" if memory_mib else "does not report its memory any more"
        consequence = "it keeps its units"
        if has_shrunk(gpu, state):
            consequence = "it gets no new pods"
        yield (
            f"{gpu} {reported}, and had {gpu.memory_mib} MiB when the agent started: {consequence} until a restart of "
            "the agent applies the new size. The liveness probe fails, so that kubelet restarts it; without the "
            "probe, delete the agent's pod. Running containers are not affected"
        )


def restart_applies(state: State) -> str | None:
    """Why a restart of the agent helps: then the new sizes take effect. None if there are none."""
    names = [str(gpu) for gpu in state.gpus.by_index if gpu.uuid in state.gpus.resized_mib]
    if not names:
        return None
    return f"the memory of {', '.join(names)} has changed, and a restart of the agent applies the new size"


def shrunk_words(state: State) -> Iterator[str]:
    """A sentence for each GPU that gives fewer units than in an earlier run, as it has less memory."""
    if not shares_memory(state):
        return
    unit = state.policy.unit
    for gpu in state.gpus.by_index:
        former_mib = former_memory_mib(gpu, state)
        units = gpu.memory_mib // unit.mib
        former_units = former_mib // unit.mib
        # A driver may count some MiB otherwise than the one before: what matters is whether units are lost.
        if gpu.mig or units >= former_units:
            continue
        reported = "does not report its memory" if gpu.only_whole else f"has {gpu.memory_mib} MiB of memory"
        yield (
            f"{gpu} {reported}, and had {former_mib} MiB before: it gives {units} units of {unit.size} and not "
            f"{former_units}. Look at {_CAUSES}. If that is on purpose, {accept_words(state)}"
        )
