"""Kubelet's DRA manager: has drivers prepare the claims of a pod before its containers start, and unprepare them."""

from collections.abc import Collection, Iterator
from typing import Any

from gpuagent._pb import dra_v1_pb2 as pb
from standin.api.objects import Json, Objects
from standin.api.refusal import Refusal
from standin.kubelet.connection import CallError
from standin.kubelet.dra.claim_infos import ClaimInfo, ClaimInfos
from standin.kubelet.dra.driver import Driver, DriverCall
from standin.kubelet.dra.health import DeviceHealths
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.registry import DriverRegistry
from standin.kubelet.pods import StartError
from standin.scheduler.allocator import results
from standin.scheduler.scheduler import claim_names, extended_claim


class ClaimError(Exception):
    """Claims could not be prepared or unprepared; the text is kubelet's."""


class Claims:
    """Thread-safe. A call to a driver runs without a lock, so two pods with one claim call it twice at once."""

    def __init__(
        self, objects: Objects, registry: DriverRegistry, infos: ClaimInfos, healths: DeviceHealths, periods: Periods
    ) -> None:
        self._objects, self._registry, self._infos, self._periods = objects, registry, infos, periods
        self._healths = healths
        self.calls: list[DriverCall] = []

    def prepare(self, pod: Json) -> None:
        """Prepare what is not yet prepared by this kubelet. Raises ClaimError."""
        checked = [self._checked(pod, name) for name in claim_names(pod)]
        batches: dict[Driver, list[ClaimInfo]] = {}
        with self._infos.lock:
            new = []
            for found, drivers in checked:
                info = self._infos.infos.setdefault((found.namespace, found.name), found)
                if info.uid != found.uid:
                    text = f"old ResourceClaim with same name {info.name} and different UID {info.uid} still exists"
                    raise ClaimError(f"prepare dynamic resources: {text} (previous pod force-deleted?!)")
                info.pods.add(pod["metadata"]["uid"])
                self._infos.save()
                if not info.prepared:
                    new.append(info)
                    for driver in drivers:
                        batches.setdefault(driver, []).append(info)
        for driver, claims in batches.items():
            answer = self._call(driver, "NodePrepareResources", claims)
            with self._infos.lock:
                for info in claims:
                    for device in answer.claims[info.uid].devices:
                        info.add(driver.name, device)
        with self._infos.lock:
            for info in new:
                info.prepared = True
            self._infos.save()

    def unprepare(self, uid: str, namespace: str, names: Collection[str]) -> None:
        """Unprepare the claims that only this pod uses. Raises ClaimError."""
        batches: dict[str, list[ClaimInfo]] = {}
        last = []
        with self._infos.lock:
            for info in filter(None, (self._infos.infos.get((namespace, name)) for name in names)):
                if len(info.pods) > 1:
                    info.pods.discard(uid)
                    continue
                last.append(info)
                for driver in info.drivers:
                    batches.setdefault(driver, []).append(info)
        for driver, claims in batches.items():
            try:
                found = self._registry.get(driver)
            except CallError as error:
                raise ClaimError(f"unprepare dynamic resources: {error}") from error
            self._call(found, "NodeUnprepareResources", claims)
        with self._infos.lock:
            for info in last:
                self._infos.infos.pop((info.namespace, info.name), None)
            self._infos.save()

    def reconcile(self, active: Collection[str]) -> None:
        """Unprepare the claims of pods that are gone; what fails is tried again at the next look."""
        with self._infos.lock:
            gone = {(uid, one.namespace) for one in self._infos.infos.values() for uid in one.pods - set(active)}
            names = {key: [one.name for one in self._infos.infos.values() if key[0] in one.pods] for key in gone}
        for (uid, namespace), theirs in names.items():
            try:
                self.unprepare(uid, namespace, theirs)
            except ClaimError:
                continue

    def cdi_names(self, pod: Json, container: Json) -> list[str]:
        """CDI devices of a container. Raises StartError: kubelet has no claim that the container names."""
        devices: list[str] = []
        namespace = pod["metadata"]["namespace"]
        with self._infos.lock:
            for claim, _, request in self._named(pod, container):
                info = self._infos.infos.get((namespace, claim))
                # A pod that came while the claim was unprepared: the driver is not called for it again.
                if info is None:
                    text = f"unable to get claim info for ResourceClaim {claim} in namespace {namespace}"
                    raise StartError(f"internal error: {text}")
                devices += info.cdi_names(request)
        return devices

    def healths(self, pod: Json, container: Json) -> list[Json]:
        """``allocatedResourcesStatus`` of a container."""
        statuses: dict[str, list[Json]] = {}
        namespace = pod["metadata"]["namespace"]
        with self._infos.lock:
            for claim, name, request in self._named(pod, container):
                info = self._infos.infos.get((namespace, claim))
                # A real kubelet says nothing about extended resources either.
                if info is None or not name:
                    continue
                resource = f"claim:{name}/{request}" if request else f"claim:{name}"
                statuses[resource] = [*self._healths.entries(info.drivers, request)]
        return [{"name": name, "resources": resources} for name, resources in statuses.items() if resources]

    def pods_with(self, driver: str, devices: Collection[tuple[str, str]]) -> set[str]:
        """UIDs of the pods whose claims have one of these devices."""
        with self._infos.lock:
            return {
                uid
                for info in self._infos.infos.values()
                if any((one["PoolName"], one["DeviceName"]) in devices for one in info.drivers.get(driver, ()))
                for uid in info.pods
            }

    @staticmethod
    def _named(pod: Json, container: Json) -> Iterator[tuple[str, str, str]]:
        """What a container names: a claim, the pod's name for it, and a request of it. The last two may be empty."""
        names = [reference["name"] for reference in pod["spec"].get("resourceClaims", ())]
        claims = dict(zip(names, claim_names(pod), strict=False))
        for named in (container.get("resources") or {}).get("claims") or ():
            name = named["name"]
            yield claims[name], name, named.get("request", "")
        extended = extended_claim(pod)
        for mapped in extended.get("requestMappings") or ():
            if mapped["containerName"] == container["name"]:
                yield extended["resourceClaimName"], "", mapped["requestName"]

    def _checked(self, pod: Json, name: str) -> tuple[ClaimInfo, list[Driver]]:
        """The claim and its drivers, before anything is changed."""
        meta = pod["metadata"]
        try:
            claim = self._objects.get(("resourceclaims", meta["namespace"], name))
        except Refusal as refusal:
            raise ClaimError(f"prepare dynamic resources: fetch ResourceClaim {name}: {refusal}") from refusal
        uid = claim["metadata"]["uid"]
        if meta["uid"] not in {one["uid"] for one in (claim.get("status") or {}).get("reservedFor") or ()}:
            text = f"pod {meta['name']} ({meta['uid']}) is not allowed to use ResourceClaim {name} ({uid})"
            raise ClaimError(f"prepare dynamic resources: {text}")
        drivers = dict.fromkeys(one["driver"] for one in results(claim))
        if not drivers:
            raise ClaimError(f"prepare dynamic resources: ResourceClaim {name}: not allocated")
        try:
            found = [self._registry.get(driver) for driver in drivers]
        except CallError as error:
            raise ClaimError(f"prepare dynamic resources: {error}") from error
        return ClaimInfo(uid, name, meta["namespace"], drivers={driver: [] for driver in drivers}), found

    def _call(self, driver: Driver, method: str, claims: list[ClaimInfo]) -> Any:  # noqa: ANN401 - of two answers
        """Call about some claims; the answer has all of them. Raises ClaimError."""
        what = "prepare" if method == "NodePrepareResources" else "unprepare"
        request = getattr(pb, f"{method}Request")(
            claims=[pb.Claim(uid=one.uid, name=one.name, namespace=one.namespace) for one in claims]
        )
        uids = tuple(one.uid for one in claims)
        try:
            answer = driver.call(method, request, getattr(pb, f"{method}Response"), self._periods.call)
            failed = [f" failed for ResourceClaim {one.name}: {answer.claims[one.uid].error}" for one in claims
                      if one.uid in answer.claims and answer.claims[one.uid].error]  # fmt: skip
            left = len(claims) - len(answer.claims)
            problem = next(iter(failed), f" skipped {left} ResourceClaims" if left else "")
        except CallError as error:
            problem = f": {error}"
        self.calls.append(DriverCall(method, str(driver.endpoint), driver.service, uids, problem))
        if problem:
            raise ClaimError(f"{what} dynamic resources: {method}{problem}")
        return answer
