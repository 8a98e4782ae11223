"""What gpuscheduler has given away by its Bindings, held against the GPUs that there are."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION
from simworld.history import ALLOCATION, History
from simworld.parts.amounts import ENDED
from simworld.runtime.http import SimulatedApi
from standin.api.objects import Json, Key

GIB_PER_GPU = 80


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
        metadata = binding["metadata"]
        annotations: Mapping[str, str] = metadata.get("annotations") or {}
        uid = metadata["uid"]
        node = binding["target"]["name"]
        self._given[uid] = node, annotations
        self._history.decided(uid, annotations)
        self._history.note(host, f"bound {key[2]} to {node}: {_short(annotations)}")
        if annotations.get(DECIDED_ANNOTATION) != uid:
            self._history.break_promise(f"{key[2]} is bound without a decision of its own")
        self._check(node, began_at)

    def _check(self, node: str, began_at: float) -> None:
        """No GPU of a node is given twice to the pods that are there."""
        memory: Counter[str] = Counter()
        whole: defaultdict[str, list[str]] = defaultdict(list)
        for pod in self._objects.peek("pods"):
            uid = pod["metadata"]["uid"]
            given_node, annotations = self._given.get(uid, ("", {}))
            is_there = pod["spec"].get("nodeName") == node and (pod.get("status") or {}).get("phase") not in ENDED
            if given_node != node or not is_there:
                continue
            if self._history.edited.get(uid, math.inf) < began_at:
                return
            name = self._history.name(uid)
            for gpu in filter(None, annotations.get(GROUP_ANNOTATION, "").split(",")):
                whole[gpu].append(name)
            for shares in json.loads(annotations.get(ALLOCATION, "{}")).values():
                memory.update({gpu: int(units) for gpu, units in shares.items()})
        for gpu, units in memory.items():
            if units > GIB_PER_GPU:
                self._history.break_promise(f"GPU {gpu} of {node} is bound to pods of {units} GiB together")
        for gpu, names in whole.items():
            if len(names) > 1 or memory[gpu]:
                self._history.break_promise(f"GPU {gpu} of {node} is bound whole to {', '.join(names)}, and to others")


def _short(annotations: Mapping[str, str]) -> str:
    shown = ("ALIYUN_COM_GPU_MEM_IDX", GROUP_ANNOTATION, ALLOCATION)
    return ", ".join(f"{key.rpartition('/')[2]}={annotations[key]}" for key in shown if key in annotations)
