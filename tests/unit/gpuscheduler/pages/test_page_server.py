"""Pages and probes of the running scheduler."""

import json
import re

from gpuscheduler.pages import usage_page
from tests.unit.gpuscheduler.running_scheduler import until


def test_a_browser_gets_the_page_and_all_that_it_loads(cluster):
    scheduler = cluster.start()
    status, page = scheduler.get("/")
    assert status == 200
    loaded = re.findall(r'(?:href|src)="([a-z.]+\.(?:css|js))"', page)
    assert loaded == ["page.css", "cluster.js"]
    for name in (*loaded, "live.js"):
        assert scheduler.get(f"/{name}")[0] == 200


def test_a_large_cluster_comes_in_pieces_that_are_one_document(cluster, monkeypatch):
    monkeypatch.setattr(usage_page, "PIECE_BYTES", 1000)
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
