"""Kubelet's allocations, as last read."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from gpuagent.domain import events as ev
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.exchange import by_units, picks_itself, unrecorded
from gpuagent.domain.pods.holdings import with_annotated_gpus
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, Pod, PodName

_T = TypeVar("_T")

_Uids = Mapping[tuple[str, str, frozenset[str]], str]
"""Container, resource and device ids to the UID of the pod that has them in the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """Kubelet's allocations at one moment.

    Attributes:
        listed: by the pod-resources API; None before the first read, and until then every resource is at zero.
        read_at: when the call that read them began. Monotonic seconds.
        checkpoint: kubelet's checkpoint as of the same moment.
        exchanged: ids in kubelet's allocations to the units in their place, for kubelets that do not ask which ids to
            take. Both `listed` and `checkpoint` have the units.
        kubelet: kubelet's version as the Node shows it (``v1.36.3``); empty if it is not available.
        problem: why the last read failed; the former allocations stay.
    """

    listed: tuple[Holding, ...] | None = None
    read_at: float = float("-inf")
    checkpoint: tuple[CheckpointEntry, ...] = ()
    exchanged: Mapping[str, str] = field(default_factory=dict)
    kubelet: str = ""
    problem: str | None = None

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.HoldingsRead():
                return self._read(event)
            case ev.HoldingsUnavailable():
                return replace(self, problem=event.reason)
            case ev.NodeSeen():
                return self._node_seen(event.node)
        return self

    def _node_seen(self, node: Mapping[str, Any]) -> Self:
        status = mapping(node.get("status"))
        info = mapping(status.get("nodeInfo"))
        version = text(info.get("kubeletVersion"))
        seen = replace(self, kubelet=version)
        if seen.counts_only and not self.counts_only:
            # The allocations were read as if kubelet's ids were units.
            return replace(seen, listed=None, read_at=float("-inf"))
        return seen

    def _read(self, event: ev.HoldingsRead) -> Self:
        if self.counts_only:
            unknown = unrecorded(event.holdings, event.checkpoint)
            if unknown:
                return replace(self, problem=f"kubelet's checkpoint does not show which units {unknown} was given")
        listed, checkpoint, exchanged = by_units(event.holdings, event.checkpoint)
        if self.listed is not None:
            listed = _kept(self.listed, listed, key=_holding_key)
        return replace(
            self,
            listed=listed,
            read_at=event.started_at,
            checkpoint=_kept(self.checkpoint, checkpoint, key=_entry_key),
            exchanged=exchanged,
            problem=None,
        )

    @cached_property
    def recorded(self) -> Mapping[tuple[str, str, str], frozenset[str]]:
        """UID of the pod, container and resource to device ids, by the checkpoint."""
        return {_entry_key(entry): entry.ids for entry in self.checkpoint}

    @property
    def uids(self) -> _Uids:
        """Container, resource and device ids to the UID of the pod that has them in the checkpoint."""
        return {(entry.container, entry.resource, entry.ids): entry.pod_uid for entry in self.checkpoint}

    @cached_property
    def pod_names(self) -> Mapping[str, PodName]:
        """UID of each pod with devices to its name: the checkpoint has UIDs, the pod-resources API has names.

        Pods are missing whose devices are listed by one of them only, such as those of init containers.
        """
        owners: dict[str, PodName] = {}
        for holding in self.listed or ():
            owners.update(dict.fromkeys(holding.ids, holding.owner.pod))
        names: dict[str, PodName] = {}
        for entry in self.checkpoint:
            name = next((owners[device_id] for device_id in entry.ids if device_id in owners), None)
            if name:
                names[entry.pod_uid] = name
        return names

    @property
    def counts_only(self) -> bool:
        """Whether kubelet picks ids itself, so that its ids are counts and do not identify a GPU."""
        return bool(self.exchanged) or picks_itself(self.kubelet, asked=True)


@dataclass(frozen=True)
class LivingHoldings:
    """Holdings of pods that have not ended (kubelet up to 1.33 lists those too), init containers' included.

    States share one of these as long as neither allocations nor pods change, so that it is worked out once.
    """

    allocations: Holdings
    pods: Pods

    def of(self, allocations: Holdings, pods: Pods) -> "LivingHoldings":
        """Those of other allocations and pods; itself if they are the same objects."""
        if allocations is self.allocations and pods is self.pods:
            return self
        return LivingHoldings(allocations, pods)

    @cached_property
    def all(self) -> tuple[Holding, ...]:
        """All of them."""
        pods = self.pods
        by_name = {pod.name: pod for pod in pods.seen}
        ended: set[PodName] = set()
        # While the watch is down, the agent does not see a new pod of the same name.
        if not pods.problem:
            ended = {pod.name for pod in pods.seen if pod.ended}
        uids = self.allocations.uids
        listed = []
        for holding in self.allocations.listed or ():
            name = holding.owner.pod
            if name not in ended:
                own = _of_their_uid(holding, by_name.get(name), uids)
                listed.append(own)
        return (*listed, *self._unlisted(listed))

    @cached_property
    def pods_by_uid(self) -> Mapping[str, Pod]:
        """Kubelet's UID of each pod to the pod. The API server has only a mirror of a static pod, with another UID.

        Which one mirrors which is taken from kubelet, because a tenant can write what a mirror's annotations say.
        """
        by_uid = {pod.uid: pod for pod in self.pods.seen}
        static = {pod.name: pod for pod in self.pods.seen if pod.static or pod.mirror}
        if static:
            for uid, name in self.allocations.pod_names.items():
                if name in static:
                    by_uid.setdefault(uid, static[name])
        return by_uid

    def _unlisted(self, listed: Collection[Holding]) -> Iterator[Holding]:
        """Holdings that only the checkpoint has: devices of living pods' ordinary init containers."""
        pods = self.pods
        living = {pod.uid: pod.name for pod in pods.seen if not pod.ended}
        known: set[str] = set()
        for holding in listed:
            known |= holding.ids
        for entry in self.allocations.checkpoint:
            uid = entry.pod_uid
            unlisted = entry.ids - known
            if not unlisted:
                continue
            # While the pods are not followed, one that the agent has not seen may live.
            name = living.get(uid) if pods.watched else PodName("", uid)
            if name is None:
                continue
            # The next init container reuses them.
            known |= unlisted
            owner = ContainerRef(name, entry.container)
            yield Holding(owner, entry.resource, unlisted)


def _kept(
    former: tuple[_T, ...],
    values: tuple[_T, ...],
    key: Callable[[_T], object],
) -> tuple[_T, ...]:
    """`values` with the objects of `former` that are equal, and `former` itself if all are.

    What was worked out from an object then still holds, so that a read costs by what has changed.
    """
    known = {key(value): value for value in former}
    kept = []
    for value in values:
        old = known.get(key(value), value)
        kept.append(old if old == value else value)
    if len(kept) != len(former):
        return tuple(kept)
    # They may come in another order.
    has_same_objects = _identities(kept) == _identities(former)
    return former if has_same_objects else tuple(kept)


def _holding_key(holding: Holding) -> tuple[ContainerRef, str]:
    return holding.owner, holding.resource


def _entry_key(entry: CheckpointEntry) -> tuple[str, str, str]:
    return entry.pod_uid, entry.container, entry.resource


def _identities(values: Iterable[object]) -> set[int]:
    return set(map(id, values))


def _of_their_uid(holding: Holding, pod: Pod | None, uids: _Uids) -> Holding:
    """Correct the owner by UID: kubelet lists terminating pods by name, and a new pod may have the name already."""
    holding = with_annotated_gpus(holding, pod)
    # For a static pod, kubelet has another UID than the API server.
    if pod is None or pod.static:
        return holding
    container = holding.owner.container
    uid = uids.get((container, holding.resource, holding.ids)) or pod.uid
    if uid == pod.uid:
        return holding
    return replace(holding, owner=ContainerRef(PodName("", uid), container))
