"""The change that brings the node's ResourceSlice to the one that it should have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.dra.resource_slice import is_known, slice_spec
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.domain.state import State

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A write of the slice.

    Attributes:
        verb: ``create``, ``patch`` or ``delete``.
        body: of the request; None for a deletion without a condition.
    """

    verb: str
    body: Json


def slice_name(node_name: str) -> str:
    """Name of the node's slice."""
    return f"{node_name}-{DRA_DRIVER}"


def slice_write(state: State, node_name: str) -> SliceWrite | None:
    """The write that is needed now; None if the slice is as it should be, or that is not known yet."""
    if not state.claims.followed or not is_known(state):
        return None
    wanted, found = slice_spec(state, node_name), state.claims.slice
    if found is None:
        return SliceWrite("create", _new(wanted, state, node_name)) if wanted else None
    meta = mapping(found.get("metadata"))
    precondition = {"uid": text(meta.get("uid")), "resourceVersion": text(meta.get("resourceVersion"))}
    if wanted is None:
        return SliceWrite("delete", {"preconditions": precondition})
    if _spoken(mapping(found.get("spec"))) == wanted:
        return None
    return SliceWrite("patch", {"metadata": precondition, "spec": wanted})


def _new(spec: Json, state: State, node_name: str) -> Json:
    metadata: dict[str, Any] = {"name": slice_name(node_name)}
    if uid := text(mapping(mapping(state.node.object).get("metadata")).get("uid")):
        owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _spoken(spec: Json) -> Json:
    """The spec without what the API server adds: when each taint came."""

    def plain(device: Json) -> Json:
        if "taints" not in device:
            return device
        taints = [{k: v for k, v in one.items() if k != "timeAdded"} for one in mappings(device["taints"])]
        return {**device, "taints": taints}

    return {**spec, "devices": [plain(device) for device in mappings(spec.get("devices"))]}
