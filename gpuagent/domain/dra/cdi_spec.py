"""A claim's grant in the words of the Container Device Interface.

Source: the specification at github.com/cncf-tags/container-device-interface, version 0.6.0.
"""

from collections.abc import Iterable
from typing import Any

from gpuagent.domain.sharing.grant import Grant, Mount
from gpuagent.domain.sharing.mode import DRA_DRIVER

Json = dict[str, Any]

KIND = f"{DRA_DRIVER}/claim"


def cdi_name(uid: str, device: str) -> str:
    """The CDI device that containers get for a device of a claim."""
    return f"{KIND}={_name(uid, device)}"


def cdi_spec(uid: str, grants: Iterable[tuple[Iterable[str], Grant]]) -> Json:
    """The specification of a claim, with a CDI device for each of its devices.

    All devices of one grant have the same edits, so that it does not matter which of them a container gets. Kubelet
    shows the health of a device under the name of its CDI device, and of several with one name it shows the first.
    """
    cdi_devices = []
    for devices, grant in grants:
        edits = _edits(grant)
        # Two requests with adminAccess may have the same device.
        names = [_name(uid, device) for device in dict.fromkeys(devices)]
        cdi_devices += [{"name": name, "containerEdits": edits} for name in names]
    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "devices": cdi_devices,
    }


def _edits(grant: Grant) -> Json:
    edits: Json = {}
    if grant.env:
        variables = grant.env.items()
        edits["env"] = [f"{name}={value}" for name, value in variables]
    if grant.device_nodes:
        edits["deviceNodes"] = [{"path": path} for path in grant.device_nodes]
    if grant.mounts:
        edits["mounts"] = [_mount(mount) for mount in grant.mounts]
    return edits


def _mount(mount: Mount) -> Json:
    access = "ro" if mount.read_only else "rw"
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": [access, "nosuid", "nodev", "bind"],
    }


def _name(uid: str, device: str) -> str:
    return f"{uid}-{device}"
