"""Every program ends quietly where the reader of its output goes away, and says so where the output is full."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.pages.http_server import HttpServer, json_page
from standin.api.server import ApiServer

ROOT = Path(__file__).parents[3]
PAGE = {
    **dict.fromkeys(("node", "mode", "label", "isolation", "switch", "gpus", "resources", "problems"), {}),
    "version": "0",
}
PROGRAMS = {
    "gpuagent": ("--help", "run --help", "--version", "topology --simulate dgx-a100", "topology --simulate t4 -o json"),
    "gpuisolation": ("--help", "preflight --root {root}", "status --root {root}", "status --root {root} -o json"),
    "inspectcgpu": ("--help", "--version"),
    "bench": ("--help",),
    "demo": ("--help", "--once"),
}
COMMANDS = [(program, arguments) for program, lines in PROGRAMS.items() for arguments in lines]


def run(program: str, arguments: str, stdout: int, root: Path) -> tuple[int, str]:
    """Exit code and stderr."""
    command = [sys.executable, "-m", program, *arguments.format(root=root).split()]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "installer", ROOT / "kubectl")))
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "PYTHONPATH": paths}
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=env, cwd=ROOT, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


@contextmanager
def closed_pipe() -> Iterator[int]:
    """The writing end of a pipe that nothing reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """As much of a host as the installer needs to report."""
    for path, text in {"proc/sys/kernel/osrelease": "5.10.0\n", "etc/os-release": 'ID="alinux"\n'}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("program", "arguments"), COMMANDS)
def test_a_closed_pipe_ends_a_program_quietly(program: str, arguments: str, host: Path) -> None:
    with closed_pipe() as pipe:
        assert run(program, arguments, pipe, host) == (141, "")


@pytest.mark.parametrize(
    "arguments", ["run --dry-run --mode share --simulate t4 --state-dir {root}", "status --url {url} -o json"]
)
def test_a_closed_pipe_ends_what_asks_an_agent_or_the_driver_quietly(arguments: str, tmp_path: Path) -> None:
    server = HttpServer(("127.0.0.1", 0), {"/status": json_page(lambda: PAGE)}, {})
    server.start()
    try:
        with closed_pipe() as pipe:
            url = f"http://127.0.0.1:{server.port}"
            code, output = run("gpuagent", arguments.replace("{url}", url), pipe, tmp_path)
    finally:
        server.stop()
    assert (code, output) == (141, "")


@pytest.mark.parametrize(
    ("program", "name"),
    [("gpuagent", "gpuagent"), ("gpuisolation", "gpu-isolation-installer"), ("inspectcgpu", "kubectl-inspect-cgpu")],
)
def test_an_output_that_is_full_is_reported(program: str, name: str, host: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(program, "--help", full.fileno(), host) == (
            1,
            f"{name}: the output cannot be written: No space left on device\n",
        )


def test_a_program_without_an_output_works(tmp_path: Path) -> None:
    shell = f"exec {sys.executable} -m gpuagent topology --simulate t4 >&-"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_inspect_without_an_output_works(tmp_path: Path) -> None:
    """It asks its output whether that is a terminal."""
    with ApiServer("node-1", {MODE_LABEL: "share"}) as api:
        path = api.write_kubeconfig(tmp_path / "kubeconfig")
        shell = f"exec {sys.executable} -m inspectcgpu --kubeconfig {path} --no-agents >&-"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "kubectl")))}
        done = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_address_may_end_with_a_slash(tmp_path: Path) -> None:
    server = HttpServer(("127.0.0.1", 0), {"/status": json_page(lambda: PAGE)}, {})
    server.start()
    try:
        with (tmp_path / "out").open("wb") as out:
            ended = run("gpuagent", f"status -o json --url http://127.0.0.1:{server.port}/", out.fileno(), tmp_path)
    finally:
        server.stop()
    assert ended == (0, "")


def test_a_demo_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    server = HttpServer(("127.0.0.1", 0), {}, {})
    server.start()
    try:
        with (tmp_path / "out").open("wb") as out:
            code, output = run("demo", f"--once --port {server.port}", out.fileno(), tmp_path)
    finally:
        server.stop()
    port = server.port
    assert code == 1
    assert output == f"demo: another program has port {port}. End it, or take another port: make demo PORT={port + 1}\n"
