"""A container runtime's part: it reads the CDI specifications and edits the container.

Source: the specification at github.com/cncf-tags/container-device-interface, version 0.6.0.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.pods import Granted, StartError

Json = dict[str, Any]


def edited(granted: Granted, directory: Path, names: Iterable[str]) -> Granted:
    """The container with these CDI devices. Raises StartError: a name is unknown, or two files have it."""
    env, devices = dict(granted.env), {one.container_path: one for one in granted.devices}
    mounts = {one.container_path: one for one in granted.mounts}
    names = [*dict.fromkeys(names)]
    known = dict(_devices(directory))
    if missing := [name for name in names if known.get(name) is None]:
        raise StartError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    for edits in (known[name] or {} for name in names):
        env |= dict(one.split("=", 1) for one in edits.get("env") or ())
        for node in edits.get("deviceNodes") or ():
            host = node.get("hostPath") or node["path"]
            devices[node["path"]] = dp.DeviceSpec(container_path=node["path"], host_path=host, permissions="rw")
        for mount in edits.get("mounts") or ():
            path = mount["containerPath"]
            read_only = "ro" in (mount.get("options") or ())
            mounts[path] = dp.Mount(container_path=path, host_path=mount["hostPath"], read_only=read_only)
    return replace(
        granted,
        env=env,
        devices=tuple(devices.values()),
        mounts=tuple(mounts.values()),
        cdi=(*granted.cdi, *names),
    )


def _devices(directory: Path) -> Iterator[tuple[str, Json | None]]:
    """Edits by CDI name; None for a name that two files have. A file that is no specification counts as none."""
    seen = set()
    for path in sorted(directory.glob("*.json")) if directory.exists() else ():
        try:
            spec = json.loads(path.read_text(encoding="utf-8"))
            found = {f"{spec['kind']}={one['name']}": one["containerEdits"] for one in spec["devices"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if "cdiVersion" not in spec:
            continue
        for name, edits in found.items():
            yield name, None if name in seen else edits
            seen.add(name)
