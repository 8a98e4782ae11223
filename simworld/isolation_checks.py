"""The promise of isolation: no container with a share runs a program before the driver has a limit for just its units.

What the driver has is read from the driver itself, and what it should have follows from kubelet's devices.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.sharing.units import parse_id
from gpuagent.isolation.limits.driver import LimitsIsolation
from gpuagent.simulation.boxes import BoxGpu
from simworld.history import MEMORY, Living
from simworld.parts.limits_helper import LimitsHelper
from simworld.parts.node import FIRST_INSTRUCTION_S, SimulatedNode
from simworld.runtime.kernel import kernel

if TYPE_CHECKING:
    from simworld.world import World

ISOLATED = "cgpu"
"""The mode whose units driver `limits` isolates."""
GIB = 1 << 30


class IsolationChecks:
    """Compares limits with units when containers start, and in a quiet world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def check_start(self, starting: Living) -> Iterator[str]:
        """The promise that a container breaks by starting with another limit than that of its units."""
        node = next(node for node in self._world.nodes if node.name == starting.node)
        if node.limits is None:
            return
        for gpu in node.box.gpus:
            units = _units_on(gpu, starting)
            if units and not self._has_inherited(node, node.limits, gpu, starting):
                yield from self._wrong_limit(node, node.limits, gpu, starting, units, is_quiet=False)

    def _has_inherited(self, node: SimulatedNode, helper: LimitsHelper, gpu: BoxGpu, starting: Living) -> bool:
        """Whether a container has the limit of one that has ended, and the helper could not remove it before its start.

        On backend `misc`, its cgroup appears after the agent has answered kubelet. The limit of its pod is set then.
        """
        appeared_at = kernel().now - FIRST_INSTRUCTION_S
        if helper.has_nested_limits or helper.is_prompt_since(appeared_at):
            return False
        of_pod = helper.limit_of_pod(gpu.uuid, starting.pod_uid)
        return of_pod is not None and of_pod <= _units_of_pod(node, gpu, starting.pod_uid) * GIB

    def check_quiet(self) -> None:
        """Check each container that runs, also one without a share, and that nothing is kept for pods that are gone."""
        for node in self._world.nodes:
            if node.limits is None:
                continue
            for living in self._world.history.on_node(node.name):
                self._check_living(node, node.limits, living)
            self._check_kept(node)

    def _check_living(self, node: SimulatedNode, helper: LimitsHelper, living: Living) -> None:
        for gpu in node.box.gpus:
            if gpu.uuid in node.lost:
                continue  # its driver tells nothing of it
            units = _units_on(gpu, living)
            if units:
                problems = self._wrong_limit(node, helper, gpu, living, units, is_quiet=True)
            else:
                problems = self._limit_of_others(node, helper, gpu, living)
            for problem in problems:
                self._world.history.break_promise(problem)

    def _wrong_limit(  # noqa: PLR0913 (all that the limit depends on)
        self, node: SimulatedNode, helper: LimitsHelper, gpu: BoxGpu, living: Living, units: int, *, is_quiet: bool
    ) -> Iterator[str]:
        uid = living.pod_uid
        # First, because what follows may let the container end.
        limit = helper.limit(gpu.uuid, uid, living.container)
        expected = _units_of_pod(node, gpu, uid) if helper.has_nested_limits else units
        # A container of several gets a limit of its own when the agent hears of it. Until then, it has less. And the
        # checkpoint, read while the pod is admitted, may show this container alone: others are limited when they start.
        has_own_share = limit is not None and limit >= units * GIB
        may_have_less = not is_quiet and (has_own_share or not helper.has_nested_limits)
        is_limited = limit is not None and limit <= expected * GIB
        is_less = limit is not None and limit < expected * GIB
        if not is_limited or (is_less and not may_have_less):
            name = f"{self._world.history.name(uid)}/{living.container}"
            has = "no limit" if limit is None else f"a limit of {limit} bytes"
            does = "runs" if is_quiet else "starts"
            share = f"{expected} units of GPU {gpu.minor} of {node.name}"
            yield f"{name} {does} with {share}, and the driver has {has} for it"

    def _limit_of_others(self, node: SimulatedNode, helper: LimitsHelper, gpu: BoxGpu, living: Living) -> Iterator[str]:
        """What limits a container that has no share of a GPU: that of a pod that is gone, for example."""
        limit = helper.limit(gpu.uuid, living.pod_uid, living.container)
        if _units_of_pod(node, gpu, living.pod_uid):
            return  # the limit of its pod is its own
        # An agent that starts later cannot know whether another program has limited the pod.
        is_older = self._world.history.started_at[living.pod_uid] < node.agent_started_at
        if limit is not None and not is_older:
            name = f"{self._world.history.name(living.pod_uid)}/{living.container}"
            yield f"{name} has no share of GPU {gpu.minor} of {node.name}, and a limit of {limit} bytes there"

    def _check_kept(self, node: SimulatedNode) -> None:
        """The agent's driver keeps no limits of pods that are gone."""
        driver = node.isolation
        assert isinstance(driver, LimitsIsolation)
        keeper = driver._keeper  # noqa: SLF001 (what the process knows)
        if keeper is None:
            self._world.history.break_promise(f"{node.name}: the isolation driver knows no helper")
            return
        there = {pod["metadata"]["uid"] for pod in self._world.api.objects.peek("pods")}
        # Kubelet frees the devices of a pod that has gone when it needs some.
        there.update(*node.kubelet.holders(MEMORY).values())
        for uid in self._world.history.pods.keys() - there:
            if keeper._in_force.plan_of(uid) is not None:  # noqa: SLF001
                name = self._world.history.name(uid)
                self._world.history.break_promise(
                    f"{node.name}: the isolation driver keeps limits of {name}, which is gone"
                )


def _units_on(gpu: BoxGpu, living: Living) -> int:
    """Units of memory that a container has of a GPU, in the mode that is isolated."""
    return sum(unit.kind.mode == ISOLATED for unit in living.memory_on(gpu.uuid))


def _units_of_pod(node: SimulatedNode, gpu: BoxGpu, uid: str) -> int:
    """The same of all containers of a pod, also of those that start later: init containers share with others."""
    key = key_of(gpu.uuid)
    count = 0
    for device_id, uids in node.kubelet.holders(MEMORY).items():
        unit = parse_id(device_id)
        is_on_gpu = unit is not None and unit.gpu_key == key and unit.kind.mode == ISOLATED
        count += is_on_gpu and uid in uids
    return count
