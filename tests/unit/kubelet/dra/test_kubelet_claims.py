"""Kubelet's own file says which claims it has; what cannot be read says nothing."""

import json

import pytest

from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent.kubelet.dra.kubelet_claims import FILE_NAME, claims_of_kubelet
from standin.kubelet.dra import claim_infos


def test_the_claims_are_those_that_kubelet_wrote(tmp_path):
    assert FILE_NAME == claim_infos.FILE_NAME
    kubelet = claim_infos.ClaimInfos(tmp_path)
    kubelet.save()
    assert claims_of_kubelet(tmp_path) == frozenset()
    for namespace in ("blue", "red"):
        info = claim_infos.ClaimInfo(f"uid-{namespace}", "train", namespace, {"pod"}, {"gpu.gpuagent.io": []})
        info.add("gpu.gpuagent.io", pb.Device(device_name="gpu-0"))
        kubelet.infos[namespace, "train"] = info
    kubelet.save()
    assert claims_of_kubelet(tmp_path) == {"uid-blue", "uid-red"}


def test_no_file_says_nothing(tmp_path):
    """An agent in a pod does not see kubelet's folder."""
    assert claims_of_kubelet(tmp_path) is None


@pytest.mark.parametrize(
    "data", ["", "{", "[]", "5", '{"ClaimInfoStateList": 5}', '{"ClaimInfoStateList": [{}]}', "[" * 9999]
)
def test_a_file_of_another_form_says_nothing(tmp_path, data):
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": data}))
    assert claims_of_kubelet(tmp_path) is None
    (tmp_path / FILE_NAME).write_text(data)
    assert claims_of_kubelet(tmp_path) is None
