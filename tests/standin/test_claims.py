"""Kubelet's record of claims, from which containers get their CDI devices."""

from pathlib import Path

import pytest

from gpuagent._pb import dra_v1_pb2 as pb
from standin.api.objects import Objects
from standin.kubelet.dra.claim_infos import ClaimInfo, ClaimInfos
from standin.kubelet.dra.claims import Claims
from standin.kubelet.dra.health import DeviceHealths
from standin.kubelet.dra.periods import Periods
from standin.kubelet.dra.registry import DriverRegistry
from standin.kubelet.pods import StartError

DRIVER = "gpu.example.com"
CONTAINER = {"name": "main", "resources": {"claims": [{"name": "gpu"}]}}
POD = {
    "metadata": {"name": "pod", "namespace": "default"},
    "spec": {"containers": [CONTAINER], "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]},
}


def test_a_container_whose_claim_kubelet_has_forgotten_does_not_start(tmp_path: Path) -> None:
    """A pod may come while the claim is being unprepared. Then kubelet prepares nothing for it, as `GetResources` says."""
    periods = Periods()
    registry = DriverRegistry(tmp_path, ["v1.DRAPlugin"], periods, lambda _: None, lambda _: None)
    infos = ClaimInfos(tmp_path)
    claims = Claims(Objects(), registry, infos, DeviceHealths(periods), periods)
    prepared = ClaimInfo("uid", "shared", "default", drivers={DRIVER: []})
    prepared.add(DRIVER, pb.Device(pool_name="node", device_name="gpu-0", cdi_device_ids=["example.com/gpu=0"]))
    infos.infos["default", "shared"] = prepared
    assert claims.cdi_names(POD, CONTAINER) == ["example.com/gpu=0"]

    infos.infos.clear()
    with pytest.raises(StartError, match="unable to get claim info for ResourceClaim shared in namespace default"):
        claims.cdi_names(POD, CONTAINER)
    assert claims.healths(POD, CONTAINER) == []
