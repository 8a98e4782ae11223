"""The page /use of the running scheduler: agents are asked while a reader looks, and what they say is summed up."""

import asyncio
import json

import pytest

from gpuagent.domain.fleet.agent_pods import AgentPods
from gpuagent.domain.fleet.held_use import HeldUse
from gpuagent.domain.pods.pod import PodName
from gpuagent.pages.http_server import HttpServer
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.pages import namespace_use, paced_reading
from gpuscheduler.pages.namespace_use import NamespaceUse
from gpuscheduler.pages.node_view import Cluster
from standin.waiting import PATIENCE_S
from tests.unit.domain.fleet.test_agent_pods import LABELS, agent
from tests.unit.gpuscheduler.pages.test_node_view import node, scheduled
from tests.unit.gpuscheduler.running_scheduler import until

GIB = 1 << 30
ROW = {
    "namespace": "default",
    "pod": "p",
    "held_bytes": 4 * GIB,
    "used_p95_bytes": GIB,
    "used_peak_bytes": 2 * GIB,
    "idle_s": 7200,
}
SUM = ["default", 1, 0, [1, True], [4 * GIB, True], [GIB, True], [2 * GIB, True], [3 * GIB, True]]


@pytest.fixture
def agent_page(request):
    """An agent's server, whose answer is the test's parameter if it has one, and how often it was asked."""
    asked = []
    answer = getattr(request, "param", {"mode": "share", "usage": [ROW]})

    def page():
        asked.append("/status")
        return "application/json", json.dumps(answer).encode()

    server = HttpServer(("127.0.0.1", 0), {"/status": page}, {})
    server.start()
    yield server, asked
    server.stop()


def add_agent(cluster, port, node="n1", namespace="kube-system"):
    """The pod of an agent that answers at the port."""
    body = agent(node, port=port, ip="127.0.0.1")
    metadata = {"name": f"agent-{node}", "labels": LABELS}
    cluster.api.objects.create("pods", namespace, {**body, "metadata": metadata})


def use_of(scheduler):
    status, page = scheduler.get("/use")
    assert status == 200
    return json.loads(page)


def all_asked(scheduler):
    """The page once all agents were asked."""
    page = use_of(scheduler)
    return page if page["nodes"] and page["asked"] == page["nodes"] else None


@pytest.fixture
def at_once(monkeypatch):
    """Readings follow each other without a pause, and the page is made anew each time."""
    monkeypatch.setattr(namespace_use, "EVERY_S", 0.01)
    monkeypatch.setattr(paced_reading, "RECENT_S", 0.0)


def test_what_agents_say_is_on_the_page_once_a_reader_looks(cluster, agent_page, at_once):
    server, asked = agent_page
    cluster.share_node("n1")
    cluster.share_node("n2")
    add_agent(cluster, server.port)
    add_agent(cluster, server.port, "n2")
    scheduler = cluster.start()
    scheduler.place(cluster.pod("p", mem=4))
    assert asked == []
    page = until(lambda: all_asked(scheduler))
    # The agent of the other node is not asked, because no pod holds a GPU there.
    assert page == {"isOn": True, "asked": 1, "nodes": 1, "unknown": [], "namespaces": [SUM]}
    assert "<td>1 GiB</td><td>2 GiB</td><td>3 GiB</td><td>1</td>" in scheduler.get("/table")[1]


def test_a_tenants_pod_with_the_labels_of_an_agent_is_not_asked(cluster, agent_page, at_once):
    server, asked = agent_page
    cluster.share_node("n1")
    add_agent(cluster, server.port, namespace="tenant")
    scheduler = cluster.start()
    scheduler.place(cluster.pod("p", mem=4))
    page = until(lambda: all_asked(scheduler))
    assert page["unknown"] == [["no running pod of gpuagent in the namespace kube-system", 1, "n1"]]
    assert asked == []


@pytest.mark.parametrize(
    ("agent_page", "why"),
    [
        ({"mode": "share"}, "its agent is of a version that does not report what is used over time"),
        ({"usage": "none"}, "what answers at the agent's address is not an agent"),
        ([], "what answers at the agent's address is not an agent"),
        ({"usage": ["x" * (5 << 20)]}, "its agent's page is larger than 4 MiB"),
    ],
    indirect=["agent_page"],
)
def test_an_answer_that_cannot_be_read_is_named(cluster, agent_page, at_once, why):
    server, _ = agent_page
    cluster.share_node("n1")
    add_agent(cluster, server.port)
    scheduler = cluster.start()
    scheduler.place(cluster.pod("p", mem=4))
    page = until(lambda: all_asked(scheduler))
    assert page["unknown"] == [[why, 1, "n1"]]
    assert page["namespaces"] == []


def test_an_agent_that_is_not_there_is_named_and_the_next_reading_has_it(cluster, agent_page, at_once):
    server, _ = agent_page
    cluster.share_node("n1")
    add_agent(cluster, 1)
    scheduler = cluster.start()
    scheduler.place(cluster.pod("p", mem=4))
    page = until(lambda: all_asked(scheduler))
    ((why, count, node_name),) = page["unknown"]
    assert why.startswith("its agent cannot be reached: ")
    assert (count, node_name) == (1, "n1")
    cluster.api.delete_pod("agent-n1", namespace="kube-system")
    add_agent(cluster, server.port)
    until(lambda: use_of(scheduler)["namespaces"] == [SUM])
    until(lambda: use_of(scheduler)["unknown"] == [])


def test_no_agent_is_asked_if_the_operator_wants_none(cluster, agent_page, at_once):
    server, asked = agent_page
    cluster.share_node("n1")
    add_agent(cluster, server.port)
    scheduler = cluster.start(agent_namespace="")
    scheduler.place(cluster.pod("p", mem=4))
    assert use_of(scheduler) == {"isOn": False, "asked": 0, "nodes": None, "unknown": [], "namespaces": []}
    assert "the setting agent-namespace is off" in scheduler.get("/table")[1]
    assert asked == []


def held(namespace, pod_name, used):
    return HeldUse(PodName(namespace, pod_name), 4 * GIB, used, 0, used)


def reading_of(uses_by_node):
    """A reading over nodes with a pod each, of agents that say this; and how many were asked at the same time."""
    names = list(uses_by_node)
    core = scheduled(*[node(name, mem=80, core=200) for name in names])
    agents = AgentPods("gpu")
    for name in names:
        agents.seen(agent(name, uid=name))
        core.usage.use(f"pod-{name}", name, ((0, Amounts(1, 0)),))
    open_now = []
    most = []

    async def ask(agent_pod):
        open_now.append(agent_pod)
        most.append(len(open_now))
        await asyncio.sleep(0)
        open_now.pop()
        return uses_by_node[agent_pod.node]

    return NamespaceUse(
        Cluster(core.usage.nodes, core.readings, core.pods, core.reservations, core.others), agents, ask
    ), most


def test_a_namespace_is_summed_up_over_nodes_and_few_agents_are_asked_at_a_time(monkeypatch):
    monkeypatch.setattr(namespace_use, "PAUSE_S", 0.0)
    uses = {f"n{number:02}": [held("ml", f"p{number}", GIB), held("web", f"w{number}", None)] for number in range(40)}
    reading, most = reading_of(uses)

    async def read():
        await reading.page()
        running = asyncio.create_task(reading.run())
        while True:
            page = json.loads(await reading.page())
            if page["nodes"] and page["asked"] == page["nodes"]:
                break
            await asyncio.sleep(0)
        running.cancel()
        return page

    page = asyncio.run(read())
    assert page["namespaces"] == [
        ["ml", 40, 0, [0, True], [160 * GIB, True], [40 * GIB, True], [40 * GIB, True], [120 * GIB, True]],
        ["web", 40, 40, [0, True], [160 * GIB, True], [None, False], [None, False], [None, False]],
    ]
    assert max(most) <= namespace_use.AT_A_TIME


def test_a_later_reading_of_the_same_nodes_replaces_what_is_shown(monkeypatch):
    monkeypatch.setattr(namespace_use, "PAUSE_S", 0.0)
    monkeypatch.setattr(namespace_use, "EVERY_S", 0.0)
    uses = {"n1": [held("ml", "p", GIB)]}
    reading, _ = reading_of(uses)

    async def shown(used_bytes):
        """Wait until a page has it."""
        while True:
            rows = json.loads(await reading.page())["namespaces"]
            if rows and rows[0][5] == [used_bytes, True]:
                return
            await asyncio.sleep(0)

    async def read():
        running = asyncio.create_task(reading.run())
        await shown(GIB)
        uses["n1"] = [held("ml", "p", 2 * GIB)]
        await shown(2 * GIB)
        running.cancel()

    asyncio.run(asyncio.wait_for(read(), PATIENCE_S))


def test_it_is_not_read_again_after_the_last_reader_has_left(monkeypatch):
    monkeypatch.setattr(namespace_use, "PAUSE_S", 0.0)
    monkeypatch.setattr(namespace_use, "EVERY_S", 0.0)
    reading, most = reading_of({"n1": [held("ml", "p", GIB)]})

    async def read():
        running = asyncio.create_task(reading.run())
        await reading.page()
        for _ in range(1000):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(read())
    assert len(most) == 1
