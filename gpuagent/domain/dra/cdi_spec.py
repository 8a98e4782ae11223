"""A claim's grant in the words of the Container Device Interface.

Source: the specification at github.com/cncf-tags/container-device-interface, version 0.6.0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.grant import Grant, Mount
from gpuagent.domain.sharing.mode import DRA_DRIVER

Json = dict[str, Any]

KIND = f"{DRA_DRIVER}/claim"


_PREPARED = "GPUAGENT_CLAIM=prepared"
"""The runtime refuses a CDI device that changes nothing."""
ALL_DEVICE = "all"
"""Name of the CDI device that only containers get which use all requests of a claim."""


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """A CDI device of a claim.

    Attributes:
        name: in the claim.
        device_nodes: paths.
        carried: the variables and mounts that its containers get; None if they get these from another device.
    """

    name: str
    device_nodes: tuple[str, ...]
    carried: Grant | None


def cdi_name(uid: str, name: str) -> str:
    """The full name of a CDI device of a claim."""
    return f"{KIND}={uid}-{name}"


def device_names(claim: PreparedClaim) -> dict[tuple[str, str], str]:
    """Request and device to the name of the CDI device that containers get for it.

    Kubelet shows the health of a device under the name of its CDI device, and of several with one name it shows the
    first. Two requests may have one device: two shares of one GPU, or the same GPU with adminAccess.
    """
    names: dict[tuple[str, str], str] = {}
    for gpu in claim.gpus:
        is_taken = gpu.device in names.values()
        name = f"{gpu.device}-{gpu.request}" if is_taken else gpu.device
        names.setdefault((gpu.request, gpu.device), name)
    return names


def cdi_spec(uid: str, devices: Iterable[CdiDevice]) -> Json:
    """The specification of a claim."""
    cdi_devices = [{"name": f"{uid}-{device.name}", "containerEdits": _edits(device)} for device in devices]
    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "devices": cdi_devices,
    }


def _edits(device: CdiDevice) -> Json:
    edits: Json = {}
    carried = device.carried
    if carried and carried.env:
        variables = carried.env.items()
        edits["env"] = [f"{name}={value}" for name, value in variables]
    if device.device_nodes:
        edits["deviceNodes"] = [{"path": path} for path in device.device_nodes]
    if carried and carried.mounts:
        edits["mounts"] = [_mount(mount) for mount in carried.mounts]
    return edits or {"env": [_PREPARED]}


def _mount(mount: Mount) -> Json:
    access = "ro" if mount.read_only else "rw"
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": [access, "nosuid", "nodev", "bind"],
    }
