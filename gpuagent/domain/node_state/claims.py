"""The node's ResourceClaims and ResourceSlice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gpuagent.domain import events as ev
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.sharing.claim import PreparedClaim

WITHDRAWN_S = 10.0
"""How long a scheduler may still allocate a device of a slice that was deleted."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Claims that are prepared, and the slice as the API server has it. Times are monotonic seconds.

    Attributes:
        prepared: by UID.
        slice: the node's ResourceSlice; None while there is none.
        followed: the watch of the slice has shown whether there is one.
        published: UUIDs of the GPUs of the slice, for `WITHDRAWN_S` after it is gone as well.
        withdrawn_at: when the slice was last seen to be gone.
        problem: why the slice cannot be followed.
        write_problem: why the slice cannot be written.
        registered: kubelet accepts the driver.
        registration_problem: why not.
    """

    prepared: Mapping[str, PreparedClaim] = field(default_factory=dict)
    slice: Mapping[str, Any] | None = field(default=None, repr=False)
    followed: bool = False
    published: frozenset[str] = frozenset()
    withdrawn_at: float = float("-inf")
    problem: str | None = None
    write_problem: str | None = None
    registered: bool = False
    registration_problem: str | None = None

    def taken(self, event: ev.Event) -> Self:
        match event:
            case ev.ClaimsPrepared():
                return replace(self, prepared={claim.uid: claim for claim in event.claims})
            case ev.DraRegistered():
                return replace(self, registered=event.problem is None, registration_problem=event.problem)
            case ev.SliceWritten():
                return replace(self, write_problem=event.problem)
            case ev.SliceSeen():
                gone = self.slice is not None and event.slice is None
                return replace(
                    self,
                    slice=event.slice,
                    followed=True,
                    published=self.published | uuids_of(event.slice) if event.slice else self.published,
                    withdrawn_at=event.at if gone else self.withdrawn_at,
                    problem=None,
                )
            case ev.ApiUnavailable(what="slices"):
                return replace(self, problem=event.reason)
        expired = self.next is not None and event.at >= self.next
        return replace(self, published=frozenset()) if expired else self

    @property
    def next(self) -> float | None:
        """Monotonic seconds when `published` changes without an event; None if it does not."""
        return self.withdrawn_at + WITHDRAWN_S if self.published and self.slice is None else None

    @property
    def devices(self) -> tuple[int, int]:
        """How many devices of the slice are free of taints, and how many have one."""
        found = [*mappings(mapping((self.slice or {}).get("spec")).get("devices"))]
        tainted = sum(bool(device.get("taints")) for device in found)
        return len(found) - tainted, tainted

    @property
    def held(self) -> frozenset[str]:
        """UUIDs of GPUs that prepared claims have."""
        return frozenset(gpu.uuid for claim in self.prepared.values() for gpu in claim.gpus)


def uuids_of(found: Mapping[str, Any]) -> frozenset[str]:
    """UUIDs of the GPUs in a ResourceSlice."""
    devices = mappings(mapping(found.get("spec")).get("devices"))
    uuids = (text(mapping(mapping(one.get("attributes")).get("uuid")).get("string")) for one in devices)
    return frozenset(filter(None, uuids))
