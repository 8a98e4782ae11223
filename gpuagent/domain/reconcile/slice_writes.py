"""The changes that bring the node's ResourceSlices to those that it should have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.dra.resource_slice import is_known, slice_specs
from gpuagent.domain.node_state.claims import Claims
from gpuagent.domain.node_state.stored_slices import with_taints, without_times
from gpuagent.domain.pods.json_values import mapping, mappings, number, text
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.domain.state import State

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A write of a slice.

    Attributes:
        name: of the slice.
        verb: ``create``, ``patch`` or ``delete``.
        body: of the request.
    """

    name: str
    verb: str
    body: Json


def slice_name(node_name: str) -> str:
    """Name of the slice with the node's GPUs, with which the names of its other slices begin."""
    return f"{node_name}-{DRA_DRIVER}"


def slice_writes(state: State, node_name: str) -> list[SliceWrite]:
    """The writes that are needed now; none if the slices are as they should be, or that is not known yet."""
    if not state.claims.followed or state.claims.superseded or not is_known(state):
        return []
    specs = {slice_name(node_name) + end: spec for end, spec in slice_specs(state, node_name).items()}
    found = state.claims.slices
    stored = {name: mapping(one.get("spec")) for name, one in found.items()}
    generation = _generation(specs, stored, state.claims)
    wanted = {name: {**spec, "pool": {**spec["pool"], "generation": generation}} for name, spec in specs.items()}
    new = [
        SliceWrite(name, "create", _new(name, spec, state, node_name))
        for name, spec in wanted.items()
        if name not in found
    ]
    return [*new, *_changes(wanted, state.claims)]


def same_slices(state: State, other: State) -> bool:
    """Whether `slice_writes` must be the same for both: it takes milliseconds where sets of GPUs are published."""
    parts = ("policy", "gpus", "health", "node", "isolation", "claims")
    same = all(getattr(state, name) is getattr(other, name) for name in parts)
    return same and state.blocked == other.blocked and is_known(state) == is_known(other)


def _changes(wanted: Mapping[str, Json], claims: Claims) -> Iterator[SliceWrite]:
    for name, one in claims.slices.items():
        meta, spec = mapping(one.get("metadata")), mapping(one.get("spec"))
        precondition = {"uid": text(meta.get("uid")), "resourceVersion": text(meta.get("resourceVersion"))}
        if name not in wanted:
            yield SliceWrite(name, "delete", {"preconditions": precondition})
        elif without_times(spec) != wanted[name] and not _is_answered(name, wanted[name], spec, claims):
            yield SliceWrite(name, "patch", {"metadata": precondition, "spec": _with_times(wanted[name], spec)})


def _is_answered(name: str, wanted: Json, found: Json, claims: Claims) -> bool:
    """Whether the API server made this of the wanted spec, so that another write of it would change nothing."""
    answer = claims.stored.get(name)
    if answer is None or name in claims.retried:
        return False
    return answer.sent == wanted and answer.stored == without_times(found)


def _generation(wanted: Mapping[str, Json], found: Mapping[str, Json], claims: Claims) -> int:
    """The pool's generation, which rises when a device comes, goes or moves to another slice.

    The scheduler takes nothing of a pool until it sees as many slices of the newest generation as there should be.
    """
    newest = max((_generation_of(spec) for spec in found.values()), default=0)
    current = {name: spec for name, spec in found.items() if _generation_of(spec) == newest}

    def is_same(name: str, spec: Json) -> bool:
        if name not in wanted or _content(spec) == _content(wanted[name]):
            return name in wanted
        same_pool = {**wanted[name]["pool"], "generation": newest}
        return _is_answered(name, {**wanted[name], "pool": same_pool}, spec, claims)

    same = all(is_same(name, spec) for name, spec in current.items())
    return newest if newest and same else newest + 1


def _generation_of(spec: Json) -> int:
    return number(mapping(spec.get("pool")).get("generation")) or 0


def _content(spec: Json) -> tuple[object, ...]:
    """The part of a spec that is the same in all slices of one generation."""
    names = sorted(text(device.get("name")) for device in mappings(spec.get("devices")))
    return names, spec.get("sharedCounters"), mapping(spec.get("pool")).get("resourceSliceCount")


def _new(name: str, spec: Json, state: State, node_name: str) -> Json:
    metadata: dict[str, Any] = {"name": name}
    if uid := text(mapping(mapping(state.node.object).get("metadata")).get("uid")):
        owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _with_times(wanted: Json, found: Json) -> Json:
    """The wanted spec, in which taints that stay keep their times: a toleration may end some time after."""
    times = {
        _named(text(device.get("name")), taint): taint["timeAdded"]
        for device in mappings(found.get("devices"))
        for taint in mappings(device.get("taints"))
        if "timeAdded" in taint
    }

    def timed(device: str, taint: Json) -> Json:
        at = times.get(_named(device, taint))
        return {**taint, "timeAdded": at} if at else taint

    return with_taints(wanted, timed)


def _named(device: str, taint: Json) -> tuple[object, ...]:
    return device, taint.get("key"), taint.get("value"), taint.get("effect")
