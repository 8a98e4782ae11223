"""What gpuscheduler has given away by its Bindings, held against the GPUs that there are."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION
from simworld.history import ALLOCATION, GIB_PER_GPU, History
from simworld.parts.amounts import ENDED
from simworld.runtime.http import SimulatedApi
from standin.api.objects import Json, Key


class Placements:
    """Each Binding with its decision; no GPU is given to more than it has room for."""

    def __init__(self, api: SimulatedApi, history: History) -> None:
        self._objects = api.objects
        self._history = history
        self._given: dict[str, tuple[str, Mapping[str, str]]] = {}

    def bound(self, key: Key, binding: Json, host: str, *, began_at: float = math.inf) -> None:
        """Take a Binding that the API server has carried out, of a scheduler that has read the cluster at `began_at`.

        A tenant may have edited the annotations of a pod before. As the scheduler has read those then, nodes with such
        pods are not checked; what is edited afterwards must not matter.
        """
        _, _, name = key
        metadata = binding["metadata"]
        uid = metadata["uid"]
        annotations: Mapping[str, str] = metadata.get("annotations") or {}
        node = binding["target"]["name"]
        self._given[uid] = (node, annotations)
        self._history.decided(uid, annotations)
        self._history.note(host, f"bound {name} to {node}: {_short(annotations)}")
        for check in self._history.bound_checks:
            for problem in check(uid, node, annotations):
                self._history.break_promise(problem)
        # A decision names the pod that it was made for: a pod that was copied has the decision of its original.
        decided_for = annotations.get(DECIDED_ANNOTATION)
        if decided_for != uid:
            self._history.break_promise(f"{name} is bound without a decision of its own")
        decisions = self._decisions_on(node)
        was_edited_before = any(self._history.edited.get(owner, math.inf) < began_at for owner in decisions)
        if not was_edited_before:
            self._check(node, decisions)

    def _check(self, node: str, decisions: Mapping[str, Mapping[str, str]]) -> None:
        """No GPU of a node is given twice by the decisions of the pods that are there."""
        gib_by_gpu: Counter[str] = Counter()
        owners_by_gpu: defaultdict[str, list[str]] = defaultdict(list)
        for uid, annotations in decisions.items():
            gib_by_gpu.update(decided_gib(annotations))
            for gpu in _whole_gpus(annotations):
                owners_by_gpu[gpu].append(self._history.name(uid))
        for gpu, gib in gib_by_gpu.items():
            if gib > GIB_PER_GPU:
                self._history.break_promise(f"GPU {gpu} of {node} is bound to pods of {gib} GiB together")
        for gpu, owners in owners_by_gpu.items():
            is_shared = len(owners) > 1 or gib_by_gpu[gpu] > 0
            if is_shared:
                self._history.break_promise(f"GPU {gpu} of {node} is bound whole to {', '.join(owners)}, and to others")

    def _decisions_on(self, node: str) -> dict[str, Mapping[str, str]]:
        """The decision of each pod that holds GPUs of a node, by UID."""
        decisions = {}
        for pod in self._objects.peek("pods"):
            uid = pod["metadata"]["uid"]
            status = pod.get("status") or {}
            is_there = pod["spec"].get("nodeName") == node
            has_ended = status.get("phase") in ENDED
            given_node, annotations = self._given.get(uid, ("", {}))
            if is_there and not has_ended and given_node == node:
                decisions[uid] = annotations
        return decisions


def _whole_gpus(annotations: Mapping[str, str]) -> list[str]:
    """The GPUs that a decision gives whole."""
    text = annotations.get(GROUP_ANNOTATION, "")
    return text.split(",") if text else []


def decided_gib(annotations: Mapping[str, str]) -> Counter[str]:
    """GiB of each GPU that a decision gives to the containers of a pod."""
    gib: Counter[str] = Counter()
    for shares in json.loads(annotations.get(ALLOCATION, "{}")).values():
        for gpu, units in shares.items():
            gib[gpu] += int(units)
    return gib


def _short(annotations: Mapping[str, str]) -> str:
    shown = ("ALIYUN_COM_GPU_MEM_IDX", GROUP_ANNOTATION, ALLOCATION)
    return ", ".join(f"{key.rpartition('/')[2]}={annotations[key]}" for key in shown if key in annotations)
