"""The pages /fleet and /pods: small, written once for each change, and never long at a time."""

import asyncio
import json
import re

import pytest

from gpuagent.domain.fleet.agent_pods import AgentPods
from gpuagent.domain.fleet.node_problems import NodeProblem
from gpuagent.domain.fleet.node_summary import node_reading
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.pages import fleet_page
from gpuscheduler.pages.fleet_page import MOST_WAITING, FleetPages
from gpuscheduler.pages.node_view import Cluster
from gpuscheduler.pages.plain_table import plain_table
from gpuscheduler.pages.usage_page import usage_parts
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod
from tests.unit.gpuscheduler.pages.test_node_view import node, reserve, scheduled

URL = "https://docs.example.org/problems"
GIB = 1 << 30
USE = json.dumps(
    {
        "isOn": True,
        "asked": 2,
        "nodes": 2,
        "unknown": [["its agent cannot be reached: no connection", 1, "n2"]],
        "namespaces": [
            ["team-a", 3, 1, [2, True], [20 * GIB, True], [5 * GIB, False], [7 * GIB, True], [15 * GIB, True]]
        ],
    }
).encode()


def pages_of(core):
    return FleetPages(
        Cluster(core.usage.nodes, core.readings, core.pods, core.reservations, core.others), URL, AgentPods("gpu")
    )


def fleet(pages):
    return json.loads(b"".join(asyncio.run(pages.fleet())))


def pods(pages):
    return json.loads(b"".join(asyncio.run(pages.pods())))


@pytest.fixture
def written(monkeypatch):
    """Names of the nodes whose rows are written."""
    names = []
    real = fleet_page.node_view

    def note(name, cluster):
        names.append(name)
        return real(name, cluster)

    monkeypatch.setattr(fleet_page, "node_view", note)
    return names


def test_a_row_has_what_the_page_shows():
    unhealthy = NodeProblem("warning", "GPUUnhealthy", "GPU 1: XID 79")
    core = scheduled(node(mem=80, core=200, problems=[unhealthy]))
    found = reserve(core, mem=30, core=50, labels={})
    page = fleet(pages_of(core))
    ((name, mode, model, unit, usable, gpus, count, waiting, largest, problems, each),) = page["nodes"]
    assert (name, mode, model, unit, usable, gpus) == ("n1", "core_mem", "A100", 1024, 2, 2)
    assert (count, waiting, largest) == (1, 1, [40, 100, 0])
    assert problems == [["warning", "GPUUnhealthy", "GPU 1: XID 79", 1]]
    assert max(each, key=lambda gpu: gpu[4])[1:] == [1, 0, 40, 30, 100, 50, 1]
    assert page["problemsUrl"] == URL
    assert page["agents"] == ["gpu", 9445]
    ((held, reserved, memory, compute, whole, on),) = pods(pages_of(core))["n1"]
    assert (held, reserved, memory, compute, whole) == (str(found.name), 1, 30, 50, 0)
    assert list(on.values()) == [[30, 50]]


def test_a_node_is_written_again_only_if_something_of_it_has_changed(written):
    core = scheduled(node("n1", mem=80, core=200), node("n2", mem=80, core=200))
    pages = pages_of(core)
    before = fleet(pages)
    assert fleet(pages) == before
    assert written == ["n1", "n2"]
    written.clear()
    found = reserve(core, mem=10, core=10)
    assert fleet(pages) != before
    assert written == ["n1"]
    written.clear()
    core.bind(found.uid, "n1", 0.0, 1)
    core.readings["n2"] = node_reading(node("n2", mode="dra"))
    fleet(pages)
    assert "n2" in written


def test_a_pod_in_the_place_of_an_equal_one_is_seen():
    core = scheduled(node(mem=80, core=200))
    pages = pages_of(core)
    first = reserve(core, mem=40, core=10, namespace="a")
    assert [row[0] for row in fleet(pages)["namespaces"]] == ["a"]
    core.pod_gone(first.uid, 0.0)
    reserve(core, mem=40, core=10, namespace="b")
    assert [row[0] for row in fleet(pages)["namespaces"]] == ["b"]


def test_a_node_that_is_gone_is_on_the_page_no_longer():
    core = scheduled(node("n1", mem=80, core=200), node("n2", mem=80, core=200))
    pages = pages_of(core)
    assert len(fleet(pages)["nodes"]) == 2
    core.node_gone("n1")
    core.readings.pop("n1")
    assert [row[0] for row in fleet(pages)["nodes"]] == ["n2"]


def test_namespaces_have_what_their_pods_hold_and_how_many_wait():
    core = scheduled(node(mem=80, core=200))
    reserve(core, mem=10, core=20, namespace="a")
    reserve(core, mem=20, core=30, namespace="a")
    core.pod_seen(pod(mem=500, core=10, namespace="b"), 0.0)
    waiting = {row[0]: row for row in fleet(pages_of(core))["namespaces"]}
    assert waiting["a"][:5] == ["a", 2, 30 * 1024, 50, 0]
    assert waiting["b"] == ["b", 0, 0, 0, 0, 1]


def test_of_many_waiting_pods_the_first_are_listed_and_all_are_counted():
    core = scheduled(node(mem=80, core=200))
    for number in range(MOST_WAITING + 50):
        core.pod_seen(pod(f"w{number:04}", mem=500, core=10), 0.0)
    page = fleet(pages_of(core))
    assert page["waitingCount"] == MOST_WAITING + 50
    assert [row[0] for row in page["waiting"]] == [f"default/w{number:04}" for number in range(MOST_WAITING)]


def test_the_pods_that_wait_longest_are_listed_first():
    core = scheduled(node(mem=80, core=200))
    for name, hour in (("p-2", 9), ("a", 11), ("p-10", 8), ("p-1", 9)):
        core.pod_seen(pod(name, mem=500, core=10, created=f"2026-01-01T{hour:02}:00:00Z"), 0.0)
    waiting = [row[0] for row in fleet(pages_of(core))["waiting"]]
    assert waiting == ["default/p-10", "default/p-1", "default/p-2", "default/a"]


def test_pods_of_other_schedulers_wait_as_well_with_what_was_probably_meant():
    core = Scheduling(LeastFree(), schedulers={"gpu-scheduler"})
    core.synced(0.0)
    core.pod_seen(pod("big", mem=500), 0.0)
    core.pod_seen(pod("adrift", mem=8, scheduler="gpu-schedular", namespace="team-a"), 0.0)
    page = fleet(pages_of(core))
    untried = "scheduler gpu-schedular has not tried it yet: is it running, or did you mean gpu-scheduler?"
    assert page["waitingCount"] == 2
    assert page["waiting"] == [["default/big", 500, 0, 0, ""], ["team-a/adrift", 8, 0, 0, untried]]
    assert [row[-1] for row in page["namespaces"]] == [1, 1]
    html = plain_table(json.dumps(page).encode(), USE).decode()
    assert "2 waiting pods" in html
    assert f"<td>team-a/adrift</td><td>8 GiB</td><td>{untried}</td>" in html
    usage = json.loads(b"".join(usage_parts(core)))
    assert usage["waiting"] == {"default/big": "", "team-a/adrift": untried}


@pytest.mark.parametrize("name", ["fleet", "pods"])
def test_calls_come_in_between_the_nodes(name):
    core = scheduled(*(node(f"n{number}", mem=80, core=200) for number in range(20)))
    for number in range(20):
        core.pod_seen(pod(mem=10, core=10, on=f"n{number}"), 0.0)
    turns = 0

    async def scenario():
        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await getattr(pages_of(core), name)()
        task.cancel()

    asyncio.run(scenario())
    assert turns >= 20


def test_the_plain_table_shows_the_same():
    unhealthy = NodeProblem("warning", "GPUUnhealthy", "GPU 1: XID 79")
    core = scheduled(node(mem=80, core=200, problems=[unhealthy]))
    reserve(core, mem=30, core=50, namespace="team-a")
    core.pod_seen(pod("big", mem=500, core=10, namespace="team-b"), 0.0)
    html = plain_table(json.dumps(fleet(pages_of(core))).encode(), USE).decode()
    for shown in (
        "<h2>1 nodes</h2>",
        "<td>30 GiB of 80 GiB</td>",
        "<td>25 %</td>",
        "40 GiB, 100 % of compute",
        "team-b/big",
        "500 GiB, 10 % of compute",
    ):
        assert shown in html
    assert f'<a href="{URL}#gpuunhealthy">GPUUnhealthy</a> (warning): GPU 1: XID 79' in html
    assert "<td>team-a</td><td>1</td><td>30 GiB</td>" in html
    assert "<td>≥ 5 GiB (1 pods not known)</td><td>7 GiB</td><td>15 GiB</td><td>2</td>" in html
    assert "Use is known of 1 of 2 nodes" in html
    assert "<script" not in html


def test_the_plain_table_has_the_worst_nodes_first_and_leads_to_what_is_below_thousands_of_rows():
    fenced = NodeProblem("info", "GPUFenced", "GPU 1 is fenced")
    unhealthy = NodeProblem("warning", "GPUUnhealthy", "GPU 1: XID 79")
    down = NodeProblem("blocking", "DriverUnavailable", "no driver")
    problems = {"n1": [], "n2": [fenced], "n3": [unhealthy], "n4": [down]}
    core = scheduled(*(node(name, mem=80, core=200, problems=each) for name, each in problems.items()))
    core.pod_seen(pod("big", mem=500, core=10, namespace="team-b"), 0.0)
    html = plain_table(json.dumps(fleet(pages_of(core))).encode(), USE).decode()
    assert re.findall("<tr><td>(n[0-9])</td>", html) == ["n4", "n3", "n2", "n1"]
    assert "2 of 4 nodes with problems" in html
    for name, words in (("waiting", "1 waiting pods"), ("namespaces", "1 namespaces")):
        assert f'<a href="#{name}">{words}</a>' in html
        assert f'<h2 id="{name}">{words}</h2>' in html


def test_only_problems_of_agents_are_linked_because_the_page_of_problems_has_no_others():
    page = fleet(pages_of(scheduled(node(ready="False"))))
    assert [problem[1::2] for problem in page["nodes"][0][9]] == [["NodeNotReady", 0]]
    html = plain_table(json.dumps(page).encode(), USE).decode()
    assert "NodeNotReady (blocking)" in html
    assert URL not in html


def test_the_plain_table_says_how_many_waiting_pods_it_leaves_out():
    page = {**fleet(pages_of(scheduled())), "waiting": [["team/a", 5, 0, 0, ""]], "waitingCount": 400}
    assert "1 of 400 pods that wait are listed." in plain_table(json.dumps(page).encode(), USE).decode()


@pytest.mark.parametrize(("units", "expected"), [((512,), 512), ((512, 512), 512), ((512, 1024), 0)])
def test_the_unit_of_waiting_pods_is_that_of_all_nodes_or_not_known(units, expected):
    nodes = [node(name=f"n{number}", mem=80, unit_mib=unit) for number, unit in enumerate(units)]
    page = fleet(pages_of(scheduled(*nodes)))
    assert page["waitingUnitMib"] == expected
    page |= {"waiting": [["team/a", 4, 0, 0, ""]], "waitingCount": 1}
    amount = f"{4 * expected / 1024:g} GiB" if expected else "4 units"
    assert f"<td>{amount}</td>" in plain_table(json.dumps(page).encode(), USE).decode()


def test_the_plain_table_shows_what_others_wrote_as_text():
    evil = "<script>alert(1)</script>"
    page = {
        "problemsUrl": '"><script>',
        "nodes": [[evil, evil, evil, 0, 1, 1, 0, 0, [5, 0, 0], [[evil, evil, evil, 1]], [[0, 1, 0, 5, 0, 0, 0, 0]]]],
        "namespaces": [[evil, 1, 0, 0, 0, 0]],
        "waiting": [[evil, 1, 0, 0, evil]],
        "waitingCount": 1,
        "waitingUnitMib": 0,
    }
    html = plain_table(json.dumps(page).encode(), USE).decode()
    assert "<script" not in html
    assert "0 units of 5 units" in html


def test_a_cluster_without_nodes_is_a_page_as_well():
    page = fleet(pages_of(scheduled()))
    assert page == {
        "problemsUrl": URL,
        "agents": ["gpu", 9445],
        "nodes": [],
        "namespaces": [],
        "waiting": [],
        "waitingCount": 0,
        "waitingUnitMib": 1024,
    }
    assert b"0 nodes" in plain_table(json.dumps(page).encode(), USE)
    assert pods(pages_of(scheduled())) == {}
