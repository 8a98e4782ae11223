"""The changes that bring the node's ResourceSlices to those that it should have."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.dra.resource_slice import is_known, slice_specs
from gpuagent.domain.node_state.claims import Claims
from gpuagent.domain.node_state.stored_slices import comparable, with_taints
from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, number, text
from gpuagent.domain.reconcile.slice_probe import probe_spec
from gpuagent.domain.sharing.mode import DRA_DRIVER, Mode
from gpuagent.domain.state import State

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A write of a slice.

    Attributes:
        name: of the slice.
        verb: ``create``, ``patch``, ``delete``, or ``probe``: a create of which nothing stays.
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
    claims = state.claims
    if not claims.followed or claims.superseded:
        return []
    prefix = slice_name(node_name)
    writes = []
    if claims.probes and state.node.mode is Mode.DRA:
        name = f"{prefix}-probe"
        probe = probe_spec(node_name, counters=state.policy.gpu_sets)
        writes.append(SliceWrite(name, "probe", _new(name, probe, state, node_name)))
    waits_for_answer = bool(writes) and not claims.probed
    if waits_for_answer or not is_known(state):
        return writes
    by_end = slice_specs(state, node_name)
    specs = {prefix + end: spec for end, spec in by_end.items()}
    generation = _generation(specs, claims)
    wanted = {name: _of_generation(spec, generation) for name, spec in specs.items()}
    for name, spec in wanted.items():
        is_missing = name not in claims.slices
        if is_missing:
            body = _new(name, spec, state, node_name)
            writes.append(SliceWrite(name, "create", body))
    writes += _changes(wanted, claims)
    return writes


def _of_generation(spec: Json, generation: int) -> Json:
    pool = {**spec["pool"], "generation": generation}
    return {**spec, "pool": pool}


def same_slices(state: State, other: State) -> bool:
    """Whether `slice_writes` must be the same for both: it takes milliseconds where sets of GPUs are published."""
    parts = ("policy", "gpus", "health", "node", "isolation", "claims")
    for name in parts:
        if getattr(state, name) is not getattr(other, name):
            return False
    if state.blocked != other.blocked:
        return False
    return is_known(state) == is_known(other)


def _changes(wanted: Mapping[str, Json], claims: Claims) -> Iterator[SliceWrite]:
    for name, present in claims.slices.items():
        metadata = mapping(present.get("metadata"))
        spec = mapping(present.get("spec"))
        # So the API server refuses the write if another client has changed the slice since it was read.
        precondition = {
            "uid": text(metadata.get("uid")),
            "resourceVersion": text(metadata.get("resourceVersion")),
        }
        if name not in wanted:
            yield SliceWrite(name, "delete", {"preconditions": precondition})
            continue
        is_current = comparable(spec) == comparable(wanted[name])
        if is_current or _is_answered(name, wanted[name], spec, claims):
            continue
        body = {
            "metadata": precondition,
            "spec": _with_times(wanted[name], spec),
        }
        yield SliceWrite(name, "patch", body)


def _is_answered(name: str, wanted: Json, present: Json, claims: Claims) -> bool:
    """Whether the API server made this of the wanted spec, so that another write of it would change nothing."""
    answer = claims.stored.get(name)
    if answer is None or name in claims.retried:
        return False
    if answer.sent != comparable(wanted):
        return False
    return answer.stored == comparable(present)


def _generation(wanted: Mapping[str, Json], claims: Claims) -> int:
    """The pool's generation, which rises when a device comes, goes or moves to another slice.

    The scheduler takes nothing of a pool until it sees as many slices of the newest generation as there should be.
    """
    specs = {}
    newest = 0
    for name, present in claims.slices.items():
        spec = mapping(present.get("spec"))
        specs[name] = spec
        newest = max(newest, _generation_of(spec))
    if not newest:
        return 1
    for name, spec in specs.items():
        # Slices of an older generation are rewritten anyway.
        is_newest = _generation_of(spec) == newest
        if is_newest and not _has_same_devices(name, spec, wanted, claims):
            return newest + 1
    return newest


def _has_same_devices(name: str, present: Json, wanted: Mapping[str, Json], claims: Claims) -> bool:
    """Whether a slice has the devices that it should have, as far as the API server stores them."""
    if name not in wanted:
        return False
    if _content(present) == _content(wanted[name]):
        return True
    sent = _of_generation(wanted[name], _generation_of(present))
    return _is_answered(name, sent, present, claims)


def _generation_of(spec: Json) -> int:
    pool = mapping(spec.get("pool"))
    return number(pool.get("generation")) or 0


def _content(spec: Json) -> tuple[object, ...]:
    """The part of a spec that is the same in all slices of one generation."""
    names = []
    for device in mappings(spec.get("devices")):
        name = text(device.get("name"))
        names.append(name)
    names.sort()
    counters = spec.get("sharedCounters")
    pool = mapping(spec.get("pool"))
    return names, counters, pool.get("resourceSliceCount")


def _new(name: str, spec: Json, state: State, node_name: str) -> Json:
    metadata: dict[str, Any] = {"name": name}
    node_metadata = mapping_at(state.node.object, "metadata")
    uid = text(node_metadata.get("uid"))
    if uid:
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node_name,
            "uid": uid,
            "controller": True,
        }
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    }


def _with_times(wanted: Json, present: Json) -> Json:
    """The wanted spec, in which taints that stay keep their times: a toleration may end some time after."""
    times = {}
    for device in mappings(present.get("devices")):
        name = text(device.get("name"))
        for taint in mappings(device.get("taints")):
            if "timeAdded" in taint:
                times[_identity(name, taint)] = taint["timeAdded"]

    def timed(device: str, taint: Json) -> Json:
        time = times.get(_identity(device, taint))
        if not time:
            return taint
        return {**taint, "timeAdded": time}

    return with_taints(wanted, timed)


def _identity(device: str, taint: Json) -> tuple[object, ...]:
    return device, taint.get("key"), taint.get("value"), taint.get("effect")
