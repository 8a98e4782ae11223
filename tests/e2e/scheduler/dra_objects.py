"""What there is in mode `dra`: classes, the devices of nodes of kwok, and claims."""

from collections.abc import Iterable, Iterator, Mapping

from gpuagent.domain.sharing.mode import DRA_DRIVER
from tests.e2e.cluster.api_client import ApiClient
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.pods import pod

_API = "/apis/resource.k8s.io/v1"
SLICES = f"{_API}/resourceslices"
CLAIMS = f"{_API}/namespaces/default/resourceclaims"
WHOLE, SHARE = "gpu.gpuagent.io", "gpu-share.gpuagent.io"
_EXPRESSION = f'device.driver == "{DRA_DRIVER}"'


def classes() -> Iterator[Json]:
    """For whole GPUs and for shares."""
    for name in (WHOLE, SHARE):
        spec = {"selectors": [{"cel": {"expression": _EXPRESSION}}]}
        yield _object("DeviceClass", {"name": name}, spec)


def node_slice(node: str, gpus: int = 8, gib: int = 80) -> Json:
    """The slice of a node with equal GPUs."""
    devices = [_device(f"gpu-{number}", f"{gib}Gi") for number in range(gpus)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return _object("ResourceSlice", {"name": f"{node}-{DRA_DRIVER}"}, spec)


def claim(name: str, device_class: str = SHARE, count: int = 1, **amounts: str) -> Json:
    exactly: Json = {"deviceClassName": device_class, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return _object("ResourceClaim", {"name": name, "namespace": "default"}, spec)


def claiming_pod(name: str, labels: Mapping[str, str] | None = None) -> Json:
    """A pod with the claim of its own name."""
    made = pod(name, {}, labels=labels, resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return made


def remove(client: ApiClient) -> None:
    """Remove claims, slices and classes. No controller takes the finalizers off the claims here."""
    merge_patch = "application/merge-patch+json"
    for found in client.expect("GET", CLAIMS)["items"]:
        path = f"{CLAIMS}/{found['metadata']['name']}"
        client.request("DELETE", path)
        client.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=merge_patch)
    client.request("DELETE", SLICES)
    for made in classes():
        client.request("DELETE", client.path_of(made))


def create_claims(client: ApiClient, claims: Iterable[Json]) -> None:
    client.create_all(CLAIMS, claims)


def _object(kind: str, metadata: Json, spec: Json) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _device(name: str, memory: str) -> Json:
    memory_policy = {"default": memory, "validRange": {"min": "1Gi", "step": "1Gi", "max": memory}}
    cores_policy = {"default": "0", "validRange": {"min": "0", "step": "5", "max": "100"}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "gpu"}},
        "capacity": {
            "memory": {"value": memory, "requestPolicy": memory_policy},
            "cores": {"value": "100", "requestPolicy": cores_policy},
            "sharers": {"value": "20", "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
    }
