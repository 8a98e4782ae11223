"""NVML's numbers and structures of links as the domain's values."""

import uuid

import pynvml
import pytest

from gpuagent.domain.gpus.link_reports import End, Fabric, Relation
from gpuagent.domain.gpus.topology import NVLINK_GBPS
from gpuagent.nvml import link_values


def test_versions_have_nvidias_names():
    named = [link_values.version(number) for number in range(1, 9)]
    assert named == ["1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"]
    assert set(named) == NVLINK_GBPS.keys(), "the speed of each is known"


def test_a_version_newer_than_this_agent_is_reported_by_its_number():
    assert link_values.version(9) == "#9"


def test_every_relation_and_end_has_its_number():
    relations = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
    assert link_values.RELATIONS == {number: Relation(name) for number, name in relations.items()}
    assert link_values.ENDS == {0: End.GPU, 1: End.OTHER, 2: End.SWITCH, 0xFF: End.UNKNOWN}


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("00000000:07:00.0", "00000000:07:00.0"),
        ("0000:0a:00.0", "00000000:0A:00.0"),
        ("10000:0A:00.0", "00010000:0A:00.0"),
        ("00000009:01:00.0", "00000009:01:00.0"),
        ("00000000:00:1E.0", "00000000:00:1E.0"),
        ("00000000:00:00.0", ""),
        ("0000:00:00.0", ""),
        ("FFFFFFFF:FF:FF.0", ""),
        ("ffffffff:ffff:ff.0", ""),
        ("FFFF:FF:FF.0", ""),
        ("", ""),
    ],
)
def test_bus_ids_are_spelled_as_those_of_gpus(text, spelled):
    assert link_values.bus_id(text) == spelled


@pytest.mark.parametrize(("number", "known"), [(0x1AF110DE, 0x1AF110DE), (0, 0), (0xFFFFFFFF, 0)])
def test_what_a_link_leads_to(number, known):
    info = pynvml.nvmlPciInfo_t(busId=b"0000:c4:00.0", pciDeviceId=number)
    assert link_values.remote(info) == ("00000000:C4:00.0", known)


@pytest.mark.parametrize(
    ("state", "status", "ready"),
    [
        (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_SUCCESS, True),
        (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_ERROR_UNKNOWN, False),
        (pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, pynvml.NVML_SUCCESS, False),
        (pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, pynvml.NVML_SUCCESS, False),
    ],
)
@pytest.mark.parametrize("form", [pynvml.c_nvmlGpuFabricInfo_t, pynvml.c_nvmlGpuFabricInfo_v2_t])
def test_a_fabric_is_ready_when_it_is_complete_and_well(form, state, status, ready):
    info = form()
    info.state, info.status, info.cliqueId = state, status, 7
    info.clusterUuid[:] = uuid.UUID(int=5).bytes
    assert link_values.fabric(info) == Fabric("00000000-0000-0000-0000-000000000005", 7, ready)


def test_a_gpu_that_cannot_have_a_fabric_has_none():
    assert link_values.fabric(pynvml.c_nvmlGpuFabricInfo_v2_t()) is None
