"""Pages and probes of the running scheduler."""

import json
import re

from gpuscheduler.pages import pieces
from standin.api.server import node_body
from tests.unit.gpuscheduler.running_scheduler import until


def test_a_browser_gets_the_page_and_all_that_it_loads(cluster):
    scheduler = cluster.start()
    status, page = scheduler.get("/")
    assert status == 200
    loaded = re.findall(r'(?:href|src)="([a-z.]+\.(?:css|js))"', page)
    assert {"page.css", "cluster.css", "first.js", "cluster.js"} < {*loaded}
    preloaded = {*loaded}
    asked = set()
    while loaded:
        name = loaded.pop()
        asked.add(name)
        status, text = scheduler.get(f"/{name}")
        assert status == 200, name
        imported = re.findall(r'from "\./([a-z.]+)"', text)
        loaded += [other for other in imported if other not in asked]
    assert {"live.js", "rows.js", "heat.js"} < asked
    # Each would otherwise cost the reader a round trip more, after the file that imports it.
    assert asked - preloaded == {"live.js"}, "first.js imports it at once"


def test_the_page_has_a_node_that_offers_nothing_with_its_problem(cluster):
    """An operator looks for it first, and the scheduler has no use for it."""
    cluster.share_node("n1", gpus=2, memory=10)
    body = node_body("n2", {}, "")
    message = "mode cgpu, 2 GPUs; IsolationMissing (blocking): no driver isolates memory"
    down = {"type": "GPUAgentReady", "status": "False", "reason": "IsolationMissing", "message": message}
    body["status"]["conditions"] = [down]
    cluster.api.objects.create("nodes", "", body)
    scheduler = cluster.start(problems_url="https://docs.example.org/problems")
    page = json.loads(scheduler.get("/fleet")[1])
    assert [(row[0], row[1], row[9]) for row in page["nodes"]] == [
        ("n1", "", []),
        ("n2", "cgpu", [["blocking", "IsolationMissing", "no driver isolates memory", 1]]),
    ]
    assert "https://docs.example.org/problems#isolationmissing" in scheduler.get("/table")[1]
    cluster.api.objects.delete(("nodes", "", "n2"))
    until(lambda: [row[0] for row in json.loads(scheduler.get("/fleet")[1])["nodes"]] == ["n1"])


def test_a_pod_that_no_scheduler_tries_is_on_every_page(cluster):
    cluster.share_node("n1")
    scheduler = cluster.start(scheduler_name=frozenset({"gpu-scheduler"}))
    # It names no scheduler, so it is the stock one's.
    cluster.pod("adrift", mem=4)
    why = "scheduler default-scheduler has not tried it yet: is it running?"
    until(lambda: json.loads(scheduler.get("/fleet")[1])["waiting"] == [["default/adrift", 4, 0, 0, why]])
    assert json.loads(scheduler.get("/usage")[1])["waiting"] == {"default/adrift": why}
    until(lambda: f"<td>{why}</td>" in scheduler.get("/table")[1])


def test_pods_and_their_amounts_are_read_apart_from_the_nodes(cluster):
    cluster.share_node("n1", gpus=1, memory=10)
    scheduler = cluster.start()
    scheduler.place(cluster.pod("p", mem=4))
    until(lambda: json.loads(scheduler.get("/pods")[1]) == {"n1": [["default/p", 0, 4, 0, 0, {"0": [4, 0]}]]})


def test_a_large_cluster_comes_in_pieces_that_are_one_document(cluster, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1000)
    for n in range(30):
        cluster.share_node(f"n{n}")
    scheduler = cluster.start()
    status, page = scheduler.get("/usage")
    assert status == 200
    assert len(json.loads(page)["nodes"]) == 30


def test_the_metrics_are_those_of_the_moment(cluster):
    cluster.share_node("n1")
    scheduler = cluster.start()
    assert scheduler.metric("gpuscheduler_nodes") == 1
    cluster.share_node("n2")
    until(lambda: scheduler.metric("gpuscheduler_nodes") == 2)
