"""A claim's grant in the words of the Container Device Interface.

Source: the specification at github.com/cncf-tags/container-device-interface, version 0.6.0.
"""

from typing import Any

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.mode import DRA_DRIVER

KIND = f"{DRA_DRIVER}/claim"


def cdi_name(uid: str) -> str:
    """The claim's CDI device, which containers get."""
    return f"{KIND}={uid}"


def cdi_spec(uid: str, grant: Grant) -> dict[str, Any]:
    """The specification with the one device of a claim."""
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in grant.env.items()],
        "deviceNodes": [{"path": path} for path in grant.device_nodes],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in grant.mounts
        ],
    }
    device = {"name": uid, "containerEdits": {name: value for name, value in edits.items() if value}}
    return {"cdiVersion": "0.6.0", "kind": KIND, "devices": [device]}
