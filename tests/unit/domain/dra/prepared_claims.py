"""Prepared claims, and pods that use them."""

from collections.abc import Mapping
from typing import Any

from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from tests.unit.domain.builders import pod_json


def prepared(
    name: str, *gpus: Gpu, mib: int = 4096, cores: int = 0, layer: str = "none", device: str = ""
) -> PreparedClaim:
    """A claim in namespace `ml` with the same share of each of these GPUs; of all their memory, they are whole.

    With `device`, they are one device of this name.
    """
    claimed = [
        ClaimedGpu(
            request="gpu",
            pool="n",
            device=device or device_name(gpu),
            share_id=f"share-{name}",
            uuid=gpu.uuid,
            memory_mib=mib,
            cores=cores,
            whole=mib == gpu.memory_mib,
        )
        for gpu in gpus
    ]
    return PreparedClaim(uid=f"uid-{name}", namespace="ml", name=name, layer=layer, gpus=tuple(claimed))


def claiming(pod: str, *claims: str, containers: int = 1) -> Mapping[str, Any]:
    """A pod each of whose containers uses all of these claims, the first made from a template."""
    made = pod_json(pod, *[{}] * containers)
    named = [{"name": f"c{n}"} | ({"resourceClaimName": claim} if n else {}) for n, claim in enumerate(claims)]
    made["spec"]["resourceClaims"] = named
    made["status"]["resourceClaimStatuses"] = [{"name": "c0", "resourceClaimName": claims[0]}]
    for container in made["spec"]["containers"]:
        container["resources"]["claims"] = [{"name": one["name"]} for one in named]
    return made
