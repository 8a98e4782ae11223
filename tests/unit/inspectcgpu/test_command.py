"""The command against an API server: pages, contexts, rights, agents, watches, pipes, colours."""

import http.server
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api import pages
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client
from inspectcgpu.fetch.agents import Asking
from inspectcgpu.fetch.cluster import Wanted
from inspectcgpu.fetch.following import OTHERS_EVERY_S, REFRESH_S, Following
from inspectcgpu.read.gpu_node import RESOURCES
from standin.waiting import PATIENCE_S
from tests.unit.inspectcgpu.sample_cluster import add_node, add_pod

ROOT = Path(__file__).parents[3]
ENVIRON = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'installer'}:{ROOT / 'kubectl'}"}


def test_the_cluster_is_read_in_pages(server, call, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 2)
    for n in range(1, 6):
        add_node(server, f"n{n}", gpus=1, mem=15)
        add_pod(server, f"p{n}", f"n{n}", n, 0)
        server.create_pod(f"other{n}", node=f"n{n}")
    code, out, err = call()
    assert (code, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()[1:6]] == [f"{n}/15" for n in range(1, 6)]
    assert out.splitlines()[-1] == "15/75 (20%)"
    assert server.requests == {"list nodes": 3, "list pods": 5}


def test_nodes_can_be_named_and_those_that_are_not_there_are_reported(server, call):
    for name in ("n1", "n2"):
        add_node(server, name, gpus=1, mem=15)
        add_pod(server, f"on-{name}", name, 3, 0)
    code, out, _ = call("n2")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:2]] == ["n2"]
    assert out.splitlines()[-1] == "3/15 (20%)"
    code, out, err = call("n1", "n7", "n0")
    assert code == 1
    assert out.splitlines()[-1] == "3/15 (20%)"
    assert err.splitlines() == [
        "kubectl-inspect-cgpu: node n0 has no GPUs to share or to place",
        "kubectl-inspect-cgpu: there is no node n7",
    ]
    many = [f"m{n}" for n in range(9)]
    code, out, err = call(*many, "n1")
    assert (code, err.count("there is no node"), out.splitlines()[-1]) == (1, 9, "3/15 (20%)")


def test_a_command_without_its_dashes_is_not_only_a_node_that_does_not_exist(server, call):
    add_node(server, "n1", gpus=1, mem=15)
    code, _, err = call("why", "n7")
    assert code == 1
    assert err.splitlines() == [
        "kubectl-inspect-cgpu: there is no node why; did you mean --why?",
        "kubectl-inspect-cgpu: there is no node n7",
    ]


def test_a_cluster_without_gpus_says_so(server, call):
    server.create_pod("p")
    code, out, err = call()
    assert (code, out) == (0, "")
    assert err.startswith("no GPU nodes: no node has aliyun.com/gpu-mem")
    code, out, err = call("-o", "json")
    assert (code, json.loads(out)["nodes"]) == (0, [])


@pytest.mark.parametrize("what", ["nodes", "pods"])
def test_a_right_that_is_missing_is_named(server, call, what):
    add_node(server, "n1", gpus=1, mem=15)
    server.deny("list", what)
    code, out, err = call()
    assert (code, out) == (1, "")
    assert f'RBAC refuses: allow verb "list" on resource "{what}" in API group ""' in err


def test_what_a_server_says_steers_no_terminal(call, capsys, monkeypatch):
    def refuse(*_):
        raise KubeError("said \x1b[2J\x9b31m\nof another line")

    monkeypatch.setattr("inspectcgpu.commands.nodes.read_nodes", refuse)
    assert call() == (1, "", "kubectl-inspect-cgpu: said �[2J�31m of another line\n")


def test_an_api_server_that_is_away_is_reported(server, call):
    server.stop()
    code, _, err = call()
    assert code == 1
    assert "cannot be reached: Connection refused" in err
    server.start()


def test_contexts_and_kubeconfigs(server, call, tmp_path, config):
    add_node(server, "n1", gpus=1, mem=15)
    code, _, err = call("--context", "other")
    assert (code, err) == (2, f"kubectl-inspect-cgpu: kubeconfig {config} has no context 'other'; it has standin\n")
    assert call("--context", "standin")[0] == 0
    code, _, err = call("--kubeconfig", str(tmp_path / "none"))
    assert (code, err) == (
        2,
        f"kubectl-inspect-cgpu: kubeconfig {tmp_path}/none cannot be read: No such file or directory\n",
    )
    home = {"HOME": str(tmp_path / "home")}
    code, _, err = call(environ=home)
    assert code == 2
    assert "give --kubeconfig FILE, set KUBECONFIG" in err
    code, _, err = call(environ={**home, "KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"})
    assert (code, "KUBECONFIG names no file that exists" in err) == (2, True)
    assert call(environ={**home, "KUBECONFIG": f"{tmp_path}/a:{config}"})[0] == 0
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    (tmp_path / "home" / ".kube" / "config").write_text(Path(config).read_text())
    assert call(environ=home)[0] == 0


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo 'expired, log in' >&2; exit 1", "exec: process returned 1. expired, log in"), (None, "No such file")],
)
def test_a_credential_plugin_that_fails_is_reported(server, config, tmp_path, script, expected):
    plugin = tmp_path / "plugin"
    if script:
        plugin.write_text(f"#!/bin/sh\n{script}\n")
        plugin.chmod(0o755)
    kubeconfig = json.loads(Path(config).read_text())
    kubeconfig["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    Path(config).write_text(json.dumps(kubeconfig))
    with start(config, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        err = process.stderr.read().decode()
        assert process.wait() == 2
    assert err.startswith(f"kubectl-inspect-cgpu: kubeconfig {config} gives no credentials: ")
    assert expected in err
    assert err.count("\n") == 1


def test_of_several_files_the_first_current_context_counts(server, call, tmp_path, config):
    add_node(server, "n1", gpus=1, mem=15)
    away = json.loads(Path(config).read_text().replace("standin", "away"))
    away["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    other = tmp_path / "away"
    other.write_text(json.dumps(away))
    assert call(environ={"KUBECONFIG": f"{config}:{other}"})[0] == 0
    assert call(environ={"KUBECONFIG": f"{other}:{config}"})[0] == 1


def test_json_and_yaml_say_the_same(server, call):
    add_node(server, "n1", gpus=2, mem=30)
    add_pod(server, "p", "n1", 3, 1)
    as_json, as_yaml = json.loads(call("-o", "json")[1]), yaml.safe_load(call("-o", "yaml")[1])
    assert as_json == as_yaml
    assert as_json["totals"]["memory"] == [{"unit": "GiB", "allocated": 3, "total": 30, "percent": 10}]
    assert as_json["nodes"][0]["pods"][0]["gpus"] == {"aliyun.com/gpu-mem": [{"gpu": 1, "units": 3}]}


STATUS = {
    "memory_unit": "GiB",
    "gpus": [
        {
            "minor": 1,
            "memory_mib": 15360,
            "health": "Healthy",
            "units": {"aliyun.com/gpu-mem": 15},
            "containers": [{"container": "default/p[main]", "resource": "aliyun.com/gpu-mem", "units": 3}],
        }
    ],
}
AGENT = {"app.kubernetes.io/name": "gpuagent", "app.kubernetes.io/component": "agent"}
METRICS = """# TYPE gpuagent_container_gpu_memory_used_bytes gauge
gpuagent_container_gpu_memory_used_bytes{UUID="GPU-a",gpu="1",namespace="default",pod="p",container="main"} 1.073741824e+09
# TYPE gpuagent_container_gpu_memory_limit_bytes gauge
gpuagent_container_gpu_memory_limit_bytes{UUID="GPU-a",gpu="1",namespace="default",pod="p",container="main"} 3.221225472e+09
"""


@pytest.fixture
def agent(server) -> Iterator[str]:
    """An agent's pages on loopback, in a pod on n1; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write({"/status": json.dumps(STATUS), "/metrics": METRICS}[self.path].encode())

        def log_message(self, *_: object) -> None:
            pass

    add_node(server, "n1", gpus=1, mem=15)
    add_pod(server, "p", "n1", 3)
    server.create_pod("gpuagent-x", node="n1", namespace="kube-system", labels=AGENT)
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
    server.patch_pod("gpuagent-x", status, namespace="kube-system", subresource="status")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield str(found.server_address[1])
        found.shutdown()
        thread.join()


def test_a_pod_without_annotations_is_found_through_its_nodes_agent(call, agent):
    code, out, _ = call("--agent-port", agent)
    assert (code, out.splitlines()[1].split()[2:]) == (0, ["0/0", "3/15", "3/15"])
    assert "Pods without" not in out
    _, out, _ = call("--no-agents")
    assert out.splitlines()[1].split()[2:] == ["0/15", "3", "3/15"]


def test_a_pod_of_another_component_on_the_node_is_not_taken_for_the_agent(server, call, agent):
    labels = AGENT | {"app.kubernetes.io/component": "mps-control"}
    server.create_pod("mps-control-x", node="n1", namespace="kube-system", labels=labels)
    status = {"status": {"phase": "Running", "podIP": "127.0.0.2"}}
    server.patch_pod("mps-control-x", status, namespace="kube-system", subresource="status")
    _, out, _ = call("--agent-port", agent)
    assert out.splitlines()[1].split()[2:] == ["0/0", "3/15", "3/15"]


def test_details_show_what_is_used(call, agent):
    _, out, _ = call("-d", "--agent-port", agent)
    assert out.splitlines()[5].split() == ["p", "default", "0", "3", "1.0/3.0"]
    assert "USED/LIMIT is not known" not in out


def test_where_the_agent_reports_limits_alone_the_reason_is_reported(call, agent, monkeypatch):
    monkeypatch.setitem(globals(), "METRICS", METRICS[METRICS.index("# TYPE", 1) :])
    _, out, _ = call("-d", "--agent-port", agent)
    assert out.splitlines()[5].split() == ["p", "default", "0", "3", "-/3.0"]
    assert "USED/LIMIT is not known: node n1: its agent does not report what containers use" in out
    assert "metrics.perContainerUse" in out


def test_rights_on_agents_that_are_missing_are_named_once(server, call, agent):
    server.deny("get", "pods/proxy")
    code, out, _ = call("--agent-port", agent, "-d")
    assert code == 0
    assert out.count('allow verb "get" on resource "pods/proxy"') == 2  # for what is used, and for who has what
    assert "USED/LIMIT is not known: node n1" in out


def test_an_agent_that_is_not_there_costs_a_note(server, call, agent):
    code, out, _ = call("--agent-port", "1")
    assert code == 0
    assert "the agent of node n1 could not be asked: the API server answers 503" in out


def test_an_agent_that_runs_without_a_pod_is_asked_by_its_node_and_a_node_without_one_is_not(server, call, agent):
    server.delete_pod("gpuagent-x", namespace="kube-system")
    _, out, _ = call("--agent-port", agent, "-d")
    assert server.requests["get nodes/proxy"] == 0
    assert "USED/LIMIT is not known: node n1: no gpuagent runs on it" in out
    condition = {"type": "GPUAgentReady", "status": "True", "reason": "Ready", "message": ""}
    status = {"conditions": [condition], "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    server.objects.patch(("nodes", "", "n1"), "status", {"status": status}, strategic=True)
    _, out, _ = call("--agent-port", agent)
    assert out.splitlines()[1].split()[2:] == ["0/0", "3/15", "3/15"]
    assert server.requests["get nodes/proxy"] == 1


def test_an_agent_that_is_silent_does_not_hold_up_the_command(server, config):
    ended = threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ended.wait(PATIENCE_S)

    add_node(server, "n1", gpus=1, mem=15)
    add_pod(server, "p", "n1", 3)
    server.create_pod("agent", node="n1", namespace="kube-system", labels=AGENT)
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
    server.patch_pod("agent", status, namespace="kube-system", subresource="status")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        flags = ("--agent-port", str(found.server_address[1]), "--agent-timeout", "0.3")
        with start(config, *flags, stdout=subprocess.PIPE) as process:
            assert b"the agent of node n1 could not be asked: no answer within 0.3 s" in process.stdout.read()
            assert process.wait() == 0
        ended.set()
        found.shutdown()
        thread.join()


def test_ill_gpus_are_known_from_their_config_map(server, call):
    add_node(server, "n1", gpus=2, mem=30, allocatable={"aliyun.com/gpu-mem": 15})
    labels = {"app.kubernetes.io/managed-by": "gpuagent"}
    server.objects.create(
        "configmaps", "kube-system", {"metadata": {"name": "unhealthy-gpu-n1", "labels": labels}, "data": {"gpus": "1"}}
    )
    _, out, _ = call()
    assert out.splitlines()[1].split()[2:] == ["0/15", "0/15!", "0/15"]
    assert out.splitlines()[-1] == "- node n1: GPU 1 is unhealthy"
    server.deny("list", "configmaps")
    code, out, _ = call()
    assert code == 0
    assert 'allow verb "list" on resource "configmaps"' in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--interval", "0"],
        ["--interval", "1e300"],
        ["--interval", "x"],
        ["--agent-timeout", "nan"],
        ["-o", "xml"],
        ["--agent-timeout", "1e300"],
        ["--nonsense"],
    ],
)
def test_mistakes_in_flags_end_with_2(call, arguments):
    assert call(*arguments)[0] == 2


# -- as a process ----------------------------------------------------------------------------------------------


# As at a terminal: a shell that runs the tests in the background has its children ignore Ctrl-C. Not by `preexec_fn`:
# that forks this process with gRPC's threads in it, which then write to the child's stderr.
INTERRUPTIBLE = ["env", "--default-signal=INT"]


def start(config, *arguments, **how):
    command = [*INTERRUPTIBLE, sys.executable, "-m", "inspectcgpu", "--kubeconfig", config, *arguments]
    return subprocess.Popen(command, env=ENVIRON | how.pop("environ", {}), **how)


def on_terminal(config, *arguments, environ=None, columns=0, code=0) -> str:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    with start(config, *arguments, stdout=follower, environ={"TERM": "xterm", **(environ or {})}) as process:
        os.close(follower)
        out = b""
        try:
            while piece := os.read(leader, 65536):
                out += piece
        except OSError:
            pass  # the other end was closed
        assert process.wait() == code
    os.close(leader)
    return out.decode()


def test_colour_is_for_terminals_and_not_with_no_color(server, config):
    add_node(server, "n1", gpus=1, mem=15)
    assert "\x1b[1mNAME" in on_terminal(config)
    assert "\x1b" not in on_terminal(config, environ={"NO_COLOR": "1"})
    assert "\x1b" not in on_terminal(config, environ={"TERM": "dumb"})
    with start(config, stdout=subprocess.PIPE) as process:
        assert b"\x1b" not in process.stdout.read()


def test_the_documented_table_is_for_terminals_where_it_fits(server, config):
    add_node(server, "n1", gpus=8, mem=120)
    assert "GPU7(Allocated/Total)" in on_terminal(config, columns=300)
    assert "GPU7(Allocated/Total)" in on_terminal(config, "-o", "wide", columns=80)
    narrow = on_terminal(config, columns=80, environ={"NO_COLOR": "1"})
    assert "GPU7 0/15 GiB" in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    with start(config, stdout=subprocess.PIPE) as process:
        assert b"GPU7(Allocated/Total)" in process.stdout.read()


def test_a_pipe_that_is_closed_early_is_no_crash(server, config):
    for n in range(200):
        add_node(server, f"n{n:03}" + "x" * 200, gpus=16, mem=240)
    with start(config, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_disk_that_is_full_is_reported(server, config):
    add_node(server, "n1", gpus=1, mem=15)
    with Path("/dev/full").open("w") as full, start(config, stdout=full, stderr=subprocess.PIPE) as process:
        text = b"kubectl-inspect-cgpu: the output cannot be written: No space left on device\n"
        assert process.stderr.read() == text
        assert process.wait() == 1


def test_a_locale_without_the_letters_is_no_crash(server, config):
    add_node(server, "n1", gpus=1, mem=15)
    add_pod(server, "p", "n1", 3)
    server.patch_pod(
        "p",
        {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Größe 节点"}},
        subresource="status",
    )
    with start(config, stdout=subprocess.PIPE, environ={"PYTHONIOENCODING": "ascii"}) as process:
        assert b"Gr\\xf6\\xdfe" in process.stdout.read()


class Watching:
    """A command that watches; `until` reads its output."""

    def __init__(self, config, *arguments):
        self.process = start(
            config, "--watch", "--interval", "0.05", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.text = ""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with io.TextIOWrapper(self.process.stdout, encoding="utf-8") as lines:
            for line in lines:
                with self._changed:
                    self.text += line
                    self._changed.notify_all()

    def until(self, wanted):
        with self._changed:
            assert self._changed.wait_for(lambda: wanted in self.text, PATIENCE_S), self.text

    def end(self):
        self.process.send_signal(signal.SIGINT)
        code, err = self.process.wait(PATIENCE_S), self.process.stderr.read().decode()
        self._thread.join()
        self.process.stderr.close()
        return code, err


def test_a_watch_shows_changes_survives_the_api_server_and_ends_cleanly(server, config):
    add_node(server, "n1", gpus=1, mem=15)
    watching = Watching(config)
    try:
        watching.until("0/15 (0%)")
        add_pod(server, "p", "n1", 3, 0)
        watching.until("3/15 (20%)")
        server.stop()
        watching.until("cannot be followed, and are shown as they were last seen: the API server")
        server.start()
        server.delete_pod("p")
        add_pod(server, "q", "n1", 7, 0)
        watching.until("7/15 (46%)")
    finally:
        assert watching.end() == (0, "")
    assert "\x1b" not in watching.text


def test_a_watch_follows_the_nodes_that_a_selector_selects(server, config):
    for name, zone in (("n1", "a"), ("n2", "b")):
        add_node(server, name, gpus=1, mem=15, labels={"zone": zone})
    watching = Watching(config, "-l", "zone=a", "-o", "name")
    try:
        watching.until("node/n1\n")
        for name, zone in (("n2", "a"), ("n1", "b")):
            labels = {"metadata": {"labels": {"zone": zone}}}
            server.objects.patch(("nodes", "", name), "", labels, strategic=True)
            watching.until("node/n2\n")
        watching.until("node/n1\nnode/n2\nnode/n2\n")
    finally:
        assert watching.end() == (0, "")


def test_a_watch_asks_an_agent_again_for_a_pod_that_came_after_the_last_asking(server, config, agent, monkeypatch):
    """Nothing else happens then that would wake it."""
    clock = [1000.0]
    monkeypatch.setattr("inspectcgpu.fetch.following.time", SimpleNamespace(monotonic=lambda: clock[0]))
    following = Following(Client(config), Wanted(), Asking(port=int(agent)), usage=False)
    following.start()
    try:
        while not following.complete:
            following.updated.wait(PATIENCE_S)
            following.updated.clear()
        assert following.facts().newer == set()
        assert following.good_for_s == REFRESH_S
        clock[0] += 3
        following.updated.clear()
        server.create_pod("new", {"aliyun.com/gpu-mem": "4"}, node="n1")
        assert following.updated.wait(PATIENCE_S)
        assert following.facts().newer == {PodName("default", "new")}
        assert following.good_for_s == OTHERS_EVERY_S - 3
        clock[0] += following.good_for_s
        assert following.facts().newer == set()
        assert following.good_for_s == REFRESH_S
    finally:
        following.stop()


def test_a_watch_for_programs_is_one_document_a_line(server, config):
    add_node(server, "n1", gpus=1, mem=15)
    watching = Watching(config, "-o", "json", "n1")
    try:
        watching.until('"allocated": 0')
        add_pod(server, "p", "n1", 3, 0)
        watching.until('"allocated": 3')
    finally:
        assert watching.end() == (0, "")
    assert [json.loads(line)["version"] for line in watching.text.splitlines()]


def test_a_watch_that_may_not_list_ends_with_the_reason(server, config):
    server.deny("list", "nodes")
    with start(config, "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert b'allow verb "list" on resource "nodes"' in process.stderr.read()
        assert process.wait() == 1


def test_a_watch_on_a_terminal_draws_over_what_was_there(server, config):
    add_node(server, "n1", gpus=1, mem=15)
    leader, follower = pty.openpty()
    with start(config, "--watch", stdout=follower, environ={"TERM": "xterm"}) as process:
        os.close(follower)
        out = b""
        while b"0/15 (0%)" not in out:
            out += os.read(leader, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    os.close(leader)
    assert out.startswith(b"\x1b[H\x1b[2J")
    assert time.strftime("%Y-%m-%d").encode() in out


def test_health_shows_the_worst_nodes_first_and_fails(server, call):
    add_node(server, "n1", mem=60)
    add_node(server, "n2", "topology", whole=4, allocatable={"aliyun.com/gpu": 3})
    add_node(
        server,
        "n3",
        "mps",
        conditions=[{"type": "GPUAgentReady", "status": "False", "reason": "NoIsolation", "message": "no MPS"}],
    )
    code, out, _ = call("--health", "--no-agents")
    assert (code, out) == (1, HEALTH)
    code, out, _ = call("--health", "--no-agents", "n1")
    assert code == 0
    assert out.endswith("\n\n0 of 1 nodes have a problem\n")


@pytest.mark.parametrize(
    ("column", "nodes"),
    [
        ("node", "n1 n2 n3 n4"),
        ("name", "n1 n2 n3 n4"),
        ("mode", "n4 n3 n1 n2"),
        ("gpus", "n4 n1 n2 n3"),
        ("severity", "n3 n2 n4 n1"),
        ("problem", "n2 n4 n3 n1"),
    ],
)
def test_health_is_sorted_by_its_columns(server, call, column, nodes):
    blocking = {"type": "GPUAgentReady", "status": "False", "reason": "NoIsolation", "message": "no MPS"}
    labels = {"app.kubernetes.io/managed-by": "gpuagent"}
    add_node(server, "n1", mem=60)
    add_node(server, "n2", "topology", whole=4, allocatable={"aliyun.com/gpu": 3})
    add_node(server, "n3", "mps", conditions=[blocking])
    add_node(server, "n4", "core_mem", mem=60)
    server.objects.create(
        "configmaps", "kube-system", {"metadata": {"name": "unhealthy-gpu-n4", "labels": labels}, "data": {"gpus": "3"}}
    )
    _, out, _ = call("--health", "--no-agents", "--no-headers", "--sort-by", column)
    assert " ".join(line.split()[0] for line in out.splitlines()) == nodes


@pytest.mark.parametrize("mode", ["", "default", "share", "nonsense"])
def test_health_has_every_node_whose_agent_has_a_problem(server, call, mode):
    """Without the label the mode before stays, and a problem of whole GPUs in mode default is one too."""
    message = "the NVIDIA driver does not answer"
    condition = {"type": "GPUAgentReady", "status": "False", "reason": "DriverUnavailable", "message": message}
    add_node(server, "n1", mode, gpus=4, conditions=[condition])
    code, out, _ = call("--health", "--no-agents")
    assert code == 1
    assert f"nothing is advertised: DriverUnavailable: {message}" in out
    assert "\n1 of 1 nodes have a problem\n" in out
    code, out, _ = call()
    assert code == 0
    assert f"nothing is advertised: DriverUnavailable: {message}" in out
    assert "mode ," not in out


@pytest.mark.parametrize("mode", ["", "default"])
def test_a_ready_node_that_needs_no_amounts_is_of_interest_for_its_health_only(server, call, mode):
    condition = {"type": "GPUAgentReady", "status": "True", "reason": "Ready", "message": "mode default, 4 GPUs"}
    add_node(server, "n1", mode, gpus=4, conditions=[condition])
    code, out, _ = call("--health", "--no-agents")
    assert (code, out.splitlines()[-1]) == (0, "0 of 1 nodes have a problem")
    code, out, err = call()
    assert (code, out) == (0, "")
    assert err.startswith("no GPU nodes")
    _, out, err = call("n1")
    assert (out, err) == ("", "kubectl-inspect-cgpu: node n1 has no GPUs to share or to place\n")


def test_health_asks_the_agent_of_a_node_that_needs_no_amounts(server, config, call, agent, monkeypatch):
    condition = {"type": "GPUAgentReady", "status": "True", "reason": "Ready", "message": "mode default, 4 GPUs"}
    nothing = dict.fromkeys(RESOURCES, "0")
    status = {"conditions": [condition], "capacity": nothing, "allocatable": nothing}
    server.objects.patch(("nodes", "", "n1"), "status", {"status": status}, strategic=True)
    labels = {"ack.node.gpu.schedule": "default"}
    server.objects.patch(("nodes", "", "n1"), "", {"metadata": {"labels": labels}}, strategic=True)
    server.delete_pod("p")
    problem = {"reason": "InvalidPlacementLabel", "severity": "warning", "message": "'bin' is none", "warning": True}
    monkeypatch.setitem(STATUS, "problems", [problem])
    code, out, _ = call("--health", "--agent-port", agent)
    assert code == 1
    assert "InvalidPlacementLabel: 'bin' is none" in out
    watching = Watching(config, "--health", "--agent-port", agent)
    try:
        watching.until("InvalidPlacementLabel: 'bin' is none")
    finally:
        watching.end()


def test_health_shows_the_pods_on_unhealthy_gpus(server, call, agent, monkeypatch):
    """Who is hit is the second question of those who are woken up."""
    ill = {**STATUS["gpus"][0], "health": "Unhealthy", "cause": "XID 79"}
    problem = {"reason": "GPUUnhealthy", "severity": "warning", "message": "GPU 1: XID 79", "warning": True}
    monkeypatch.setitem(STATUS, "gpus", [ill])
    monkeypatch.setitem(STATUS, "problems", [problem])
    code, out, _ = call("--health", "--agent-port", agent)
    assert code == 1
    assert "GPUUnhealthy: GPU 1: XID 79" in out
    pods = out.partition("Pods on unhealthy GPUs:\n")[2].splitlines()
    assert [line.split() for line in pods[:2]] == [["NAMESPACE", "NAME", "NODE", "GPU"], ["default", "p", "n1", "1"]]
    assert out.splitlines()[-1].startswith("What to do: problems.md")


def test_health_of_many_nodes_lists_those_with_a_problem(server, call):
    for n in range(12):
        add_node(server, f"n{n:02}", mem=60)
    add_node(server, "ill", "topology", whole=4, allocatable={"aliyun.com/gpu": 3})
    code, out, _ = call("--health", "--no-agents")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["NODE", "ill"]
    assert "1 of 13 nodes have a problem; 12 without any are not listed (-o wide lists them)" in out
    assert len(call("--health", "--no-agents", "-o", "wide")[1].splitlines()) > 13


def test_problems_are_wrapped_to_the_terminal(server, config):
    add_node(server, "a-node-with-a-long-name", "topology", whole=4, allocatable={"aliyun.com/gpu": 3})
    shown = on_terminal(config, "--health", "--no-agents", columns=80, environ={"NO_COLOR": "1"}, code=1)
    assert "GPUs are unhealthy" not in shown.splitlines()[1]
    assert max(map(len, shown.splitlines())) <= 80, shown
    wide = on_terminal(config, "--health", "--no-agents", "-o", "wide", columns=80, environ={"NO_COLOR": "1"}, code=1)
    assert "3 of 4 aliyun.com/gpu are allocatable: GPUs are unhealthy, or the node's agent is away" in wide


def test_health_shows_every_problem_that_an_agent_reports_with_its_severity(server, call, agent, monkeypatch):
    """A mistyped label leaves the condition True; what is for information only is no reason to get up at night."""
    problems = [
        {"reason": "GPUFenced", "severity": "info", "message": "GPU 1 is fenced", "warning": False},
        {"reason": "InvalidModeLabel", "severity": "warning", "message": "'shrae' is not a mode", "warning": True},
        {"reason": "NoGPUs", "severity": "blocking", "message": "no GPU", "warning": True},
        {"reason": "Old", "message": "of an agent before severities", "warning": True},
    ]
    for count, code in ((1, 1), (2, 1), (3, 1), (4, 1)):
        monkeypatch.setitem(STATUS, "problems", problems[:count])
        found, out, _ = call("--health", "--agent-port", agent)
        shown = [
            tuple(line.split()[3:5]) if line.startswith("n1") else tuple(line.split()[:2]) for line in out.splitlines()
        ]
        assert found == (0 if count == 1 else code), out
        for problem in problems[:count]:
            assert (problem.get("severity", "warning"), f"{problem['reason']}:") in shown
    assert shown[1] == ("blocking", "NoGPUs:"), "the worst first"
    monkeypatch.setitem(STATUS, "problems", [])
    assert call("--health", "--agent-port", agent)[0] == 0
    (node,) = json.loads(call("-o", "json", "--agent-port", agent)[1])["nodes"]
    assert node["problems"] == []


@pytest.mark.parametrize(
    ("message", "code", "shown"),
    [
        ("mode share, 4 GPUs", 0, "-"),
        ("mode share, 4 GPUs; node label x='y' is not a mode", 1, "warning"),
        ("mode share, 4 GPUs; for information: GPU 0 is fenced", 0, "info"),
        ("mode share, 4 GPUs; it is broken; for information: GPU 0 is fenced", 1, "warning"),
    ],
)
def test_without_the_agent_health_reads_the_problems_in_a_condition_that_is_true(server, call, message, code, shown):
    condition = {"type": "GPUAgentReady", "status": "True", "reason": "Ready", "message": message}
    add_node(server, "n1", mem=56, conditions=[condition])
    found, out, _ = call("--health", "--no-agents")
    assert (found, out.splitlines()[1].split()[3]) == (code, shown)


def test_an_agent_that_does_not_answer_is_a_problem_beside_those_of_its_condition(server, call):
    message = "mode share, 4 GPUs; node label x='y' is not a mode"
    condition = {"type": "GPUAgentReady", "status": "True", "reason": "Ready", "message": message}
    add_node(server, "n1", mem=56, conditions=[condition])
    server.deny("get", "nodes/proxy")
    code, out, _ = call("--health")
    assert code == 1
    assert "node label x='y' is not a mode" in out
    assert "its agent could not be asked: " in out


HEALTH = """\
NODE  MODE      HEALTHY GPUS  SEVERITY  PROBLEM
n3    mps       4/4           blocking  mode mps, and nothing is advertised: NoIsolation: no MPS
n2    topology  4/4           warning   3 of 4 aliyun.com/gpu are allocatable: GPUs are unhealthy, or the node's agent is away
n1    share     4/4           -         -

2 of 3 nodes have a problem

What to do: problems.md of the documentation, by the word before the colon
"""
