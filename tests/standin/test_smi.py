"""The stand-in nvidia-smi speaks as the real one does about compute modes."""

import subprocess
from collections.abc import Iterator

import pytest

from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S


@pytest.fixture
def host() -> Iterator[MpsHost]:
    with MpsHost() as host:
        host.write_smi({"modes": {"GPU-0a": "Default", "GPU-1a": "Prohibited"}, "apps": [["GPU-0a", "python"]]})
        yield host


def smi(host: MpsHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([host.smi, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_modes_and_programs_are_listed(host):
    rows = smi(host, "--query-gpu=uuid,compute_mode", "--format=csv,noheader").stdout
    assert rows == "GPU-0a, Default\nGPU-1a, Prohibited\n"
    apps = smi(host, "--query-compute-apps=gpu_uuid,process_name", "--format=csv,noheader").stdout
    assert apps == "GPU-0a, python\n"


def test_a_mode_is_set_and_spelled_as_in_lists(host):
    assert smi(host, "-i", "GPU-0a", "-c", "EXCLUSIVE_PROCESS").returncode == 0
    assert host.mode("GPU-0a") == "Exclusive_Process"
    assert host.mode("GPU-1a") == "Prohibited"


def test_what_it_does_not_know_it_refuses(host):
    assert smi(host, "--help").returncode == 1
