"""The grant that a container receives for its share: environment, device nodes, CDI names."""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MemoryUnit

CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)


KEPT_VARIABLES = frozenset({"CUDA_MPS_PIPE_DIRECTORY"})
"""Variables that an isolation driver has to know when a container starts again, also after a restart of the agent."""

DRIVER_ANNOTATION = "gpuagent/isolation"
"""Annotation of the answer to kubelet: the isolation driver of the container. Kubelet keeps it, and so an agent
that starts with other settings knows which driver the running containers depend on."""


class DeviceStrategy(enum.StrEnum):
    """The means by which a container accesses its GPUs."""

    DEVICE_NODES = "device-nodes"
    CDI = "cdi"


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the node made visible in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """A container's share. `units` are those of `resource` on each of `gpus` (equal on all of them).

    `visible_gpus` are GPUs of its job that it sees but does not own.
    """

    resource: str
    kind: Kind
    gpus: tuple[Gpu, ...]
    units: int
    env: Mapping[str, str]
    device_nodes: tuple[str, ...] = ()
    cdi_names: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    visible_gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccess:
    """The means by which the containers of a node access their GPUs.

    Attributes:
        unit: the unit of memory.
        device_nodes: paths that the node has.
        strategy: whether containers get device nodes or CDI names.
        indexes: containers get NVML indexes in place of UUIDs.
    """

    unit: MemoryUnit
    device_nodes: Collection[str]
    strategy: DeviceStrategy = DeviceStrategy.DEVICE_NODES
    indexes: bool = False

    def grant(
        self,
        resource: str,
        kind: Kind,
        units: int,
        gpus: Sequence[Gpu],
        visible_gpus: Sequence[Gpu] = (),
    ) -> Grant:
        """The share of a container. The same arguments always give the same grant.

        Args:
            resource: name.
            kind: kind of its units.
            units: on each of `gpus`.
            gpus: in the order in which the container sees them.
            visible_gpus: GPUs that the container sees as well, as a scheduler decided for its job; its own come first,
                for CUDA too.
        """
        seen = (*gpus, *visible_gpus)
        uuids = [gpu.uuid for gpu in seen]
        names = [str(gpu.index) for gpu in seen] if self.indexes else uuids
        env = {"NVIDIA_VISIBLE_DEVICES": ",".join(names)}
        if visible_gpus:
            # CUDA would number them by its own order, and the container's own GPUs have to be the first.
            env["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        if kind.is_memory:
            env |= self.memory_env(gpus, [units] * len(gpus))
        device_nodes: tuple[str, ...] = ()
        cdi_names: tuple[str, ...] = ()
        if self.strategy is DeviceStrategy.CDI:
            cdi_names = tuple([f"nvidia.com/gpu={uuid}" for uuid in uuids])
        else:
            device_nodes = self._nodes_of(seen)
        return Grant(
            resource=resource,
            kind=kind,
            gpus=tuple(gpus),
            units=units,
            env=env,
            device_nodes=device_nodes,
            cdi_names=cdi_names,
            visible_gpus=tuple(visible_gpus),
        )

    def memory_env(self, gpus: Sequence[Gpu], units: Sequence[int]) -> dict[str, str]:
        """What Aliyun's plugin tells a container of its memory, with the units of each GPU."""
        minors = [str(gpu.minor) for gpu in gpus]
        sizes = [str(gpu.memory_mib // self.unit.mib) for gpu in gpus]
        are_equal = len(set(units)) == 1
        # The protocol has one amount, for each of the GPUs. Amounts that differ stand there in the order of the GPUs.
        amounts = [str(count) for count in (units[:1] if are_equal else units)]
        return {
            "ALIYUN_COM_GPU_MEM_IDX": ",".join(minors),
            # Equal sizes stand there once.
            "ALIYUN_COM_GPU_MEM_DEV": ",".join(dict.fromkeys(sizes)),
            "ALIYUN_COM_GPU_MEM_CONTAINER": ",".join(amounts),
            "ALIYUN_COM_GPU_MEM_POD": str(sum(units)),
            "ALIYUN_COM_GPU_MEM_UNIT": self.unit.name,
        }

    def _nodes_of(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """The device nodes for these GPUs that the node has. With any other, the container would not start."""
        nodes = [f"/dev/nvidia{gpu.minor}" for gpu in gpus]
        nodes += CONTROL_NODES
        return tuple([node for node in nodes if node in self.device_nodes])
