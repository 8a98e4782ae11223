"""Kubelet's allocations, as last read."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

from gpuagent.domain import events as ev
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.exchange import by_units, picks_itself, unrecorded
from gpuagent.domain.pods.holdings import with_annotated_gpus
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.pods.pod import CheckpointEntry, ContainerRef, Holding, Pod, PodName

_T = TypeVar("_T")


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
                info = mapping(mapping(event.node.get("status")).get("nodeInfo"))
                seen = replace(self, kubelet=text(info.get("kubeletVersion")))
                # These were read as if kubelet's ids were units.
                misread = seen.counts_only and not self.counts_only
                return replace(seen, listed=None, read_at=float("-inf")) if misread else seen
        return self

    def _read(self, event: ev.HoldingsRead) -> Self:
        if self.counts_only and (unknown := unrecorded(event.holdings, event.checkpoint)):
            return replace(self, problem=f"kubelet's checkpoint does not show which units {unknown} was given")
        listed, checkpoint, exchanged = by_units(event.holdings, event.checkpoint)
        if self.listed is not None:
            listed = _kept(self.listed, listed, key=lambda one: (one.owner, one.resource))
        checkpoint = _kept(self.checkpoint, checkpoint, key=lambda one: (one.pod_uid, one.container, one.resource))
        return replace(
            self, listed=listed, read_at=event.started_at, checkpoint=checkpoint, exchanged=exchanged, problem=None
        )

    @cached_property
    def recorded(self) -> Mapping[tuple[str, str, str], frozenset[str]]:
        """UID of the pod, container and resource to device ids, by the checkpoint."""
        return {(one.pod_uid, one.container, one.resource): one.ids for one in self.checkpoint}

    @property
    def counts_only(self) -> bool:
        """Whether kubelet picks ids itself, so that its ids are counts and do not identify a GPU."""
        return bool(self.exchanged) or picks_itself(self.kubelet, asked=True)

    def living(self, pods: Pods) -> tuple[Holding, ...]:
        """Holdings of pods that have not ended (kubelet up to 1.33 lists those too), init containers' included."""
        last: tuple[Pods, tuple[Holding, ...]] | None = vars(self).get("_living")
        if last is None or last[0] is not pods:
            last = vars(self)["_living"] = pods, self._of_living(pods)
        return last[1]

    def _of_living(self, pods: Pods) -> tuple[Holding, ...]:
        # While the watch is down, the agent does not see a new pod of the same name.
        ended = set() if pods.problem else {pod.name for pod in pods.seen if pod.ended}
        by_name = {pod.name: pod for pod in pods.seen}
        uids = {(entry.container, entry.resource, entry.ids): entry.pod_uid for entry in self.checkpoint}
        here = (holding for holding in self.listed or () if holding.owner.pod not in ended)
        listed = [_of_their_uid(holding, by_name.get(holding.owner.pod), uids) for holding in here]
        return (*listed, *self._unlisted(listed, pods))

    def _unlisted(self, listed: Collection[Holding], pods: Pods) -> Iterator[Holding]:
        """Holdings that only the checkpoint has: devices of living pods' ordinary init containers."""
        living = {pod.uid: pod.name for pod in pods.seen if not pod.ended}
        known = {device_id for holding in listed for device_id in holding.ids}
        for entry in self.checkpoint:
            name = living.get(entry.pod_uid) if pods.watched else PodName("", entry.pod_uid)
            if name is not None and (rest := entry.ids - known):
                known |= rest  # the next init container reuses them
                yield Holding(ContainerRef(name, entry.container), entry.resource, rest)


def _kept(former: tuple[_T, ...], new: tuple[_T, ...], key: Callable[[_T], object]) -> tuple[_T, ...]:
    """`new` with the objects of `former` that are equal, and `former` itself if all are.

    What was worked out from an object then still holds, so that a read costs by what has changed.
    """
    known = {key(one): one for one in former}
    kept = tuple([old if (old := known.get(key(one))) == one and old is not None else one for one in new])
    same = len(kept) == len(former) and {*map(id, kept)} == {*map(id, former)}
    return former if same else kept


def _of_their_uid(holding: Holding, pod: Pod | None, uids: Mapping[tuple[str, str, frozenset[str]], str]) -> Holding:
    """Correct the owner by UID: kubelet lists terminating pods by name, and a new pod may have the name already."""
    holding = with_annotated_gpus(holding, pod)
    if pod is None or pod.static:
        return holding
    uid = uids.get((holding.owner.container, holding.resource, holding.ids)) or pod.uid
    same = uid == pod.uid
    return holding if same else replace(holding, owner=ContainerRef(PodName("", uid), holding.owner.container))
