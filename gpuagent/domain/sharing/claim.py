"""GPUs of a ResourceClaim, as the scheduler allocated them."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuagent.domain.sharing.mode import DRA_DRIVER

CLAIM_MEMORY = f"{DRA_DRIVER}/memory"
CLAIM_CORES = f"{DRA_DRIVER}/cores"
"""Capacities of a GPU, by their full names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGpu:
    """One device of a claim's allocation.

    Attributes:
        request: its request in the claim, without the name of an alternative.
        pool: of the device.
        device: its name in the ResourceSlice.
        share_id: UID of this share of the device; empty for a device that is not shared.
        uuid: of the GPU.
        memory_mib: consumed.
        cores: percent consumed; 0 for no guarantee.
        whole: all of the GPU's memory is consumed, so no other claim has any of it.
        admin: the request has `adminAccess`: its container may look at the GPU, and nothing of it is consumed.
    """

    request: str
    pool: str
    device: str
    share_id: str
    uuid: str
    memory_mib: int
    cores: int
    whole: bool
    admin: bool = False

    @property
    def unlimited(self) -> bool:
        """Whether its container gets the GPU without limits, so no isolation layer has to serve it."""
        return self.whole or self.admin


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """A claim whose containers may start.

    Attributes:
        uid: of the claim.
        namespace: of the claim.
        name: of the claim.
        layer: name of the isolation driver that serves it.
        gpus: in the order of the allocation; none if its record cannot be read, so that it may have any.
    """

    uid: str
    namespace: str
    name: str
    layer: str
    gpus: tuple[ClaimedGpu, ...]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def used(self) -> tuple[ClaimedGpu, ...]:
        """The GPUs of which the claim has a part. Those with `adminAccess` are not used by it."""
        return tuple(gpu for gpu in self.gpus if not gpu.admin)

    def gpus_of(self, requests: Collection[str]) -> tuple[ClaimedGpu, ...]:
        """The GPUs of a container that uses these requests. One without requests of its own uses all of them."""
        if not requests:
            return self.gpus
        return tuple([gpu for gpu in self.gpus if gpu.request in requests])

    def record(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "PreparedClaim":
        """Read what `record` returned. Raises TypeError, KeyError: it is something else."""
        gpus = tuple([ClaimedGpu(**gpu) for gpu in record["gpus"]])
        return cls(**{**record, "gpus": gpus})
