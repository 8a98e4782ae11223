"""Mistakes on the command line and in settings: each ends with a message that names what and where, and its code."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent.cli import TOPOLOGY_KEYS
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.pages.http_server import HttpServer, json_page
from gpuagent.simulation import boxes
from standin.ports import free_port
from tests.contract.harness import MEM, PATIENCE_S, REPOSITORY, WHOLE, Node, box, command, fetch, wait_for

MakeNode = Callable[..., Node]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["COMMAND"]),
        (["fly"], ["fly"]),
        (["run", "--fly"], ["--fly"]),
        (["run", "--mode", "fast"], ["--mode", "'fast'", "core_mem"]),
        (["run", "--mode", "share", "--memory-unit", "1KiB"], ["--memory-unit", "1KiB", "256MiB"]),
        (["run", "--mode", "share", "--http-address", "nowhere"], ["--http-address", "'nowhere'"]),
        (["run", "--mode", "share", "--max-pods-per-gpu", "0"], ["--max-pods-per-gpu", "'0'"]),
        (["run", "--mode", "share", "--kubelet-dir", "here"], ["--kubelet-dir", "absolute"]),
        (["run", "--mode", "share", "--exclusive-resource", "gpu"], ["--exclusive-resource", "'gpu'"]),
        (["run", "--mode", "share", "--device-strategy", "magic"], ["--device-strategy", "cdi"]),
        (["run", "--mode", "share", "--config", "/nonexistent.toml"], ["/nonexistent.toml"]),
        (["run", "--mode", "share", "--simulate", "toaster"], ["--simulate", "toaster", "dgx-a100"]),
        (["run"], ["--node-name", "NODE_NAME"]),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistakes_in_flags_are_reported(arguments: list[str], texts: list[str]) -> None:
    """Unknown command, flag or value, missing or unreadable file: exit code 2, what and where on stderr, no traceback."""
    done = command(*arguments, env={"PATH": "/usr/bin"})
    assert done.returncode == 2, done.stderr
    for text in texts:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [("fly = 1", "unknown setting fly"), ("mode = [1]", "mode"), ("mode = ", "is not TOML"), ('mode = "fast"', "fast")],
)
def test_mistakes_in_the_file_are_reported(tmp_path: Path, text: str, expected: str) -> None:
    """The --config file: exit code 2, file and key on stderr."""
    path = tmp_path / "gpuagent.toml"
    path.write_text(text)
    done = command("run", "--config", str(path), env={"PATH": "/usr/bin"})
    assert done.returncode == 2, done.stderr
    assert str(path) in done.stderr
    assert expected in done.stderr


def test_mistakes_in_the_environment_are_reported() -> None:
    """An unknown GPUAGENT_ variable, and a bad value in a known one: exit code 2 and its name."""
    done = command("run", env={"PATH": "/usr/bin", "GPUAGENT_FLY": "1"})
    assert done.returncode == 2
    assert "GPUAGENT_FLY" in done.stderr
    done = command("run", env={"PATH": "/usr/bin", "GPUAGENT_MODE": "fast"})
    assert done.returncode == 2
    assert "GPUAGENT_MODE" in done.stderr


def test_a_taken_port_is_reported(node: MakeNode) -> None:
    """--http-address of another process: exit code 2 and the address."""
    one = node("1.36", box(1, 24))
    agent = one.run(http_address=("127.0.0.1", 0))
    flags = ("--mode", "share", "--http-address", f"127.0.0.1:{agent.http_port}")
    done = command("run", *one.flags(), *flags, env=one.environment())
    assert done.returncode == 2, done.stderr
    assert f"127.0.0.1:{agent.http_port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreadable_kubeconfig_is_reported(node: MakeNode) -> None:
    """--kubeconfig that is not there: the agent serves kubelet, and says in problems and readiness which file."""
    one = node("1.36", box(1, 24))
    agent = one.run(mode=None, kubeconfig=Path("/nonexistent/kubeconfig"))
    wait_for(lambda: any("/nonexistent/kubeconfig" in p["message"] for p in agent.status()["problems"]))
    assert "/nonexistent/kubeconfig" in (agent.unready_because() or "")
    assert one.kubelet.wait(lambda: bool(one.kubelet.lists(MEM)))


def test_status_without_an_agent_is_reported() -> None:
    """`gpuagent status` where nobody listens: exit code 1, the address, no traceback."""
    port = free_port()
    done = command("status", "--url", f"http://127.0.0.1:{port}")
    assert done.returncode == 1
    assert done.stderr == f"gpuagent: no agent answers at http://127.0.0.1:{port}: Connection refused\n"


def test_the_topology_is_shown_as_table_and_json(node: MakeNode) -> None:
    """`gpuagent topology` asks the agent: links, who holds what, best sets."""
    one = node("1.36", boxes.load("dgx1-v100"), labels={MODE_LABEL: "topology"})
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(whole=8)
    one.allocate(WHOLE, sorted(one.ids(WHOLE))[:1])
    url = ("--url", f"http://127.0.0.1:{agent.http_port}")
    done = command("topology", *url)
    assert done.returncode == 0, done.stderr
    assert "GPU0  X     NV1   NV1   NV2   NV2   SYS   SYS   SYS" in done.stdout
    page = json.loads(command("topology", "-o", "json", *url).stdout)
    assert page["links"][0][3] == {"type": "NV2", "gbps": 50.0, "switched": False}
    for path in ("/", "/page.css", "/live.js", "/links.js", "/node.js"):
        assert fetch(agent.http_port, path)[0] == 200


def test_the_topology_without_an_agent_is_that_of_the_box_or_driver() -> None:
    """--simulate shows a box, an unknown one is told with those there are; without agent and driver: exit code 1."""
    assert "NVSwitches" in command("topology", "--simulate", "hgx-h100").stdout
    done = command("topology", "--simulate", "hgx-9000")
    assert done.returncode == 2
    assert "unknown box 'hgx-9000'" in done.stderr
    port = free_port()
    done = command("topology", "--url", f"http://127.0.0.1:{port}")
    assert done.returncode == (0 if "read from the driver" in done.stderr else 1)
    assert f"no agent answers at http://127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ({"/topology": {"version": "0.0.1", "links": []}}, "is gpuagent 0.0.1; this command is of gpuagent"),
        ({"/topology": []}, "is not a gpuagent"),
        ({"/topology": dict.fromkeys(TOPOLOGY_KEYS) | {"version": "9.9"}}, "the page is of gpuagent 9.9"),
        ({"/status": {}}, "has no page /topology (404 Not Found)"),
    ],
)
def test_another_version_or_program_is_distinguished(page: dict[str, Any], expected: str) -> None:
    """What answers and has not the page that the command needs: exit code 1, and what it is."""
    pages = {path: json_page(lambda body=body: body) for path, body in page.items()}
    server = HttpServer(("127.0.0.1", 0), pages, probes={})
    server.start()
    try:
        done = command("topology", "--url", f"http://127.0.0.1:{server.port}")
    finally:
        server.stop()
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\x7f\nforged"


def test_what_a_page_says_cannot_steer_a_terminal(node: MakeNode) -> None:
    """Every text of the pages is hostile: tables and messages are printable, line by line."""
    one = node("1.36", box(2, 24))
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=48)

    status, topology = agent.status(), agent.topology()
    kept = {"Healthy", "steady", "GiB", *(link["type"] for row in topology["links"] for link in row if link)}

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: hostile(one) for key, one in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        return value + HOSTILE if isinstance(value, str) and value not in kept else value

    status["problems"] = [{"reason": "Test", "message": "test", "warning": True}]
    status["gpus"][0]["containers"] = [{"container": "default/p[c0]", "resource": MEM, "units": 6}]
    status["resources"] = {name + HOSTILE: view for name, view in status["resources"].items()}
    pages = {"/status": json_page(lambda: hostile(status)), "/topology": json_page(lambda: hostile(topology))}
    server = HttpServer(("127.0.0.1", 0), pages, probes={})
    server.start()
    url = ("--url", f"http://127.0.0.1:{server.port}")
    try:
        shown = [command(*asked, *url) for asked in (["status"], ["topology"])]
        shown += [command(name, "-o", "json", *url) for name in ("status", "topology")]
        other = command("status", "--url", url[1] + "/\x1b]0;owned\x07")
    finally:
        server.stop()
    assert [done.returncode for done in shown] == [0] * 4, [done.stderr for done in shown]
    for text in (*(done.stdout for done in shown), other.stderr):
        assert "owned" in text or not text
        assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("url", ["node-1:9445", "http://[::1", "http://127.0.0.1:99999", "http://", "ftp://node-1"])
def test_an_address_that_is_none_is_reported(url: str) -> None:
    """--url that is no URL: exit code 2, and what one looks like."""
    done = command("status", "--url", url)
    assert done.returncode == 2
    assert done.stderr == f"gpuagent: --url: {url!r} is not like http://127.0.0.1:9445\n"


def test_faults_are_injected_from_another_process(node: MakeNode) -> None:
    """`gpuagent simulate` reaches a simulated agent: an XID makes a GPU unhealthy; what is no fault is told."""
    one = node("1.36", box(2, 24))
    one.spawn("--mode", "share")
    one.offers(mem=48)
    state = ("--state-dir", str(one.root / "state"))
    done = command("simulate", json.dumps({"fault": "xid", "gpu": 0, "code": 79}), *state)
    assert done.returncode == 0, done.stderr
    one.offers(mem=24)
    bad = {
        "{": "the fault is not JSON (",
        "[" * 5000: "the fault is not JSON (",
        '{"fault": "flood"}': "not a fault: there is no fault 'flood'; faults are xid, ",
        '{"fault": "xid"}': "not a fault: fault xid needs gpu and code; ",
        '{"fault": "xid", "gpu": 9, "code": 79}': "not a fault: there is no GPU 9 in box ",
    }
    for fault, expected in bad.items():
        done = command("simulate", fault, *state)
        assert done.returncode == 2
        assert done.stderr.startswith(f"gpuagent: {expected}")
        assert done.stderr.endswith('write it like {"fault": "xid", "gpu": 0, "code": 79}\n')
    done = command("simulate", '{"fault": "xid", "gpu": 0, "code": 79}', "--state-dir", "/nonexistent")
    assert done.returncode == 1
    assert "/nonexistent" in done.stderr


WITHOUT_DRIVER = """
import pynvml
def missing(*_): raise OSError
pynvml.CDLL = missing
from gpuagent.__main__ import main
main()
"""


def test_a_start_without_driver_kubelet_and_api_server_warns_once_of_each(tmp_path: Path) -> None:
    """One line for each fact, with the problem's reason as the message; no fact is logged twice."""
    flags = ("--node-name", "node-1", "--kubelet-dir", str(tmp_path), "--state-dir", str(tmp_path / "state"))
    flags += ("--kubeconfig", str(tmp_path / "none"), "--http-address", "off", "--log-format", "json")
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_DRIVER, "run", *flags],
        env={"PATH": "/usr/bin"},
        cwd=REPOSITORY,
        text=True,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[dict[str, str]] = []
    expected = {
        "ModeNotYetKnown",
        "DriverUnavailable",
        "PodResourcesUnavailable",
        "APIServerUnavailable",
        "PodsUnavailable",
    }
    expected.add("ResourceNotRegistered")
    with process, in_time(process):
        while not expected <= {line["event"] for line in lines}:
            lines.append(json.loads(process.stderr.readline()))
        process.terminate()
        lines += map(json.loads, process.stderr)
    warnings = [line for line in lines if line["level"] != "info"]
    assert sorted(line["event"] for line in warnings) == sorted(expected), warnings
    assert len({line["text"] for line in warnings}) == len(warnings)
    (registration,) = (line["text"] for line in warnings if line["event"] == "ResourceNotRegistered")
    assert registration == f"there is no {tmp_path}/device-plugins/kubelet.sock"


@contextmanager
def in_time(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Kill the process after a generous while, so that a test that reads its lines ends."""
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    yield
    timer.cancel()
    timer.join()
