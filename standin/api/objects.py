"""The store of the stand-in API server: objects with versions, and the log of changes that watches read."""

import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from standin.api.configmaps import check_config_map
from standin.api.patching import merge
from standin.api.podrules import check_gates
from standin.api.refusal import Refusal
from standin.api.slices import check_slice, drop_fields, gates_in_use
from standin.api.timestamps import timestamp

Json = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace ("" for nodes), name

KINDS = {
    "nodes": "Node",
    "namespaces": "Namespace",
    "pods": "Pod",
    "events": "Event",
    "configmaps": "ConfigMap",
    "leases": "Lease",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "deviceclasses": "DeviceClass",
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "statefulsets": "StatefulSet",
    "daemonsets": "DaemonSet",
    "jobs": "Job",
    "jobsets": "JobSet",
    "podgroups": "PodGroup",
    "workloads": "Workload",
}
CUSTOM = {"jobsets": "jobset.x-k8s.io", "podgroups": "scheduling.x-k8s.io", "workloads": "kueue.x-k8s.io"}
"""Resources that are served once they are installed, to their groups."""
GROUPS = {
    "leases": "coordination.k8s.io",
    **CUSTOM,
    "jobs": "batch",
    **dict.fromkeys(("deployments", "replicasets", "statefulsets", "daemonsets"), "apps"),
    **dict.fromkeys(("resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses"), "resource.k8s.io"),
}
"""API groups of resources; the others are in the core group."""
CLUSTER_WIDE = {"nodes", "namespaces", "resourceslices", "deviceclasses"}
_LOG = 1000
_MAX_ANNOTATIONS_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log; ``before`` is None for a new object, ``after`` None for a deleted one."""

    version: int
    key: Key
    before: Json | None
    after: Json | None


_Value = TypeVar("_Value")


def copied(value: _Value) -> _Value:
    """A copy of decoded JSON, many times faster than a general one."""
    made: Any = value
    if isinstance(value, dict):
        made = {key: copied(inner) for key, inner in value.items()}
    elif isinstance(value, list):
        made = [copied(inner) for inner in value]
    return made  # type: ignore[no-any-return]


def not_found(resource: str, name: str) -> Refusal:
    """Return the 404."""
    return Refusal(404, "NotFound", f'{".".join(filter(None, (resource, GROUPS.get(resource))))} "{name}" not found')


def status(refusal: Refusal) -> Json:
    """Return the Status object of a refusal."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(refusal),
        "reason": refusal.reason,
        "code": refusal.code,
    }


def _may_go(found: Json) -> bool:
    """Whether the last finalizer is gone from a deleted object."""
    metadata = found["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


class Objects:
    """Thread-safe; every object that goes in or out is a copy. ``news`` is notified with every change."""

    def __init__(self) -> None:
        self.updated = threading.Condition(threading.RLock())
        self.version = 1
        self.oldest = 0
        self.gates_off: set[str] = set()
        """Feature gates whose fields of ResourceSlices are dropped."""
        self._objects: dict[Key, Json] = {}
        self._by_resource: dict[str, dict[Key, Json]] = {resource: {} for resource in KINDS}
        self._log: deque[Change] = deque(maxlen=_LOG)

    def get(self, key: Key) -> Json:
        """Return one object. Raises Refusal 404."""
        with self.updated:
            if key not in self._objects:
                raise not_found(key[0], key[2])
            return copied(self._objects[key])

    def stored(self, key: Key) -> Json:
        """The object itself, for a change that no real server would make."""
        return self._objects[key]

    def all(self, resource: str, namespace: str = "") -> tuple[list[Json], int]:
        """Return the objects of a resource, of one namespace or ("") of all, and the version of this look."""
        with self.updated:
            found = [
                copied(value)
                for (_, where, _), value in self._by_resource[resource].items()
                if namespace in ("", where)
            ]
            return found, self.version

    def peek(self, resource: str) -> list[Json]:
        """The objects of a resource themselves: to be read, never to be changed, and only until the next change."""
        return list(self._by_resource[resource].values())

    def create(self, resource: str, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        """Store a new object with uid, version and creation time, or only show it. Raises Refusal 409, 422."""
        made = copied(body)
        metadata = made.setdefault("metadata", {})
        name = metadata.get("name") or (
            metadata["generateName"] + uuid.uuid4().hex[:5] if "generateName" in metadata else ""
        )
        if not name:
            raise Refusal(422, "Invalid", f"{KINDS[resource]} is invalid: metadata.name: Required value")
        key = (resource, "" if resource in CLUSTER_WIDE else namespace, name)
        metadata |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        if key[1]:
            metadata["namespace"] = key[1]
        with self.updated:
            if key in self._objects:
                raise Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
            if dry_run:
                self._check(key, made)
                return made
            return self._store(key, made)

    def update(self, key: Key, change: Callable[[Json], Json]) -> Json:
        """Replace an object by what ``change`` makes of a copy of it. Raises Refusal 404, 409 (old version), 422."""
        with self.updated:
            before = self.get(key)
            after = change(self.get(key))
            if after["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
                text = "the object has been modified; please apply your changes to the latest version and try again"
                raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {key[0]} "{key[2]}": {text}')
            if (uid := after["metadata"].get("uid")) not in (None, before["metadata"]["uid"]):
                text = f'metadata.uid: Invalid value: "{uid}": field is immutable'
                raise Refusal(422, "Invalid", f'{KINDS[key[0]]} "{key[2]}" is invalid: {text}')
            for fixed in ("name", "namespace", "uid", "creationTimestamp"):
                if fixed in before["metadata"]:
                    after["metadata"][fixed] = before["metadata"][fixed]
            if "finalizers" in before["metadata"] and _may_go(after):
                return self._drop(key, after)
            return before if after == before else self._store(key, after)

    def patch(self, key: Key, subresource: str, patch: Json, *, strategic: bool) -> Json:
        """Merge ``patch`` in: status only through the subresource, everything else of spec only without it."""

        def merged(before: Json) -> Json:
            after: Json = merge(before, patch, strategic=strategic)
            if key[0] in ("nodes", "pods"):
                kept = "spec" if subresource == "status" else "status"
                after.pop(kept, None)
                after |= {kept: before[kept]} if kept in before else {}
            if key[0] == "pods":
                check_gates(before, after)
            return after

        return self.update(key, merged)

    def delete(self, key: Key, *, grace_s: int | None = 0, preconditions: Mapping[str, str] | None = None) -> Json:
        """Delete; a bound pod with a grace (None: 30 s) only gets its deletionTimestamp, as before its kubelet acts.

        A pod that has ended has no grace. An object with finalizers stays until they are gone.

        Raises Refusal 404, 409 (``preconditions`` name another object or version).
        """
        with self.updated:
            found = self.get(key)
            for field, named in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                there, wanted = found["metadata"][field], (preconditions or {}).get(field)
                if wanted not in (None, there):
                    clash = f"the {named} in the precondition ({wanted}) does not match the {named} in record ({there})"
                    text = f'Operation cannot be fulfilled on {KINDS[key[0]]} "{key[2]}": {clash}'
                    raise Refusal(409, "Conflict", f"{text}. The object might have been modified")
            ended = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if key[0] != "pods" or ended or not found.get("spec", {}).get("nodeName"):
                grace_s = 0
            if grace_s != 0 or found["metadata"].get("finalizers"):
                found["metadata"].setdefault("deletionTimestamp", timestamp())
                found["metadata"]["deletionGracePeriodSeconds"] = 30 if grace_s is None else grace_s
                return self.update(key, lambda _: found)
            return self._drop(key, found)

    def check(self, since: int) -> None:
        """Raise Refusal 410 where what happened after version ``since`` is no longer known."""
        with self.updated:
            if since < self.oldest:
                raise Refusal(410, "Expired", f"too old resource version: {since} ({self.version})")

    def changes(self, since: int) -> list[Change]:
        """Return what happened after version ``since``."""
        with self.updated:
            newest_first = itertools.takewhile(lambda change: change.version > since, reversed(self._log))
            return list(newest_first)[::-1]

    def forget(self) -> None:
        """Let every version so far be too old to watch from."""
        with self.updated:
            self.version += 1
            self.oldest = self.version

    def _drop(self, key: Key, found: Json) -> Json:
        del self._objects[key]
        del self._by_resource[key[0]][key]
        self._note(key, found, None)
        return found

    def _store(self, key: Key, found: Json) -> Json:
        before = self._objects.get(key)
        self._check(key, found)
        self._objects[key] = found
        self._by_resource[key[0]][key] = found
        found |= {"kind": KINDS[key[0]], "apiVersion": f"{GROUPS[key[0]]}/v1" if key[0] in GROUPS else "v1"}
        found["metadata"]["resourceVersion"] = str(self.version + 1)
        self._note(key, before, found)
        return copied(found)

    def _check(self, key: Key, found: Json) -> None:
        """Make of an object what is stored of it. Raises Refusal 422."""
        before = self._objects.get(key)
        annotations = found["metadata"].get("annotations") or {}
        if sum(len(part.encode()) for pair in annotations.items() for part in pair) > _MAX_ANNOTATIONS_BYTES:
            text = f"metadata.annotations: Too long: may not be more than {_MAX_ANNOTATIONS_BYTES} bytes"
            raise Refusal(422, "Invalid", f'{KINDS[key[0]]} "{key[2]}" is invalid: {text}')
        if key[0] == "configmaps":
            check_config_map(before, found)
        if key[0] == "resourceslices":
            drop_fields(found, self.gates_off - gates_in_use(before))
            check_slice(found)

    def _note(self, key: Key, before: Json | None, after: Json | None) -> None:
        self.version += 1
        if len(self._log) == _LOG:
            self.oldest = self._log[0].version
        self._log.append(Change(self.version, key, before, None if after is None else copied(after)))
        self.updated.notify_all()
