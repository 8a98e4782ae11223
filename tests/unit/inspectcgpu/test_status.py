"""`status NODE`: the page of the node's agent, or everything that is known about why it does not answer."""

import http.server
import json
import threading

import pytest
import yaml

from gpuagent import __version__
from tests.unit.inspectcgpu.sample_cluster import add_node

AGENT = {"app.kubernetes.io/name": "gpuagent", "app.kubernetes.io/component": "agent"}
PAGE = {
    "node": "n1",
    "mode": "share",
    "label": {"ack.node.gpu.schedule": "share"},
    "placement": "binpack",
    "memory_unit": "GiB",
    "isolation": {"driver": "none", "version": "", "caveats": []},
    "switch": {"phase": "steady", "waiting_for": []},
    "gpus": [],
    "resources": {},
    "problems": [
        {"reason": "DriverUnavailable", "message": "no \x1b[2J driver", "severity": "blocking", "warning": True}
    ],
    "version": __version__,
}
CONDITION = {
    "type": "GPUAgentReady",
    "status": "False",
    "reason": "DriverUnavailable",
    "message": "the driver hangs",
    "lastTransitionTime": "2026-11-26T21:00:00Z",
}


@pytest.fixture
def agent(server):
    """Starts an agent's pod on n1 that answers with `answer`; returns the flags with its port."""
    servers = []

    def start(answer):
        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(200 if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
        thread.start()
        servers.append((pages, thread))
        add_pod(server)
        return "--agent-port", str(pages.server_address[1])

    yield start
    for pages, thread in servers:
        pages.shutdown()
        thread.join()
        pages.server_close()


def add_pod(server, name="gpuagent-x", *, node="n1", **status):
    server.create_pod(name, node=node, namespace="kube-system", labels=AGENT)
    full = {"status": {"phase": "Running", "podIP": "127.0.0.1", **status}}
    server.patch_pod(name, full, namespace="kube-system", subresource="status")


@pytest.fixture(autouse=True)
def n1(server):
    add_node(server, "n1", gpus=1, mem=15, conditions=[CONDITION])


def test_the_agents_page_is_shown_as_the_agent_shows_it(call, agent):
    flags = agent(PAGE)
    code, out, err = call("status", "n1", *flags)
    assert (code, err) == (0, "")
    assert out.startswith(
        "node n1   mode share (label: share)   placement binpack   isolation none\nunit GiB   gpuagent"
    )
    assert "! DriverUnavailable: no \ufffd[2J driver" in out
    assert json.loads(call("status", "-o", "json", "n1", *flags)[1]) == PAGE
    assert yaml.safe_load(call("status", "n1", "-o", "yaml", *flags)[1]) == PAGE


def test_a_page_of_another_version_is_shown_as_json_alone(call, agent):
    page = {**PAGE, "version": "9.9", "gpus": [{}]}
    flags = agent(page)
    code, _, err = call("status", "n1", *flags)
    assert (code, "the page is of gpuagent 9.9" in err) == (1, True)
    assert json.loads(call("status", "n1", "-o", "json", *flags)[1]) == page


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 100_000, [], {"version": "1"}])
def test_another_program_is_not_taken_for_an_agent(call, agent, answer):
    code, _, err = call("status", "n1", *agent(answer))
    assert (code, "what answers is not a gpuagent" in err) == (1, True)


def test_an_agent_that_does_not_answer_is_reported_with_its_pod_and_the_condition(server, call):
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    add_pod(server, phase="Pending", containerStatuses=[{"name": "gpuagent", "state": waiting}])
    code, out, err = call("status", "n1", "--agent-port", "1")
    assert (code, out) == (1, "")
    assert "the agent of node n1 could not be asked: the API server answers 503" in err
    assert "Its pod gpuagent-x does not run: container gpuagent: CrashLoopBackOff: back-off 5m0s" in err
    assert "GPUAgentReady is False since 2026-11-26T21:00:00Z: DriverUnavailable: the driver hangs" in err


def test_an_agent_of_the_host_is_asked_by_the_node(server, call):
    code, _, err = call("status", "n1", "--agent-port", "1")
    assert code == 1
    assert server.requests["get nodes/proxy"] == 1
    assert "could not be asked" in err


def test_a_pod_of_another_node_is_not_asked(server, call):
    add_node(server, "n2", gpus=1)
    add_pod(server, node="n1")
    code, _, err = call("status", "n2")
    assert (code, "no gpuagent runs on node n2: no pod with label" in err) == (1, True)
    assert "--agent-namespace" in err


def test_the_pod_that_runs_is_asked_while_the_agent_is_replaced(server, call, agent):
    add_pod(server, "gpuagent-a", phase="Failed", podIP="127.0.0.9")
    assert call("status", "n1", *agent(PAGE))[0] == 0


def test_a_node_is_named_as_kubectl_prints_it(call, agent):
    flags = agent(PAGE)
    assert call("status", "node/n1", *flags) == call("status", "n1", *flags)


def test_a_node_that_there_is_not(call):
    assert call("status", "n7") == (1, "", "kubectl-inspect-cgpu: there is no node n7\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["status"], "status is about one node: kubectl inspect cgpu status NODE"),
        (["status", "n1", "n2"], "status is about one node"),
        (["status", "n1", "--health"], "leave out --health"),
        (["status", "n1", "-n", "x"], "leave out --namespace"),
        (["status", ""], "'' names no node: a node has a name"),
        (["status", "pod/n1"], "'pod/n1' is not the name of a node"),
        (["status", "n1", "-o", "name"], "use -o json"),
    ],
)
def test_status_takes_one_node_and_no_other_question(call, arguments, text):
    code, _, err = call(*arguments)
    assert (code, text in err) == (2, True)


def test_a_node_called_status_is_selected_by_its_label(server, call):
    add_node(server, "status", gpus=1, mem=15, labels={"kubernetes.io/hostname": "status"})
    assert call("-l", "kubernetes.io/hostname=status", "-o", "name") == (0, "node/status\n", "")
