"""`kubectl inspect cgpu --defragment`: the plans of gpuscheduler on the screen."""

import http.server
import json
import threading

import pytest
import yaml

from inspectcgpu.cli import run
from inspectcgpu.read.defragment_page import read_moves_page
from inspectcgpu.show.moves import moves
from standin.api.server import ApiServer

LABELS = {"app.kubernetes.io/name": "gpuagent", "app.kubernetes.io/component": "scheduler"}
MOVE = {
    "pod": "team-b/web-5d8f",
    "amounts": {"memory": 15, "core": 0, "gpus": 0},
    "from_node": "gpu-1",
    "from_gpus": [0],
    "to_node": "gpu-2",
    "to_gpus": [3],
}
PLAN = {"node": "gpu-1", "gpus": [0], "moves": [MOVE]}
PAGE = {
    "enabled": True,
    "moves": 2,
    "problem": "",
    "running": None,
    "last": "done: 1 of 1 pods were evicted for pod team-a/former",
    "waiting": [
        {
            "pod": "team-a/large",
            "wants": {"memory": 40, "core": 0, "gpus": 0},
            "waits_s": 75,
            "plan": PLAN,
            "why_not": "",
        },
        {
            "pod": "team-a/whole",
            "wants": {"memory": 0, "core": 0, "gpus": 8},
            "waits_s": 5,
            "plan": None,
            "why_not": "at most 2 moves of pods that may be moved make no room for it",
        },
    ],
}
SCREEN = """\
Pod team-a/large waits for 75 s for 40 aliyun.com/gpu-mem. 1 move would make room:
  POD              AMOUNTS                FROM         TO
  team-b/web-5d8f  15 aliyun.com/gpu-mem  gpu-1 GPU 0  gpu-2 GPU 3
  team-a/large     40 aliyun.com/gpu-mem  -            gpu-1 GPU 0

Pod team-a/whole waits for 5 s for 8 aliyun.com/gpu: at most 2 moves of pods that may be moved make no room for it

At most 2 pods are moved in one plan, one plan at a time
The last plan: done: 1 of 1 pods were evicted for pod team-a/former
"""


@pytest.fixture
def server():
    with ApiServer("n0") as standin:
        yield standin


@pytest.fixture
def scheduler(server):
    """Adds a pod of gpuscheduler that answers with a page; returns the flags with its port."""
    servers = []

    def start(page, name="gpu-scheduler-x"):
        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = page if isinstance(page, bytes) else json.dumps(page).encode()
                is_there = self.path == "/defragment"
                self.send_response(200 if is_there else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        servers.append((found, thread))
        server.create_pod(name, node="n0", namespace="kube-system", labels=LABELS)
        status = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
        server.patch_pod(name, status, namespace="kube-system", subresource="status")
        return ("--scheduler-port", str(found.server_address[1]))

    yield start
    for found, thread in servers:
        found.shutdown()
        thread.join()
        found.server_close()


@pytest.fixture
def call(capsys, server, tmp_path):
    config = str(server.write_kubeconfig(tmp_path / "config"))

    def called(*arguments):
        code = run(["--kubeconfig", config, "--defragment", *arguments], {})
        out, err = capsys.readouterr()
        return code, out, err

    return called


def test_plans_are_shown_in_words_and_in_a_table(call, scheduler):
    assert call(*scheduler(PAGE)) == (0, SCREEN, "")


def test_a_plan_under_way_comes_first(call, scheduler):
    running = {"pod": "team-a/large", "phase": "moving", "evicted": 1, "plan": PLAN}
    _, out, _ = call(*scheduler(PAGE | {"running": running, "waiting": []}))
    assert out.startswith("Under way (moving), for pod team-a/large:\n  POD ")


def test_what_keeps_plans_from_being_carried_out_is_said(call, scheduler):
    page = {"enabled": False, "moves": 3, "problem": "defragmentation is off", "waiting": []}
    _, out, _ = call(*scheduler(page))
    assert out == ("No pod waits for which others could be moved\n\nNothing is moved now: defragmentation is off\n")


def test_a_program_gets_json_or_yaml(call, scheduler):
    port = scheduler(PAGE)
    _, as_json, _ = call(*port, "-o", "json")
    _, as_yaml, _ = call(*port, "-o", "yaml")
    found = json.loads(as_json)
    assert found == yaml.safe_load(as_yaml)
    assert found["waiting"][0]["moves"] == [
        {
            "pod": "team-b/web-5d8f",
            "amounts": "15 aliyun.com/gpu-mem",
            "origin": "gpu-1 GPU 0",
            "target": "gpu-2 GPU 3",
        }
    ]


def test_without_a_scheduler_the_command_says_where_it_looked(call):
    code, out, err = call()
    assert (code, out) == (1, "")
    assert "app.kubernetes.io/component=scheduler runs in namespace kube-system" in err


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"enabled":1', b"[" * 100_000])
def test_another_program_that_answers_is_no_scheduler(call, scheduler, answer):
    code, _, err = call(*scheduler(answer))
    assert code == 1
    assert "does not answer as gpuscheduler" in err


def test_a_missing_right_is_named(call, scheduler, server):
    port = scheduler(PAGE)
    server.deny("get", "pods/proxy")
    code, _, err = call(*port)
    assert code == 1
    assert 'allow verb "get" on resource "pods/proxy"' in err


@pytest.mark.parametrize("odd", [7, None, "x", [], {}, {"moves": 7}, {"moves": [7, {"from_gpus": 7}]}, "\x1b[31m"])
def test_odd_values_end_nothing_and_reach_no_terminal(odd):
    for key in ("running", "waiting", "problem", "moves", "last"):
        page = read_moves_page(PAGE | {key: odd})
        assert page is not None
        assert "\x1b" not in "\n".join(moves(page, colour=False))
    for key in ("pod", "wants", "waits_s", "plan", "why_not"):
        page = read_moves_page(PAGE | {"waiting": [PAGE["waiting"][0] | {key: odd}]})
        assert page is not None
        assert "\x1b" not in "\n".join(moves(page, colour=False))
