"""Which nodes kube-scheduler names to an extender: those that have room, or in a large cluster a part of them."""

import random
from collections.abc import Iterable, Iterator, Sequence

from simworld.parts.amounts import ENDED, fits
from standin.api.objects import Json


def nodes_to_name(
    pod: Json, nodes: Sequence[Json], pods: Sequence[Json], chance: random.Random | None
) -> Iterator[list[str]]:
    """Names of the nodes of each call, until one of them is answered with a node.

    The node that a pod is nominated for comes first, alone. Then all that have room do; with `chance`, a part of them
    that it draws. Pods that are nominated for a node count there.
    """
    counted = [*pods, *_nominated(pods)]
    nominee = (pod.get("status") or {}).get("nominatedNodeName") or ""
    others = [other for other in counted if other["metadata"]["uid"] != pod["metadata"]["uid"]]
    roomy = [node["metadata"]["name"] for node in nodes if fits(pod, node, others)]
    if nominee in roomy:
        yield [nominee]
    if chance is None or len(roomy) < 2:
        yield roomy
    else:
        yield chance.sample(roomy, chance.randrange(1, len(roomy) + 1))


def _nominated(pods: Iterable[Json]) -> Iterator[Json]:
    """Pods that wait, as if they were on the nodes that they are nominated for."""
    for pod in pods:
        status = pod.get("status") or {}
        node = status.get("nominatedNodeName")
        is_waiting = not pod["spec"].get("nodeName") and status.get("phase") not in ENDED
        if node and is_waiting:
            yield {**pod, "spec": {**pod["spec"], "nodeName": node}}
