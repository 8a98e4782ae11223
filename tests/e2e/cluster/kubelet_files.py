"""kubelet's device checkpoint."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

from .host import KUBELET_ROOT


@dataclass(frozen=True)
class CheckpointEntry:
    """The device ids of one resource that one container holds."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    by_numa_node: Mapping[int, frozenset[str]]
    """-1 stands for devices of no node."""
    answer: bytes
    """The plugin's answer to Allocate, a `ContainerAllocateResponse`."""


@dataclass(frozen=True)
class Checkpoint:
    """What kubelet has written: who holds what, and the healthy ids of each registered resource."""

    entries: tuple[CheckpointEntry, ...]
    registered: dict[str, frozenset[str]]

    def held_by(self, pod_uid: str) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) -> ids of one pod."""
        return {(entry.container, entry.resource): entry.ids for entry in self.entries if entry.pod_uid == pod_uid}


def read_checkpoint() -> Checkpoint:
    """An empty one before kubelet has written its first."""
    path = KUBELET_ROOT / "device-plugins" / "kubelet_internal_checkpoint"
    if not path.exists():
        return Checkpoint((), {})
    data = json.loads(path.read_text())["Data"]
    entries = tuple(
        CheckpointEntry(
            entry["PodUID"],
            entry["ContainerName"],
            entry["ResourceName"],
            frozenset(device for ids in entry["DeviceIDs"].values() for device in ids),
            {int(node): frozenset(ids) for node, ids in entry["DeviceIDs"].items()},
            b64decode(entry["AllocResp"]),
        )
        for entry in data["PodDeviceEntries"] or ()
    )
    registered = {name: frozenset(ids or ()) for name, ids in (data["RegisteredDevices"] or {}).items()}
    return Checkpoint(entries, registered)
