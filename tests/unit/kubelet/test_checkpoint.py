"""What the agent told kubelet at an admission is read back from kubelet's checkpoint."""

import base64
import json

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.sharing.grant import DRIVER_ANNOTATION
from gpuagent.kubelet import checkpoint


@pytest.mark.parametrize("driver", ["limits", "limits+mps", ""])
def test_the_isolation_driver_of_a_container(tmp_path, driver):
    annotations = {DRIVER_ANNOTATION: driver} if driver else {}
    answer = pb.ContainerAllocateResponse(annotations=annotations)
    entry = {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": "r",
        "DeviceIDs": {"0": ["a-mc-1"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    }
    (tmp_path / checkpoint.FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    (read,) = checkpoint.read(tmp_path)
    assert read.isolation == driver
