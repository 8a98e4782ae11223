"""The interface of isolation drivers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import ContainerRef
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.limits_client import SOCKET
from gpuagent.host.mps_client import CONTROL, OWN_DIRECTORY

Report = Callable[[Layer], None]


class IsolationError(Exception):
    """The layer does not work for this container now; kubelet may try again."""


class CannotIsolateError(IsolationError):
    """The layer can never isolate this share, so it does not help to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings from which the drivers are made.

    Attributes:
        state_dir: for the records that a driver keeps across restarts.
        unit: the size of one unit of gpu-mem.
        cdi: containers get their GPUs as CDI devices.
        percent_per_weight: compute percent that make one unit of cGPU's weight.
        mps_control: name or path of MPS's control program.
        mps_pipe_dir: where a daemon that the agent starts has its pipes.
        mps_start: start an MPS daemon where none is found.
        mps_exclusive: GPUs that MPS serves are set to compute mode EXCLUSIVE_PROCESS.
        mps_wedge_s: end an MPS daemon of the agent's own under its clients when it hangs for so long; None: never.
        limits_socket: of the helper that sets memory limits.
    """

    state_dir: Path
    unit: MemoryUnit = field(default_factory=MemoryUnit)
    percent_per_weight: int = 5
    cdi: bool = False
    mps_control: str = CONTROL
    mps_pipe_dir: Path = OWN_DIRECTORY
    mps_start: bool = True
    mps_exclusive: bool = True
    mps_wedge_s: float | None = None
    limits_socket: Path = SOCKET


@dataclass(frozen=True, slots=True)
class Need:
    """The demands of the node on one driver now.

    Attributes:
        gpus: the node's GPUs.
        serves: this driver is the one chosen for the current mode.
        in_use: containers hold devices of a mode that this driver serves, or the agent cannot determine this yet.
        held: UUIDs of the GPUs that such containers are known to hold.
        disabled: the node's label `cgpu.disable.isolation` is true.
        pods: UIDs of the pods that this driver keeps apart to their shares, by kubelet's checkpoint and the claims. The
            checkpoint may have pods that have ended. For a static pod, it is kubelet's own UID.
        knows_pods: `pods` has all of them: kubelet's allocations and checkpoint, and the users of claims, were read.
        unknown: what of that was not read, and what to do if that stays; empty if it all was.
        containers: id of each container at the runtime to its name, as far as the pods show it.
        resized: UIDs of those whose shares were changed while they run, to the largest shares that they were granted.
            The driver reports in `Layer.applied` which of their shares are in force, and in `Layer.refused` why one is
            not.
        pod_names: UID of each of `pods` to its name, as far as the API server shows it.
        ending: UID of each of `pods` that is being deleted to when its grace period ends, in seconds since 1970.
        largest: GPU UUID to the largest share that a container has through this driver, where the driver limits all
            programs on a GPU together; None if that is not known.
    """

    gpus: tuple[Gpu, ...] = ()
    serves: bool = False
    in_use: bool = False
    held: frozenset[str] = frozenset()
    disabled: bool = False
    pods: Mapping[str, PodShares] = field(default_factory=dict)
    knows_pods: bool = False
    unknown: str = ""
    containers: Mapping[str, str] = field(default_factory=dict)
    resized: Mapping[str, PodShares] = field(default_factory=dict)
    pod_names: Mapping[str, str] = field(default_factory=dict)
    ending: Mapping[str, float] = field(default_factory=dict)
    largest: Mapping[str, GpuShare] | None = None


@dataclass(frozen=True, slots=True)
class Starting:
    """What is about to start.

    Attributes:
        owner: the container; None for a claim, and where kubelet does not list the container.
        pods: UIDs of the pods whose containers may be about to start to all their shares. Empty if kubelet's checkpoint
            does not show the pod.
        container: name of the container by kubelet's checkpoint, which lists init containers too; empty for a claim.
        shares: GPU UUID to what the container may use of it. Empty if kubelet's checkpoint does not show the container.
    """

    owner: ContainerRef | None = None
    pods: Mapping[str, PodShares] = field(default_factory=dict)
    container: str = ""
    shares: Mapping[str, GpuShare] = field(default_factory=dict)


class Serving(Protocol):
    """What containers get of isolation: from one driver, or from two together. Callable from any thread."""

    def prepare(self, grant: Grant) -> Grant:
        """Return the grant with the driver's environment, mounts and device nodes. Quick, local, repeatable.

        Raises:
            IsolationError: this share cannot be isolated; the pod is refused with the text.
        """

    def verify(self, grant: Grant, starting: Starting) -> None:
        """Check, just before a container starts, that the layer is alive and set for it. May take a second.

        Raises:
            IsolationError: it is not; the container waits and kubelet tries again.
        """


class Isolation(Serving, Protocol):
    """An isolation driver. Every method may be called from any thread."""

    name: str

    def start(self, report: Report) -> None:
        """Begin to watch the layer, in threads of its own: `report` every change of its Layer, the first at once.

        Changes nothing on the node before `desire` asks for it.
        """

    def desire(self, need: Need) -> None:
        """Store the need and return at once. The agent calls it on every change, even when the need stays equal."""

    def stop(self) -> None:
        """End the threads within a second; the layer of running containers stays as it is."""
