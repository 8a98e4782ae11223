"""Which pods are taken for agents, and where they answer."""

import pytest

from gpuagent.domain.fleet.agent_pods import DEFAULT_PORT, AgentPod, AgentPods

LABELS = {"app.kubernetes.io/name": "gpuagent", "app.kubernetes.io/component": "agent"}


def agent(node="n1", uid="a", port=9500, ip="10.0.0.7", phase="Running", labels=LABELS, **metadata):  # noqa: PLR0913
    ports = [{"name": "grpc", "containerPort": 1}, {"name": "http", "containerPort": port}]
    return {
        "metadata": {"uid": uid, "namespace": "gpu", "labels": labels, **metadata},
        "spec": {"nodeName": node, "containers": [{"ports": ports}]},
        "status": {"phase": phase, "podIP": ip},
    }


def seen(*pods, namespace="gpu"):
    agents = AgentPods(namespace)
    for pod in pods:
        agents.seen(pod)
    return agents


def test_an_agent_is_known_by_its_node_until_it_ends():
    agents = seen(agent(), agent("n2", "b", ip="fd00::7"))
    assert agents.by_node() == {"n1": AgentPod("n1", "10.0.0.7", 9500), "n2": AgentPod("n2", "fd00::7", 9500)}
    assert [pod.url for pod in agents.by_node().values()] == ["http://10.0.0.7:9500", "http://[fd00::7]:9500"]
    assert agents.port == 9500
    agents.gone("b")
    agents.seen(agent(phase="Failed"))
    assert agents.by_node() == {}


@pytest.mark.parametrize(
    "pod",
    [
        agent(namespace="tenant"),
        agent(labels={**LABELS, "app.kubernetes.io/component": "scheduler"}),
        agent(labels=None),
        agent(phase="Pending"),
        agent(ip=""),
        agent(ip="example.org/"),
        agent(deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": None},
    ],
)
def test_what_is_no_running_agent_of_the_operators_is_passed_over(pod):
    assert seen(pod).by_node() == {}


def test_without_a_namespace_no_pod_is_an_agent():
    assert seen(agent(namespace=""), namespace="").by_node() == {}


@pytest.mark.parametrize("port", [None, "9445", 0, 70000, True])
def test_a_port_that_is_none_is_the_default(port):
    (found,) = seen(agent(port=port)).by_node().values()
    assert found.port == DEFAULT_PORT
