"""kube-scheduler and the controllers for pods with ResourceClaims, on the simulated machine.

The stand-in allocates. What it knows of ResourceSlices is behind, as an informer's knowledge is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.pods.quantity import amount
from gpuagent.simulation.boxes import Box
from simworld.claim_shapes import LINKED, WHOLE_CLASS
from simworld.history import WHOLE, History
from simworld.linked_gpus import gpus_of
from simworld.parts.amounts import is_by_class
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, kernel
from standin.api.objects import Json
from standin.scheduler.allocator import Devices, results
from standin.scheduler.scheduler import LOOK_S, ClaimScheduler

BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 10.0
"""kube-scheduler's own: the first wait of a pod that was refused, and the longest."""
USUAL_LAG_S = 0.02
LONG_LAG_S = 2.0
LONG_LAG_SHARE = 0.1
"""How often the slices are behind by up to `LONG_LAG_S` instead of `USUAL_LAG_S`."""
MIB = 1024 * 1024
SHARERS = 20
"""Claims of one GPU, by default."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a claim has of a GPU.

    Attributes:
        uuid: of the GPU.
        mib: consumed; 0 where the API server knows no consumable capacity, so that the GPU is whole.
        cores: percent of compute that are consumed.
        request: of the claim, as containers name it.
        watches: the request has `adminAccess`, so nothing is consumed.
        place: of the part in its claim, as two parts may be equal otherwise; the GPUs of a set have one place.
    """

    uuid: str
    mib: int
    cores: int = 0
    request: str = ""
    watches: bool = False
    place: int = 0


Allocations = Mapping[str, tuple[Part, ...]]
"""Parts by the UID of the claim."""


class SimulatedClaimScheduler(ClaimScheduler):
    """Allocates for pods with claims, and binds them.

    Attributes:
        allocated: what each pod was bound with, by its UID.
        used: the same for each of its containers that name claims, by the container's name: the parts that it names.
        linked: UIDs of the claims all of whose GPUs have to be linked.
        published: UUIDs of the GPUs of its node that the scheduler knew when it bound a pod, by the pod's UID, without
            those that a level of placement `spread` may hide from monitors.
        slices_late_s: how late slices are known now, at most; 0 as usual.
    """

    def __init__(self, api: SimulatedApi, history: History, boxes: Mapping[str, Box]) -> None:
        super().__init__(api.objects)
        self._api = api
        self._history = history
        self._process = Process("kube-scheduler")
        self._known_slices: list[Json] = []
        self._boxes = boxes
        self._gpus: dict[str, tuple[str, ...]] = {}
        self._tries: dict[str, int] = {}
        self._seen_at_try: dict[str, tuple[int, int]] = {}
        self._not_before: dict[str, float] = {}
        self.allocated: dict[str, Allocations] = {}
        self.used: dict[str, Mapping[str, Allocations]] = {}
        self.linked: set[str] = set()
        self.published: dict[str, frozenset[str]] = {}
        self.slices_late_s = 0.0

    def start(self) -> None:
        kernel().spawn(self._follow_slices, "kube-scheduler slices", self._process)
        kernel().spawn(self._run, "kube-scheduler claims", self._process)

    def _follow_slices(self) -> None:
        known = 0
        while True:
            known = self._changed_since(known)
            chance = kernel().chance
            most_s = LONG_LAG_S if chance.random() < LONG_LAG_SHARE else USUAL_LAG_S
            slices = self._objects.all("resourceslices")[0]
            most_s = max(most_s, self.slices_late_s)
            kernel().sleep(chance.random() * most_s)
            self._known_slices = slices

    def _changed_since(self, known: int) -> int:
        """Wait for a change of anything, and until the API server answers; the version then."""
        with self._objects.updated:
            if self._objects.version == known:
                self._objects.updated.wait(LOOK_S)
        while self._api.is_away:
            kernel().sleep(LOOK_S)
        return self._objects.version

    def _run(self) -> None:
        seen = 0
        while True:
            seen = self._changed_since(seen)
            kernel().sleep(kernel().chance.random() * 0.01)
            # One change at a time: nothing is allocated between a look at the claims and the write of one.
            with self._objects.updated:
                if not self._api.is_away:
                    self._turn()

    def _all(self, resource: str) -> list[Json]:
        # Nothing that the stand-in reads is changed by it, and copies would take most of the time.
        return list(self._objects.peek(resource))

    def _turn(self) -> None:
        super()._turn()
        for pod in self._all("pods"):
            is_new = is_by_class(pod) and not pod["spec"].get("nodeName")
            if is_new and "deletionTimestamp" not in pod["metadata"]:
                self._try(pod, self._schedule_by_class)

    def _schedule(self, pod: Json) -> None:
        self._try(pod, super()._schedule)

    def _try(self, pod: Json, schedule: Callable[[Json], None]) -> None:
        """Schedule a pod, as an event wakes it: something may have become free, and its back-off is over."""
        uid = pod["metadata"]["uid"]
        seen = self._what_may_be_free()
        if self._seen_at_try.get(uid) == seen or kernel().now < self._not_before.get(uid, 0.0):
            return
        schedule(pod)
        if uid not in self.allocated:
            self._seen_at_try[uid] = seen
            tries = self._tries.get(uid, 0)
            self._tries[uid] = tries + 1
            self._not_before[uid] = kernel().now + min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**tries)

    def _schedule_by_class(self, pod: Json) -> None:
        """Make a claim for the whole GPUs in the limits of a pod, on a node whose device plugins have none.

        Source: k8s.io/kubernetes v1.36.3, pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go.
        """
        classes = {known["metadata"]["name"]: known for known in self._all("deviceclasses")}
        claim = _claim_by_class(pod)
        for node in self._all("nodes"):
            name = node["metadata"]["name"]
            allocatable = node["status"].get("allocatable") or {}
            if int(allocatable.get(WHOLE, "0")):
                continue
            devices = Devices(self._slices(name), self._all("resourceclaims"))
            allocated = devices.allocate(claim, classes)
            if allocated:
                self._bind_by_class(pod, name, claim, allocated)
                return

    def _bind_by_class(self, pod: Json, node: str, claim: Json, allocated: list[Json]) -> None:
        """Write the claim, then the pod's status that names it, and then bind the pod."""
        metadata = pod["metadata"]
        created = self._objects.create("resourceclaims", metadata["namespace"], claim)
        names = [request["name"] for request in claim["spec"]["devices"]["requests"]]
        mappings = [
            {"containerName": container["name"], "resourceName": WHOLE, "requestName": name}
            for container, name in zip(pod["spec"]["containers"], names, strict=True)
        ]
        status = {"resourceClaimName": created["metadata"]["name"], "requestMappings": mappings}
        self._update(pod, lambda now: now["status"].update(extendedResourceClaimStatus=status))
        super()._bind(pod, node, [(created, allocated)])
        self._note_bound(pod, node, [(created, allocated)])
        uid = created["metadata"]["uid"]
        parts = self.allocated[metadata["uid"]][uid]
        self.used[metadata["uid"]] = {
            mapped["containerName"]: {uid: tuple(part for part in parts if part.request == mapped["requestName"])}
            for mapped in mappings
        }

    def _what_may_be_free(self) -> tuple[int, int]:
        """Another value as soon as a claim has gone or has lost its allocation, or slices have changed."""
        allocated = sum(bool(results(claim)) for claim in self._objects.peek("resourceclaims"))
        versions = sum(int(known["metadata"]["resourceVersion"]) for known in self._known_slices)
        return allocated, versions

    def _slices(self, node: str) -> list[Json]:
        return [known for known in self._known_slices if known["spec"].get("nodeName") == node]

    def _bind(self, pod: Json, node: str, allocations: list[tuple[Json, list[Json]]]) -> None:
        super()._bind(pod, node, allocations)
        self._note_bound(pod, node, allocations)
        # The stand-in takes the claims in the order in which the pod names them.
        uid = pod["metadata"]["uid"]
        names = [reference["name"] for reference in pod["spec"]["resourceClaims"]]
        by_name = dict(zip(names, self.allocated[uid].items(), strict=True))
        self.used[uid] = {
            container["name"]: _named_parts(container, by_name) for container in pod["spec"]["containers"]
        }

    def _note_bound(self, pod: Json, node: str, allocations: list[tuple[Json, list[Json]]]) -> None:
        """Keep what a pod was bound with."""
        metadata = pod["metadata"]
        self._read_gpus()
        self.published[metadata["uid"]] = self._gpus_without_level(node)
        self.allocated[metadata["uid"]] = {
            claim["metadata"]["uid"]: tuple(_parts(found, self._gpus)) for claim, found in allocations
        }
        self.linked.update(claim["metadata"]["uid"] for claim, _ in allocations if _is_linked(claim))
        devices = ", ".join(result["device"] for _, found in allocations for result in found)
        self._history.note("kube-scheduler", f"bound {metadata['name']} to {node} with {devices}")

    def _gpus_without_level(self, node: str) -> frozenset[str]:
        """UUIDs of the GPUs in the slices of a node that take as many sharers as a GPU can."""
        uuids: set[str] = set()
        for resource_slice in self._slices(node):
            for device in resource_slice["spec"].get("devices") or ():
                sharers = (device.get("capacity") or {}).get("sharers")
                if sharers and int(sharers["value"]) == SHARERS:
                    uuids.update(self._gpus[device["name"]])
        return frozenset(uuids)

    def _read_gpus(self) -> None:
        """Read the GPUs by the names of their devices; those of former slices stay known."""
        for known in (*self._known_slices, *self._objects.peek("resourceslices")):
            for device in known["spec"].get("devices") or ():
                # A set that has lost a GPU since is still published with the others, if a claim has it.
                self._gpus.setdefault(device["name"], gpus_of(device, self._boxes[known["spec"]["nodeName"]]))

    def allocated_devices(self) -> dict[str, tuple[str, ...]]:
        """UUIDs of each device of which a claim at the API server has a part. One that only watches it has none."""
        devices: dict[str, tuple[str, ...]] = {}
        for claim in self._objects.peek("resourceclaims"):
            for result in results(claim):
                if not result.get("adminAccess"):
                    devices[result["device"]] = self._gpus[result["device"]]
        return devices

    def allocations(self) -> Allocations:
        """What each claim at the API server has."""
        claims = self._objects.peek("resourceclaims")
        return {claim["metadata"]["uid"]: tuple(_parts(results(claim), self._gpus)) for claim in claims}

    def claimed_gpus(self, pod_uid: str) -> set[str]:
        """UUIDs of the GPUs that the claims of a pod use. Those that they only watch are free for others."""
        claims = self.allocated.get(pod_uid, {})
        return {part.uuid for parts in claims.values() for part in parts if not part.watches}


def _claim_by_class(pod: Json) -> Json:
    """The claim for the whole GPUs in the limits of a pod's containers."""
    requests = []
    for number, container in enumerate(pod["spec"]["containers"]):
        count = int(container["resources"]["limits"][WHOLE])
        exactly = {"deviceClassName": WHOLE_CLASS, "count": count}
        requests.append({"name": f"container-{number}-request-0", "exactly": exactly})
    metadata = pod["metadata"]
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "metadata": {
            "generateName": f"{metadata['name']}-extended-resources-",
            "ownerReferences": [owner],
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        },
        "spec": {"devices": {"requests": requests}},
    }


def _is_linked(claim: Json) -> bool:
    devices = claim["spec"]["devices"]
    constraints = devices.get("constraints") or ()
    return any(constraint["matchAttribute"] == LINKED for constraint in constraints)


def _parts(allocated: Iterable[Mapping[str, Any]], gpus: Mapping[str, tuple[str, ...]]) -> Iterator[Part]:
    """What a claim has, from the results of its allocation."""
    for place, result in enumerate(allocated):
        consumed = result.get("consumedCapacity") or {}
        memory = amount(consumed.get("memory", "0")) or 0
        cores = amount(consumed.get("cores", "0")) or 0
        # Containers name a request, and not the alternative of it that was allocated.
        request, _, _ = result["request"].partition("/")
        watches = bool(result.get("adminAccess"))
        if watches:
            memory = cores = 0
        for uuid in gpus[result["device"]]:
            yield Part(uuid, memory // MIB, cores, request, watches, place)


def _named_parts(container: Json, claims: Mapping[str, tuple[str, tuple[Part, ...]]]) -> Allocations:
    """The parts that a container names, by the UID of the claim.

    Args:
        container: of a pod.
        claims: UID and parts of each claim, by the pod's name for it.
    """
    named: dict[str, tuple[Part, ...]] = {}
    for reference in (container.get("resources") or {}).get("claims") or ():
        uid, parts = claims[reference["name"]]
        request = reference.get("request", "")
        chosen = [part for part in parts if request in ("", part.request)]
        named[uid] = (*named.get(uid, ()), *chosen)
    return named
