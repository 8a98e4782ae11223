"""The claims that kubelet has prepared or begun to, and their checkpoint ``dra_manager_state``."""

import json
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuagent._pb import dra_v1_pb2 as pb

FILE_NAME = "dra_manager_state"
Json = dict[str, Any]


@dataclass(slots=True)
class ClaimInfo:
    """One claim; ``prepared`` is not in the checkpoint, so that each kubelet prepares a claim itself."""

    uid: str
    name: str
    namespace: str
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, list[Json]] = field(default_factory=dict)
    """The devices as the drivers gave them, in the words of the checkpoint. A second answer is added to the first."""
    prepared: bool = False

    def add(self, driver: str, device: pb.Device) -> None:
        """Add a device of a driver's answer."""
        found = {
            "PoolName": device.pool_name,
            "DeviceName": device.device_name,
            "ShareID": device.share_id if device.HasField("share_id") else None,
            "RequestNames": list(device.request_names),
            "CDIDeviceIDs": list(device.cdi_device_ids),
        }
        self.drivers[driver].append(found)

    def cdi_names(self, request: str) -> list[str]:
        """CDI devices for a request of the claim; "" stands for all of them."""
        return [
            name
            for devices in self.drivers.values()
            for one in devices
            if not request or not one["RequestNames"] or request in one["RequestNames"]
            for name in one["CDIDeviceIDs"]
        ]


class ClaimInfos:
    """By namespace and name. Hold `lock` for every use."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE_NAME
        self.lock = threading.RLock()
        self.infos: dict[tuple[str, str], ClaimInfo] = {}
        if self._path.exists():
            self._read()

    def save(self) -> None:
        """Replace the checkpoint."""
        states = [
            {
                "ClaimUID": one.uid,
                "ClaimName": one.name,
                "Namespace": one.namespace,
                "PodUIDs": {uid: {} for uid in sorted(one.pods)},
                "DriverState": {driver: {"Devices": devices or None} for driver, devices in one.drivers.items()},
            }
            for one in self.infos.values()
        ]
        kind = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}
        data = json.dumps({**kind, "ClaimInfoStateList": states}, separators=(",", ":"))
        temporary = self._path.with_name(f".{FILE_NAME}.tmp")
        temporary.write_text(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}))
        temporary.replace(self._path)

    def _read(self) -> None:
        found = json.loads(self._path.read_text())
        if zlib.crc32(found["Data"].encode()) != found["Checksum"]:
            raise ValueError("checkpoint is corrupted")
        for one in json.loads(found["Data"])["ClaimInfoStateList"]:
            drivers = {driver: state["Devices"] or [] for driver, state in one["DriverState"].items()}
            info = ClaimInfo(one["ClaimUID"], one["ClaimName"], one["Namespace"], set(one["PodUIDs"]), drivers)
            self.infos[info.namespace, info.name] = info
