"""The generated code is what proto/ says now, and what kubelet speaks on the wire."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import podresources_v1_pb2 as pr

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "gpuagent" / "_pb"


def test_the_checked_in_code_is_current(tmp_path):
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run([ROOT / "proto" / "generate.sh", tmp_path], check=True, env=env, capture_output=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "gpuagent" / "_pb").iterdir()}
    checked_in = {path.name: path.read_text() for path in GENERATED.glob("*_pb2*")}
    assert fresh == checked_in


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (dp.RegisterRequest, {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4}),
        (dp.DevicePluginOptions, {"pre_start_required": 1, "get_preferred_allocation_available": 2}),
        (dp.Device, {"ID": 1, "health": 2, "topology": 3}),
        (
            dp.ContainerPreferredAllocationRequest,
            {"available_deviceIDs": 1, "must_include_deviceIDs": 2, "allocation_size": 3},
        ),
        (
            dp.ContainerAllocateResponse,
            {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
        ),
        (dp.Mount, {"container_path": 1, "host_path": 2, "read_only": 3}),
        (dp.DeviceSpec, {"container_path": 1, "host_path": 2, "permissions": 3}),
        (pr.GetPodResourcesRequest, {"pod_name": 1, "pod_namespace": 2}),
        (pr.PodResources, {"name": 1, "namespace": 2, "containers": 3}),
        (pr.ContainerResources, {"name": 1, "devices": 2}),
        (pr.ContainerDevices, {"resource_name": 1, "device_ids": 2}),
    ],
)
def test_field_numbers_are_kubelets(message, fields):
    assert {field.name: field.number for field in message.DESCRIPTOR.fields} == fields


def test_services_are_named_as_kubelet_names_them():
    names = {s.full_name: set(s.methods_by_name) for s in dp.DESCRIPTOR.services_by_name.values()}
    assert names["v1beta1.Registration"] == {"Register"}
    assert names["v1beta1.DevicePlugin"] == {
        "GetDevicePluginOptions",
        "ListAndWatch",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    }
    assert "v1.PodResourcesLister" in {s.full_name for s in pr.DESCRIPTOR.services_by_name.values()}
