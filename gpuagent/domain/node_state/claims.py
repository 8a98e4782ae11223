"""The node's ResourceClaims and ResourceSlices."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gpuagent.domain import events as ev
from gpuagent.domain.node_state.spread_pace import SpreadPace
from gpuagent.domain.node_state.stored_slices import StoredSlice, comparable
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.claim import PreparedClaim

WITHDRAWN_S = 10.0
"""How long a scheduler may still allocate a device of slices that were deleted."""

RETRY_S = 600.0
"""How often the API server is asked again which fields it keeps. It may have another version or other feature gates by
now, and an update of a slice does not show that: it keeps the fields that the slice has already."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Claims that are prepared, and the slices as the API server has them. Times are monotonic seconds.

    Attributes:
        prepared: by UID.
        awaited: namespaces and names of the claims of pods that kubelet has yet to start.
        spread_pace: how many claims each GPU may take under placement `spread`.
        slices: the node's ResourceSlices by name.
        followed: the watch of the slices has shown which there are.
        published: UUIDs of the GPUs of the slices, for `WITHDRAWN_S` after these are gone as well.
        withdrawn_at: when the last slice was seen to be gone.
        problem: why the slices cannot be followed.
        write_problem: why a slice cannot be written.
        stored: by name, the slices of which the API server stored something else than the agent sent.
        retried: names of those that are to be written once more, as the API server may have changed.
        gates_off: the feature gates whose fields the API server drops.
        probes: the API server is to be asked which fields it keeps.
        probed: it has answered that once, or does not say. The first slices wait for that.
        retry_at: when all of `stored` are retried, and the API server is asked again; infinite until the first answer.
        retry_problem: why kubelet cannot be made to prepare claims again.
        registered: kubelet accepts the driver.
        registration_problem: why not.
        superseded: a newer agent serves beside this one, which leaves to it what both would write.
    """

    prepared: Mapping[str, PreparedClaim] = field(default_factory=dict)
    awaited: frozenset[tuple[str, str]] = frozenset()
    spread_pace: SpreadPace = SpreadPace()
    slices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    followed: bool = False
    published: frozenset[str] = frozenset()
    withdrawn_at: float = float("-inf")
    problem: str | None = None
    write_problem: str | None = None
    stored: Mapping[str, StoredSlice] = field(default_factory=dict)
    retried: frozenset[str] = frozenset()
    gates_off: frozenset[str] = frozenset()
    probes: bool = True
    probed: bool = False
    retry_at: float = float("inf")
    retry_problem: str | None = None
    registered: bool = False
    registration_problem: str | None = None
    superseded: bool = False

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.ClaimsPrepared() | ev.PodsSeen():
                return self._claims_taken(event)
            case ev.DraRegistered():
                is_registered = event.problem is None
                return replace(self, registered=is_registered, registration_problem=event.problem)
            case ev.DraStopped():
                return replace(
                    self,
                    registered=False,
                    registration_problem=None,
                    superseded=False,
                )
            case ev.DraSuperseded():
                return replace(self, superseded=event.by_newer)
            case ev.PreparesTried():
                return replace(self, retry_problem=event.problem)
        return self._slices_taken(event)

    def _claims_taken(self, event: ev.ClaimsPrepared | ev.PodsSeen) -> Self:
        """Other claims are prepared or awaited."""
        if isinstance(event, ev.ClaimsPrepared):
            prepared = {claim.uid: claim for claim in event.claims}
            unprepared = _unprepared(self.awaited, event.claims)
            spread_pace = self.spread_pace.prepared(event.claims, event.at)
            spread_pace = spread_pace.awaited(unprepared, event.at)
            return replace(self, prepared=prepared, spread_pace=spread_pace)
        awaited = _awaited(event.pods)
        # The slices are made again whenever this value is another one, and most changes of pods are of no claim.
        if awaited == self.awaited:
            return self
        unprepared = _unprepared(awaited, self.prepared.values())
        spread_pace = self.spread_pace.awaited(unprepared, event.at)
        return replace(self, awaited=awaited, spread_pace=spread_pace)

    def _slices_taken(self, event: ev.Event) -> Self:
        match event:
            case ev.SliceWritten():
                return replace(self, write_problem=event.problem)
            case ev.SlicesSeen():
                return self._seen(event)
            case ev.ApiUnavailable(what="slices"):
                return replace(self, problem=event.reason)
            case ev.SliceStored():
                return self._answered(event)
            case ev.SliceProbed():
                return self._probed(event)
        return self._at(event.at)

    def _seen(self, event: ev.SlicesSeen) -> Self:
        """The slices are other ones."""
        published = self.published.union(*map(uuids_of, event.slices.values()))
        # A scheduler may have allocated from the slices a moment before.
        are_withdrawn = bool(self.slices) and not event.slices
        return replace(
            self,
            slices=event.slices,
            followed=True,
            published=published,
            withdrawn_at=event.at if are_withdrawn else self.withdrawn_at,
            problem=None,
        )

    def _answered(self, event: ev.SliceStored) -> Self:
        """Note the answer to a write of a slice."""
        name = event.name
        sent = comparable(event.sent)
        stored = comparable(event.stored)
        answer = StoredSlice(sent=sent, stored=stored)
        all_stored = dict(self.stored)
        all_stored.pop(name, None)
        if sent != stored:
            all_stored[name] = answer
        # The probe may have come to another API server of the cluster, or to an earlier one.
        gates_off = self.gates_off.union(answer.gates)
        # `retry_at` stays: on a busy node, each claim is followed by a write.
        return replace(
            self,
            stored=all_stored,
            retried=self.retried - {name},
            gates_off=gates_off,
        )

    def _probed(self, event: ev.SliceProbed) -> Self:
        """Note which fields the API server keeps."""
        if event.stored is None:
            # The answers to the writes have to show it. A gate that they have shown to be off stays so: to try would
            # publish unhealthy GPUs without their taints for a moment.
            gates_off = self.gates_off
        else:
            answer = StoredSlice(sent=event.sent, stored=event.stored)
            gates_off = frozenset(answer.gates)
        return replace(
            self,
            gates_off=gates_off,
            probes=False,
            probed=True,
            retry_at=event.at + RETRY_S,
        )

    def _at(self, at: float) -> Self:
        """The changes that time brings."""
        after = self
        until = self._withdrawn_until
        if until is not None and at >= until:
            after = replace(after, published=frozenset())
        if at >= self.retry_at:
            retried = frozenset(self.stored)
            after = replace(after, retried=retried, probes=True, retry_at=at + RETRY_S)
        spread_pace = self.spread_pace.at(at)
        # The slices are made again whenever this value is another one.
        if self.slices and spread_pace is not self.spread_pace:
            after = replace(after, spread_pace=spread_pace)
        return after

    @property
    def next(self) -> float | None:
        """Monotonic seconds when something changes without an event; None if nothing does."""
        due: list[float] = []
        if self._withdrawn_until is not None:
            due.append(self._withdrawn_until)
        if self.probed:
            due.append(self.retry_at)
        if self.slices:
            due.append(self.spread_pace.next)
        return min(due, default=None)

    @property
    def _withdrawn_until(self) -> float | None:
        """When `published` ends; None if it does not."""
        are_withdrawn = bool(self.published) and not self.slices
        return self.withdrawn_at + WITHDRAWN_S if are_withdrawn else None

    @property
    def devices(self) -> tuple[int, int]:
        """How many of the published GPUs are free of taints, and how many have one."""
        devices: list[Mapping[str, Any]] = []
        for resource_slice in self.slices.values():
            devices += gpus_of(resource_slice)
        tainted = sum(bool(device.get("taints")) for device in devices)
        return len(devices) - tainted, tainted

    @property
    def unreadable(self) -> bool:
        """Whether the record of a prepared claim cannot be read, so that the claim may have any GPU."""
        return not all(claim.gpus for claim in self.prepared.values())

    @property
    def held(self) -> frozenset[str]:
        """UUIDs of GPUs that prepared claims use."""
        uuids: set[str] = set()
        for claim in self.prepared.values():
            uuids.update(gpu.uuid for gpu in claim.used)
        return frozenset(uuids)


def _awaited(pods: Iterable[Pod]) -> frozenset[tuple[str, str]]:
    """Namespaces and names of the claims of pods that have no sandbox: kubelet makes it once they are prepared.

    The scheduler counts the claims until the pod has ended, also while the pod is being deleted.
    """
    awaited: set[tuple[str, str]] = set()
    for pod in pods:
        waits = not pod.ended and not pod.sandboxed
        if waits:
            awaited.update((pod.name.namespace, claim) for claim in pod.claims)
    return frozenset(awaited)


def _unprepared(awaited: Collection[tuple[str, str]], claims: Iterable[PreparedClaim]) -> int:
    """How many of the awaited claims are not among the prepared ones."""
    prepared = {(claim.namespace, claim.name) for claim in claims}
    return len(prepared.union(awaited)) - len(prepared)


def gpus_of(resource_slice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The devices of a ResourceSlice that are GPUs, each with its UUID."""
    spec = mapping(resource_slice.get("spec"))
    devices = mappings(spec.get("devices"))
    return [device for device in devices if _uuid(device)]


def uuids_of(resource_slice: Mapping[str, Any]) -> frozenset[str]:
    """UUIDs of the GPUs in a ResourceSlice."""
    return frozenset(map(_uuid, gpus_of(resource_slice)))


def _uuid(device: Mapping[str, Any]) -> str:
    attributes = mapping(device.get("attributes"))
    attribute = mapping(attributes.get("uuid"))
    return text(attribute.get("string"))
