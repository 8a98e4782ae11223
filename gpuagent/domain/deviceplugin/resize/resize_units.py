"""Which units of a GPU a resized pod may get beyond kubelet's allocations."""

from collections.abc import Collection, Mapping
from functools import cached_property

from gpuagent.domain.deviceplugin.resize.resize_request import NotGranted
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.node_state.device_lists import DeviceRange
from gpuagent.domain.node_state.resizes import Growth
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.sharing.mode import GPU_MEM, Kind
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.sharing.units import UnitId
from gpuagent.domain.state import State


class FreeUnits:
    """The units that no pod holds.

    Args:
        state: the agent's.
        by_key: the GPUs that the driver lists.
        living: UID to each pod that has not ended.
        held: ids that containers have.
    """

    def __init__(
        self, state: State, by_key: Mapping[str, Gpu], living: Mapping[str, Pod], held: frozenset[str]
    ) -> None:
        self._state = state
        self._by_key = by_key
        self._living = living
        self._held = held

    def unusable(self, key: str, kind: Kind) -> NotGranted | None:
        """Why a GPU gives no further units now."""
        state = self._state
        gpu = self._by_key[key]
        name = f"GPU {gpu.index}"
        reason = state.unhealthy.get(gpu.uuid)
        if reason:
            return NotGranted(f"health of {name}", f"{name} is unhealthy and gives no more memory: {reason}")
        if gpu.uuid in state.former_units:
            text = f"{name} gives no more memory: containers have units of it from before its units changed"
            return NotGranted(f"units of {name}", text)
        layer = state.layer_of(kind.mode)
        problem = layer.problem_in(kind.mode) or layer.left_out.get(gpu.uuid)
        if problem:
            return NotGranted(f"isolation of {name}", f"{name} gives no more memory: {problem}")
        block = self._block(gpu.uuid, kind)
        if block is None or not block.healthy:
            text = f"{name} gives no more memory: it is on no device list of mode {kind.mode}"
            return NotGranted(f"list of {name}", text)
        return None

    def _block(self, uuid: str, kind: Kind) -> DeviceRange | None:
        """The GPU's units on the device list."""
        for block in self._state.advertised.lists.get(GPU_MEM, ()):
            if block.key == (uuid, kind):
                return block
        return None

    def free_ids(self, key: str, kind: Kind, resizes: Collection[Resize], growing: Collection[Growth]) -> list[str]:
        """Ids of the GPU that no container has, and no resize has or is about to get, in order."""
        block = self._block(self._by_key[key].uuid, kind)
        if block is None:
            return []
        taken = {*self._held, *self._state.resizes.withheld}
        for resize in resizes:
            taken |= resize.extra
        for growth in growing:
            taken |= growth.ids
        ids = [str(UnitId(key, kind, number)) for number in range(block.count)]
        return [device_id for device_id in ids if device_id not in taken]

    def promised(self, uid: str, key: str) -> int:
        """Units of a GPU that pods may be about to get: they are bound to this node and hold nothing yet.

        A pod for which a scheduler chose GPUs takes them from these. Another one may take them from any GPU.
        """
        minor = self._by_key[key].minor
        promised = 0
        for pod in self._living.values():
            is_waiting = pod.uid != uid and not pod.deleting and not pod.container_ids
            if not is_waiting or pod.name in self._holders:
                continue
            may_use = pod.share_gpus is None or minor in pod.share_gpus
            if may_use:
                promised += sum(container.limits.get(GPU_MEM, 0) for container in pod.containers)
        return promised

    @cached_property
    def _holders(self) -> set[PodName]:
        """Names of the pods that hold devices."""
        return {holding.owner.pod for holding in self._state.living_holdings}
