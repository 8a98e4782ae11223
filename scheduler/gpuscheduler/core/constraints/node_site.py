"""What rules about nodes look at: labels and taints of a node, with GPUs or without."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuscheduler.core.constraints.labels import NO_LABELS, Labels, labels_of_node

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""The taint that stands for a cordoned node."""
HOSTNAME = "kubernetes.io/hostname"
"""The label of nodes by which each is a domain of its own."""


class Taint(NamedTuple):
    """A taint that keeps pods off."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeSite:
    """A node, as rules see it.

    Attributes:
        name: of the Node.
        labels: of the Node.
        taints: those that keep off pods which are not on it.
        cordoned: it takes no pods, except for those that tolerate it.
    """

    name: str = ""
    labels: Labels = NO_LABELS
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False


def node_site(node: Mapping[str, Any]) -> NodeSite:
    """Read a Node object (decoded JSON)."""
    metadata = mapping(node.get("metadata"))
    spec = mapping(node.get("spec"))
    taints: list[Taint] = []
    for taint in mappings(spec.get("taints")):
        effect = text(taint.get("effect"))
        # PreferNoSchedule keeps no pod off.
        if effect in {"NoSchedule", "NoExecute"}:
            taints.append(Taint(text(taint.get("key")), text(taint.get("value")), effect))
    return NodeSite(
        name=text(metadata.get("name")),
        labels=labels_of_node(mapping(metadata.get("labels"))),
        taints=_first(tuple(taints)),
        cordoned=spec.get("unschedulable") is True,
    )


@lru_cache(maxsize=4096)
def _first(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    """The first value that was equal to this one."""
    return taints
