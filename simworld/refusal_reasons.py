"""Whether a refusal is true: "schedulers have reserved the room", or "each GPU has as many pods as allowed".

Only the claim is the agent's. What is free is what kubelet offered in its question, what is reserved follows from the
Bindings, and who has a GPU is in kubelet's allocations. Unlike `refusals`, this holds while something is wrong, too:
late lists or a silent API server excuse no reason that is not true.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuagent.domain.gpus.gpu import key_of
from gpuagent.domain.sharing.units import parse_id
from simworld.history import ALLOCATION, MEMORY
from simworld.parts.amounts import ENDED
from simworld.parts.node import SimulatedNode
from simworld.runtime.kernel import kernel
from simworld.waiting import MOST_PODS
from standin.api.objects import Json

if TYPE_CHECKING:
    from simworld.world import World

SEEN_S = 30.0
"""How long an agent may not know that a bound pod is gone or was rejected, or that a container has ended."""
RESERVED = "schedulers have reserved"
FULL = "the most allowed"
"""What the agent says then."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A pod that a scheduler has bound.

    Attributes:
        node: name of its node.
        at: virtual seconds when it was bound.
        annotations: with the scheduler's decision.
    """

    node: str
    at: float
    annotations: Mapping[str, str]


class RefusalReasons:
    """Follows which pods are bound, and checks the reason of each refusal."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._bound: dict[str, _Bound] = {}

    def bound(self, uid: str, node: str, annotations: Mapping[str, str]) -> Iterable[str]:
        """Note a Binding. It breaks no promise by itself."""
        self._bound[uid] = _Bound(node, kernel().now, annotations)
        return ()

    def check(self, node_name: str, uid: str, reason: str) -> Iterator[str]:
        """The promise that a refusal breaks because its reason is not true."""
        node = next(node for node in self._world.nodes if node.name == node_name)
        refused = f"{self._world.history.name(uid)} was refused"
        if RESERVED in reason and not self.has_edited_pods(node):
            for problem in self._unreserved(node, uid):
                yield f"{refused}, but {problem}: {reason}"
        if FULL in reason:
            most = max(self._pods_on(node, gpu.uuid) for gpu in node.box.gpus)
            if most < MOST_PODS:
                yield f"{refused}, but no GPU of {node.name} has more than {most} pods: {reason}"

    def has_edited_pods(self, node: SimulatedNode) -> bool:
        """Whether tenants have edited pods of a node: what they write may reserve its GPUs, too."""
        edited = self._world.history.edited
        bound = {uid for uid, bound in self._bound.items() if bound.node == node.name}
        there = {pod["metadata"]["uid"] for pod in self._pods_of(node)}
        return not edited.keys().isdisjoint(bound | there)

    def _pods_of(self, node: SimulatedNode) -> list[Json]:
        return [pod for pod in self._world.api.objects.peek("pods") if pod["spec"].get("nodeName") == node.name]

    def _unreserved(self, node: SimulatedNode, uid: str) -> Iterator[str]:
        """GPUs of which kubelet has offered the pod more than what is reserved for others."""
        question = node.kubelet.last_question
        if question is None or question[0] != MEMORY:
            return
        asked = question[1]
        units = Counter(unit.gpu_key for unit in map(parse_id, asked.available) if unit is not None)
        for gpu in node.box.gpus:
            offered = units[key_of(gpu.uuid)]
            reserved = self._reserved_on(node, gpu.minor, uid)
            if offered - reserved >= asked.size:
                name = f"GPU {gpu.minor} of {node.name}"
                yield f"{name} had {offered} free, of which others needed {reserved}, and it asked for {asked.size}"

    def _reserved_on(self, node: SimulatedNode, number: int, asking: str) -> int:
        """Units of memory of a GPU that schedulers have decided for pods without a container so far."""
        started = self._started()
        reserved = 0
        for uid, bound in self._bound.items():
            if bound.node != node.name or uid in started or uid == asking:
                continue
            may_be_unknown = kernel().now - bound.at < SEEN_S
            if may_be_unknown or self._is_living(uid):
                decision = json.loads(bound.annotations.get(ALLOCATION, "{}"))
                reserved += sum(by_gpu.get(str(number), 0) for by_gpu in decision.values())
        return reserved

    def _started(self) -> set[str]:
        """UIDs of the pods that have, or had, a container."""
        history = self._world.history
        ended = [living for _, living in history.ended_ones]
        return {living.pod_uid for living in itertools.chain(history.living.values(), history.kept.values(), ended)}

    def _is_living(self, uid: str) -> bool:
        for pod in self._world.api.objects.peek("pods"):
            if pod["metadata"]["uid"] == uid:
                return (pod.get("status") or {}).get("phase") not in ENDED
        return False

    def _pods_on(self, node: SimulatedNode, uuid: str) -> int:
        """How many pods have memory of a GPU by kubelet's allocations, or had some a moment ago."""
        key = key_of(uuid)
        pods: set[str] = set()
        for device_id, uids in node.kubelet.holders(MEMORY).items():
            unit = parse_id(device_id)
            if unit is not None and unit.gpu_key == key:
                pods |= uids
        for living in self._world.history.on_node(node.name, kernel().now - SEEN_S):
            if uuid in living.gpus:
                pods.add(living.pod_uid)
        return len(pods)
