"""What was handed out in the last minutes: the part of the truth that kubelet's book does not show yet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile

from gpuagent.domain.pods import Owner, Owners, Pod, PodName

REMEMBER_S = 120.0
"""Kubelet can offer an id again that it lost from its books while Allocate ran; for this long we know better."""

PAIR_S = 30.0
"""Kubelet asks for the second resource of a container right after the first; later than this it is another one."""


@dataclass(frozen=True, slots=True)
class Handout:
    """One answered Allocate. `owner` is the container it is believed, or since PreStart known, to be for.

    `uid` is that of its pod; None where only the name is known, which the pod may share with one before it. `meant` is
    the UID of the pod that it was taken for when it asked, right or wrong; `decided` is whether a scheduler had decided
    on the container. `exchanged` are the ids that kubelet has in place of `ids`.
    """

    resource: str
    ids: frozenset[str]
    uuids: tuple[str, ...]
    at: float
    owner: Owner | None = None
    uid: str | None = None
    meant: str | None = None
    decided: bool = False
    exchanged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """Handouts of the last minutes, oldest first.

    A pod may have thousands of containers. Each adds a handout, so what is done for every handout has to be cheap.

    `open` is the last handout if its container may still be about to ask for its other resource.
    `refused` are UIDs of pods that were refused: kubelet fails them, and our watch shows it a moment later.
    """

    handouts: tuple[Handout, ...] = ()
    open: Handout | None = None
    refused: frozenset[str] = frozenset()

    def recorded(self, handout: Handout, *, opens: bool) -> "Ledger":
        """With `handout` added and what is too old forgotten. `opens`: another resource may follow for it."""
        kept = self.recent(handout.at)
        if handout.exchanged or not self.ids.isdisjoint(handout.ids):
            rest = (replace(h, ids=left) if (left := _left(h, handout)) != h.ids else h for h in kept)
            kept = tuple(h for h in rest if h.ids)
        return replace(self, handouts=(*kept, handout), open=handout if opens else None)

    def having_refused(self, uid: str, pods: Collection[str]) -> "Ledger":
        """With the pod of that UID refused; `pods` are the UIDs of all pods there are."""
        return replace(self, refused=(self.refused & set(pods)) | {uid})

    def closed(self) -> "Ledger":
        """The container of the last handout will not ask again: kubelet gives it up after a refusal."""
        return replace(self, open=None) if self.open else self

    def believed(self, ids: frozenset[str], owner: Owner, uid: str | None, *, decided: bool) -> "Ledger":
        """With `owner`, in the pod of that UID, as the container that the handout of `ids` was for.

        Who was taken for it has then what was taken for `owner`'s: two that could not be told apart were mistaken for
        each other.
        """
        handouts = list(self.handouts)
        # No two have the same ids; mostly it is the last one.
        at = next((n for n in range(len(handouts) - 1, -1, -1) if handouts[n].ids == ids), None)
        if at is None:
            return self
        before = handouts[at]
        known = before.decided if before.owner == owner else decided
        handouts[at] = replace(before, owner=owner, uid=uid, decided=known)
        if before.owner not in {None, owner}:
            for n, other in enumerate(self.handouts):
                if n != at and (other.owner, other.resource) == (owner, before.resource):
                    handouts[n] = replace(other, owner=before.owner, uid=before.uid, decided=before.decided)
        return replace(self, handouts=tuple(handouts))

    def listed(
        self, owners: Owners, read_at: float, pods: Mapping[PodName, Pod], decided: Collection[Owner]
    ) -> "Ledger":
        """With the owners that kubelet's book shows.

        Args:
            owners: those of the book.
            read_at: when the call that read it began.
            pods: the living ones.
            decided: containers that schedulers had decided on before the book was read; pods are annotated by it.
        """
        found = self
        for handout in self.handouts:
            owner = owners.get((handout.resource, handout.ids))
            if owner and owner != handout.owner and handout.at < read_at:
                pod = pods.get(owner.pod)
                found = found.believed(handout.ids, owner, pod.uid if pod else None, decided=owner in decided)
        return found

    def recent(self, now: float) -> tuple[Handout, ...]:
        too_old = takewhile(lambda handout: now - handout.at >= REMEMBER_S, self.handouts)
        return self.handouts[sum(1 for _ in too_old) :]

    @cached_property
    def ids(self) -> frozenset[str]:
        """Units of all handouts."""
        return frozenset[str]().union(*[handout.ids for handout in self.handouts])

    @cached_property
    def exchanged(self) -> tuple[Mapping[str, str], ...]:
        """What ids were exchanged for, oldest first, where some were."""
        return tuple([handout.exchanged for handout in self.handouts if handout.exchanged])

    def awaiting_partner(self, resource: str, now: float) -> Handout | None:
        """The handout whose container may be asking for `resource` now."""
        if self.open is None or self.open.resource == resource or now - self.open.at >= PAIR_S:
            return None
        return self.open


def _left(older: Handout, newer: Handout) -> frozenset[str]:
    """Units of `older` that `newer` does not have, and for whose ids it has no others."""
    if older.exchanged:
        again = (unit for device_id, unit in older.exchanged.items() if device_id in newer.exchanged)
        return older.ids.difference(newer.ids, again)
    return older.ids if older.ids.isdisjoint(newer.ids) else older.ids - newer.ids
