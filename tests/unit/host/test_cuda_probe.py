"""The program that shows whether CUDA serves a new one, with a library in place of the driver's."""

import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest

from gpuagent.host.cuda_probe import CudaProbe, Probed, Verdict
from standin.waiting import PATIENCE_S

LIBRARY = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int answer(const char *call) {
    const char *failing = getenv("FAILING"), *code = getenv("CODE");
    if (!failing || strcmp(failing, call)) return 0;
    if (!code) pause();
    return atoi(code);
}
int cuInit(unsigned flags) { return answer("cuInit"); }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return answer("cuDeviceGet"); }
int cuDevicePrimaryCtxRetain(void **context, int device) { return answer("cuDevicePrimaryCtxRetain"); }
int cuDevicePrimaryCtxRelease(int device) { return answer("cuDevicePrimaryCtxRelease"); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "cuda.c"], check=True)
    return folder


def probed(monkeypatch, library, tmp_path, failing="", code="", deadline_s=PATIENCE_S) -> Probed:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAILING", failing)
    if code:
        monkeypatch.setenv("CODE", code)
    else:
        monkeypatch.delenv("CODE", raising=False)
    return CudaProbe(deadline_s=deadline_s).run(tmp_path, "GPU-0a")


def test_a_program_that_is_served(monkeypatch, library, tmp_path):
    assert probed(monkeypatch, library, tmp_path) == Probed(Verdict.SERVED, "cuDevicePrimaryCtxRelease 0")


@pytest.mark.parametrize(
    ("failing", "code", "verdict"),
    [
        ("cuInit", "805", Verdict.HANGS),
        ("cuInit", "807", Verdict.HANGS),
        ("cuDevicePrimaryCtxRetain", "46", Verdict.HANGS),
        ("cuDevicePrimaryCtxRetain", "2", Verdict.SERVED),
        ("cuDevicePrimaryCtxRetain", "808", Verdict.SERVED),
        ("cuInit", "100", Verdict.UNKNOWN),
    ],
)
def test_what_cuda_says(monkeypatch, library, tmp_path, failing, code, verdict):
    result = probed(monkeypatch, library, tmp_path, failing, code)
    assert result.verdict is verdict
    assert code in result.text


def test_a_program_that_hangs_is_not_waited_for(monkeypatch, library, tmp_path):
    result = probed(monkeypatch, library, tmp_path, "cuInit", deadline_s=0.5)
    assert result == Probed(Verdict.HANGS, "a new program gets no answer within 0.5 s")


def test_without_the_library_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr("gpuagent.host.cuda_probe.LIBRARY", "libcuda.so.1")
    result = CudaProbe((sys.executable, "-c", "print('no libcuda.so.1: cannot open it')"), deadline_s=PATIENCE_S).run(
        tmp_path, "GPU-0a"
    )
    assert result.verdict is Verdict.UNKNOWN
    assert "no libcuda.so.1" in result.text


def test_a_program_that_cannot_be_run_shows_nothing(tmp_path):
    result = CudaProbe((str(tmp_path / "missing"),)).run(tmp_path, "GPU-0a")
    assert result == Probed(Verdict.UNKNOWN, "the probe cannot be run: No such file or directory")


def test_no_second_program_joins_one_that_cannot_be_ended(tmp_path, monkeypatch):
    """As it waits in the driver."""
    over = subprocess.TimeoutExpired("probe", 0.1)
    stuck = Mock(pid=4711, **{"communicate.side_effect": over, "wait.side_effect": over, "poll.return_value": None})
    begin = Mock(return_value=stuck)
    monkeypatch.setattr("gpuagent.host.cuda_probe.subprocess.Popen", begin)
    probe = CudaProbe()
    assert probe.run(tmp_path, "GPU-0a").verdict is Verdict.HANGS
    again = probe.run(tmp_path, "GPU-0a")
    assert again == Probed(Verdict.HANGS, "the last probe, process 4711, cannot be ended")
    begin.assert_called_once()
