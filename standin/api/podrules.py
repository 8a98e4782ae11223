"""An API server's rules for pods that a scheduler changes: bindings and scheduling gates."""

from typing import Any

from standin.api.refusal import Refusal

Json = dict[str, Any]

_KEY = "/registry/pods"


def bound(pod: Json, binding: Json) -> Json:
    """Bind the pod as one change: node, annotations, condition. Raises Refusal 400, 404, 409, 500."""
    meta, wanted = pod["metadata"], binding.get("metadata") or {}
    name = meta["name"]
    if wanted.get("name", "") != name:
        raise Refusal(400, "BadRequest", "name in URL does not match name in Binding object")
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise Refusal(500, "", "target.name: Required value")
    for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field, meta[field]) != meta[field]:
            clash = f"{word} in precondition: {wanted[field]}, {word} in object meta: {meta[field]}"
            where = f"Key: {_KEY}/{meta['namespace']}/{name}, ResourceVersion: 0"
            text = f"StorageError: invalid object, Code: 4, {where}, AdditionalErrorMsg: Precondition failed: {clash}"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on pods "{name}": {text}')
    spec = pod["spec"]
    refused = (
        (meta.get("deletionTimestamp"), f"pod {name} is being deleted, cannot be assigned to a host"),
        (spec.get("nodeName"), f'pod {name} is already assigned to node "{spec.get("nodeName")}"'),
        (spec.get("schedulingGates"), f"pod {name} has non-empty .spec.schedulingGates"),
    )
    for why, text in refused:
        if why:
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": {text}')
    spec["nodeName"] = node
    meta["annotations"] = {**(meta.get("annotations") or {}), **(wanted.get("annotations") or {})}
    status = pod.setdefault("status", {})
    others = [one for one in status.get("conditions", ()) if one["type"] != "PodScheduled"]
    status["conditions"] = [*others, {"type": "PodScheduled", "status": "True"}]
    return pod


def check_gates(before: Json, after: Json) -> None:
    """Raise Refusal 422 for a new scheduling gate: they can only be removed."""
    there = {gate["name"] for gate in (before.get("spec") or {}).get("schedulingGates") or ()}
    for number, gate in enumerate((after.get("spec") or {}).get("schedulingGates") or ()):
        if gate["name"] not in there:
            text = f"only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            where = f"spec.schedulingGates[{number}].name: Forbidden: {text}"
            raise Refusal(422, "Invalid", f'Pod "{before["metadata"]["name"]}" is invalid: {where}')
