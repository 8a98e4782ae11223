"""The page /usage is written in parts, so that calls come in between."""

import json

from gpuscheduler.pages.usage_page import PODS_A_PART, usage_parts
from tests.unit.gpuscheduler.core.api_objects import pod, shared_node
from tests.unit.gpuscheduler.core.test_scheduling import cluster


def test_many_waiting_pods_are_written_some_at_a_time():
    core = cluster(shared_node("n1"))
    names = [f"default/p{n:05}" for n in range(2 * PODS_A_PART + 1)]
    for name in names:
        core.pod_seen(pod(name.removeprefix("default/"), mem=200), 0.0)
    parts = list(usage_parts(core))
    assert max(part.count(b"default/") for part in parts) == PODS_A_PART
    page = json.loads(b"".join(parts))
    assert [*page["waiting"]] == names
    assert [node["name"] for node in page["nodes"]] == ["n1"]


def test_a_cluster_without_nodes_and_pods_is_a_page_as_well():
    assert json.loads(b"".join(usage_parts(cluster()))) == {"nodes": [], "waiting": {}}
