"""What is said about a node that does not exist: most such names are mistyped."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuagent.domain.pods.json_values import mapping_at, text
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.pages import list_pages
from gpuagent.system.likeness import most_like
from inspectcgpu.combinations import COMMANDS
from inspectcgpu.flags import STATUS

MOST_COMPARED = 20
"""Names that are compared with those of the nodes. A line with more is not typed by hand."""
_LIKE = 0.75
"""From this likeness on, a name is probably mistyped. Nodes of a pool have names that are much alike."""
_VERBS = ("describe", "get", "top", "nodes", "node", "list", "show")
"""Commands of kubectl that are not commands of this plugin."""


def no_such_nodes(client: Client, names: Sequence[str]) -> list[str]:
    """A sentence about each of these names, with the node that was probably meant."""
    known = _gpu_nodes(client) if names else []
    sentences = []
    for position, name in enumerate(names):
        meant = _meant(name, known) if position < MOST_COMPARED else ""
        sentences.append(f"there is no node {name}{meant}")
    return sentences


def _meant(name: str, known: Sequence[str]) -> str:
    if name in _VERBS:
        return f"; the only command is {STATUS}, as in kubectl inspect cgpu {STATUS} NODE"
    if f"--{name}" in COMMANDS:
        return f"; did you mean --{name}?"
    meant = most_like(name, [STATUS, *known], _LIKE)
    return f"; did you mean {meant}?" if meant else ""


def _gpu_nodes(client: Client) -> list[str]:
    """Names of the nodes with a mode; none if they cannot be listed, as this only helps."""
    try:
        return list_pages(client, "/api/v1/nodes", _name, {"labelSelector": MODE_LABEL}).items
    except KubeError:
        return []


def _name(node: Mapping[str, Any]) -> str:
    return text(mapping_at(node, "metadata").get("name"))
