"""Kubelet's checkpoint file: who holds which device, and which resources were known."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from standin.kubelet.devices import WITHOUT_TOPOLOGY, Devices, Held, Slot

FILE_NAME = "kubelet_internal_checkpoint"


def write(directory: Path, devices: Devices, *, by_numa: bool) -> None:
    """Replace the file. Kubelet also syncs it to disk, which a stand-in on a temporary folder need not.

    `by_numa`: devices come by their NUMA nodes; a list of them otherwise.
    """
    entries = [
        {
            "PodUID": slot.uid,
            "ContainerName": slot.container,
            "ResourceName": slot.resource,
            "DeviceIDs": {str(node): list(ids) for node, ids in held.by_numa.items()} if by_numa else sorted(held.ids),
            "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
        }
        for slot, held in devices.held.items()
    ]
    data = {
        "PodDeviceEntries": entries or None,
        "RegisteredDevices": {resource: sorted(ids) for resource, ids in devices.healthy.items()},
    }
    # The real checksum covers a dump in Go's own format; nothing outside kubelet can compute it.
    temporary = directory / f".{FILE_NAME}.tmp"
    temporary.write_text(json.dumps({"Data": data, "Checksum": 0}))
    temporary.replace(directory / FILE_NAME)


def read(directory: Path) -> tuple[Mapping[Slot, Held], list[str]]:
    """The last kubelet's checkpoint: held devices and resource names; empty where there is no file."""
    path = directory / FILE_NAME
    if not path.exists():
        return {}, []
    data = json.loads(path.read_text())["Data"]
    held = {
        Slot(entry["PodUID"], entry["ContainerName"], entry["ResourceName"]): Held(
            _by_numa(entry["DeviceIDs"]),
            dp.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"])),
        )
        for entry in data["PodDeviceEntries"] or ()
    }
    return held, list(data["RegisteredDevices"])


def _by_numa(ids: Mapping[str, list[str]] | list[str]) -> dict[int, tuple[str, ...]]:
    if isinstance(ids, list):
        return {WITHOUT_TOPOLOGY: tuple(ids)}
    return {int(node): tuple(here) for node, here in ids.items()}
