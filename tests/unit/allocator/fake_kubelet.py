"""A fake kubelet in front of a node and its allocator."""

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.announcement import Announcement
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.deviceplugin.admission.recent_allocations import RecentAllocations
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, PodName
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy, Grant
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.snapshot import Snapshot, snapshot
from gpuagent.isolation.interface import IsolationError, Need, Report, Starting
from tests.unit.domain.builders import NodeUnderTest, in_force


class FakeIsolation:
    name = "all"

    def __init__(self) -> None:
        self.refuses_to_prepare: str | None = None
        self.refuses_to_verify: str | None = None
        self.verified: list[ContainerRef | None] = []

    def start(self, report: Report) -> None: ...

    def desire(self, need: Need) -> None: ...

    def stop(self) -> None: ...

    def prepare(self, grant: Grant) -> Grant:
        if self.refuses_to_prepare:
            raise IsolationError(self.refuses_to_prepare)
        return grant

    def verify(self, grant: Grant, starting: Starting) -> None:
        if self.refuses_to_verify:
            raise IsolationError(self.refuses_to_verify)
        self.verified.append(starting.owner)


class FakeAllocations:
    """Kubelet's allocations.

    Attributes:
        admitting: the pod that kubelet admits; None: kubelet lists every pod, also those without devices.
        rejected: pods without devices that kubelet still lists.
        answers_queries: whether kubelet answers which pods it has.
        read_s: for how long kubelet lets a read of all allocations wait.
        published: takes the allocations that were read, as the agent's snapshot does.
    """

    def __init__(self) -> None:
        self.admitting: str | None = None
        self.rejected: set[str] = set()
        self.holdings: list[Holding] = []
        self.checkpoint: list[CheckpointEntry] = []
        self.answers_queries = True
        self.readable = True
        self.read_s = 0.0
        self.published: Callable[[], object] = lambda: None
        self.queries = self.reads = 0
        self.may_list: set[bool] = set()

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        self.queries += 1
        self.may_list.add(listing)
        if not self.answers_queries:
            return None
        if pods is None:
            names = {self.admitting, *self.rejected} - {None}
            pods = {h.owner.pod for h in self.holdings} | {PodName("ml", name) for name in names}
        held = {pod: [h for h in self.holdings if h.owner.pod == pod] for pod in pods}
        return [
            (pod, held[pod])
            for pod in pods
            if held[pod] or self.admitting in {None, pod.name} or pod.name in self.rejected
        ]

    def read(self, timeout_s: float) -> ev.HoldingsRead | None:
        self.reads += 1
        if not self.readable or timeout_s < self.read_s:
            return None
        self.published()
        return ev.HoldingsRead(tuple(self.holdings), 0.0, 0.0, tuple(self.checkpoint))


def check_cached(allocator: Allocator) -> None:
    """Check that the indexes that the allocator extends from call to call equal freshly computed ones."""
    cached = allocator.occupancy()
    record = RecentAllocations.of(cached.tracker.recent)
    computed = Occupancy(cached.snapshot, replace(cached.tracker, record=record))
    assert cached.tracker.by_pod == computed.tracker.by_pod
    assert cached.allocations == computed.allocations
    assert sorted(cached.full_gpus(None)) == sorted(computed.full_gpus(None))
    assert all(cached.has_of(one.ids) for one, _ in cached.allocations)
    for resource in cached.snapshot.resource_kinds:
        assert cached.free(resource) == computed.free(resource)
        assert cached.reserved(resource, None) == computed.reserved(resource, None)


class FakeKubelet:
    """Admits pods: asks the allocator for each container, and records what it allocates."""

    def __init__(self, node: NodeUnderTest, allocations: FakeAllocations | None = None) -> None:
        self.node = node
        self.allocations = allocations or FakeAllocations()
        self.isolation = FakeIsolation()
        self.events: list[tuple[PodName | None, str, str]] = []
        self.unseen: list[dict[str, Any]] | None = []
        """Pods that the API server has and the watch has not shown; None: it does not answer."""
        self.fetches = 0
        self.snap: Snapshot | None = None
        self.allocator = Allocator(
            clock=lambda: self.node.now,
            kubelet=self.allocations,
            isolation=dict.fromkeys(("all", "none"), self.isolation),
            strategy=DeviceStrategy.DEVICE_NODES,
            send_event=self._send_event,
            fetch=lambda pods, timeout_s: self.fetch(pods, timeout_s),
        )
        self.publish()

    def publish(self) -> None:
        if self.snap:
            check_cached(self.allocator)
        self.snap = snapshot(self.node.state, self.snap)
        self.allocator.publish(self.snap)

    def pods(self, *pods, together: bool = False) -> "FakeKubelet":
        self.node.pods(*pods, together=together)
        self.publish()
        return self

    def _send_event(self, announcement: Announcement) -> None:
        assert announcement.warning
        about = announcement.pods or (None,)
        self.events.extend((pod, announcement.reason, announcement.message) for pod in about)

    def fetch(self, pods: Collection[PodName] | None, timeout_s: float) -> frozenset[str] | None:
        self.fetches += 1
        if self.unseen is None:
            return None
        found = [pod for pod in self.unseen if pods is None or PodName("ml", pod["metadata"]["name"]) in pods]
        self.unseen = [pod for pod in self.unseen if pod not in found]
        complete = self.node.state.pods.known or pods is None
        if found or complete > self.node.state.pods.known:
            seen = (*self.node.state.pods.seen, *map(parse_pod, found))
            self.node.send(ev.PodsSeen(seen, self.node.now, complete))
            self.publish()
        return frozenset(pod["metadata"]["uid"] for pod in found)

    def read_allocations(self) -> "FakeKubelet":
        self.node.holdings(*self.allocations.holdings)
        self.publish()
        return self

    def free(self, resource: str) -> list[str]:
        held = {i for h in self.allocations.holdings for i in h.ids}
        return sorted(self.node.ids(resource) - held)

    def prefer(self, resource: str, size: int, must: Iterable[str] = ()) -> frozenset[str]:
        available = random.sample(sorted({*self.free(resource), *must}), len({*self.free(resource), *must}))
        return frozenset(self.allocator.prefer(resource, available, list(must), size))

    def serve(self, who: ContainerRef, resource: str, size: int, must: Iterable[str] = ()) -> Grant:
        """Admit one resource of one container: prefer, allocate, record."""
        before, self.allocations.admitting = self.allocations.admitting, who.pod.name
        ids = frozenset(must) if len(set(must)) == size else self.prefer(resource, size, must)
        share = self.allocator.allocate(resource, random.sample(sorted(ids), len(ids)))
        self.allocations.admitting = before
        self.allocations.holdings.append(Holding(who, resource, ids))
        return share

    def end(self, *pods: str) -> None:
        self.allocations.holdings = [h for h in self.allocations.holdings if h.owner.pod.name not in pods]

    def on(self, who: ContainerRef, resource: str) -> set[str]:
        ids = {i for h in self.allocations.holdings if h.owner == who and h.resource == resource for i in h.ids}
        return {self.snap.units[i] for i in ids}

    def refusal(self, call) -> Refusal:
        with pytest.raises(Refusal) as caught:
            call()
        self.allocator.report(caught.value)  # as the service does
        return caught.value


def kubelet_in_share(*gpus, **policy) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.SHARE, gpus or None, **policy))


def kubelet_in_core_mem(*gpus, **policy) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.CORE_MEM, gpus or None, **policy))
