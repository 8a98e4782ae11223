"""The topology page for people, and the ConfigMap that arena reads."""

import json
from dataclasses import replace

from gpuagent.domain import events as ev
from gpuagent.domain.placement.best_sets import BestSets
from gpuagent.domain.reconcile.topology_report import config_maps
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, Kind, Mode
from gpuagent.domain.snapshot import snapshot
from gpuagent.domain.status import topology_page
from gpuagent.pages import topology_table
from tests.unit.domain.builders import DGX1V, WHOLE, NodeUnderTest, box, gpu, holding, in_force, owner, unit_ids, uuid


def mesh(mode=Mode.TOPOLOGY, gpus=None) -> NodeUnderTest:
    node = in_force(mode, gpus or box(8))
    return node.inventory(*(gpus or box(8)), wiring=DGX1V)


def page(node: NodeUnderTest):
    return topology_page.page(node.state, BestSets(node.state.gpus.topology.mbps))


def test_the_page_has_every_link_from_both_sides():
    shown = page(mesh())
    assert [link and link["type"] for link in shown["links"][0]] == [
        *(None, "NV1", "NV1", "NV2"),
        *("NV2", "SYS", "SYS", "SYS"),
    ]
    assert shown["links"][0][3] == shown["links"][3][0] == {"type": "NV2", "gbps": 50.0, "switched": False}
    assert json.loads(json.dumps(shown)) == shown


def test_a_container_with_memory_and_compute_of_a_gpu_is_one_holder():
    node = mesh()
    memory = holding("a", unit_ids(0, Kind.MEMORY_CORE_MEM, 0), GPU_MEM)
    node.holdings(memory, holding("a", unit_ids(0, Kind.CORE_CORE_MEM, 0), GPU_CORE))
    assert page(node)["gpus"][0]["holders"] == [str(owner("a"))]


def test_the_best_sets_are_those_of_gpus_that_are_free_and_well():
    node = mesh()
    assert [(best["size"], best["gpus"]) for best in page(node)["best"]][1:4] == [
        (2, [0, 3]),
        (3, [0, 2, 3]),
        (4, [0, 1, 2, 3]),
    ]
    node.holdings(holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE))
    node.send(ev.XidRaised(uuid(2), 79, node.now))
    shown = page(node)
    assert [best["size"] for best in shown["best"]] == [1, 2, 3, 4, 5, 6]
    assert all(not {0, 2} & set(best["gpus"]) for best in shown["best"])
    assert shown["gpus"][0]["holders"] == [str(owner("a"))]
    assert [one["health"] for one in shown["gpus"]][:3] == ["Healthy", "Healthy", "Unhealthy"]
    assert shown["best"][0] | {"gpus": []} == {"size": 1, "gpus": [], "weakest_gbps": None, "total_gbps": 0.0}


def test_what_is_amiss_is_a_note_and_a_problem_of_the_node():
    one_sided = {**DGX1V, uuid(0): DGX1V[uuid(1)]}
    node = in_force(Mode.TOPOLOGY, box(8)).inventory(*box(8), wiring=one_sided)
    notes = page(node)["notes"]
    assert "GPU 0 and GPU 4 report 0 and 2 NVLinks between them; 0 are counted" in notes
    assert {a.message for a in node.announcements if a.reason == "GPULinkDegraded"} == set(notes)
    assert mesh().announcements == []


def report(node: NodeUnderTest):
    (facts,) = config_maps(node.state, "n1")
    return facts


def test_the_config_map_is_as_arena_reads_it():
    facts = report(mesh())
    assert str(facts) == "kube-system/n1-gputopo-report"
    assert facts.labels == {"ack.node.gpu.schedule": "topology", "nodename": "n1"}
    assert facts.data.keys() == {"nodeName", "devices", "bandwidth", "linkType"}
    assert facts.data["nodeName"] == "n1"
    assert json.loads(facts.data["devices"]) == {str(n): "Healthy" for n in range(8)}
    bandwidth, types = json.loads(facts.data["bandwidth"]), json.loads(facts.data["linkType"])
    assert (bandwidth[0][:4], bandwidth[3][0]) == ([0, 25.0, 25.0, 50.0], 50.0)
    assert (types[0][:4], types[0][5]) == (["N/A", "NV1", "NV1", "NV2"], "SYS")
    assert {len(row) for row in bandwidth + types} == {8}


def test_the_config_map_counts_gpus_by_minor_number_and_says_which_are_unhealthy():
    node = mesh(gpus=tuple(gpu(n, minor=(3, 0, 1, 2, 4, 5, 6, 8)[n]) for n in range(8)))
    node.send(ev.XidRaised(uuid(0), 79, node.now))
    data = report(node).data
    assert json.loads(data["devices"])["3"] == "Unhealthy"
    types = json.loads(data["linkType"])
    assert len(types) == 9
    assert types[3][2] == "NV2", "GPUs 0 and 3 are minor 3 and 2"
    assert set(types[7]) == {"N/A"}, "there is no minor 7"


def test_a_gpu_that_the_driver_does_not_list_any_more_is_in_no_link_and_ill():
    node = mesh()
    left = [gpu(n if n < 3 else n - 1, uuid=uuid(n), minor=n) for n in range(8) if n != 3]
    node.inventory(*left, wiring=DGX1V)
    assert [one["index"] for one in page(node)["gpus"]] == list(range(7))
    assert json.loads(report(node).data["devices"])["3"] == "Unhealthy"
    assert set(json.loads(report(node).data["linkType"])[3]) == {"N/A"}


def test_when_the_driver_lists_no_gpu_any_more_all_are_ill_and_none_is_linked():
    node = mesh().inventory()
    assert node.state.gpus.topology.gpus == ()
    data = report(node).data
    assert set(json.loads(data["devices"]).values()) == {"Unhealthy"}
    assert data["bandwidth"] == data["linkType"] == "[]"


def test_what_is_worked_out_is_kept_while_bandwidths_are_the_same():
    node = mesh()
    before = node.snap
    noted = {**DGX1V, uuid(0): replace(DGX1V[uuid(0)], problems=("a query failed",))}
    node.inventory(*box(8), wiring=noted)
    assert node.state.gpus.topology.notes
    assert snapshot(node.state, before).sets is before.sets


def test_sets_that_are_not_worked_out_are_reported_not_to_be():
    node = in_force(Mode.TOPOLOGY, box(17))
    assert topology_page.INEXACT in page(node)["notes"]
    assert topology_page.INEXACT not in page(mesh())["notes"]


def test_the_config_map_goes_with_the_mode_and_is_not_touched_before_anything_is_known():
    node = mesh(Mode.SHARE)
    assert report(node).data is None
    node.label("topology")
    assert report(node).data
    assert config_maps(NodeUnderTest(Mode.TOPOLOGY).state, "n1") == ()
    assert report(NodeUnderTest(Mode.SHARE)).data is None, "one of an earlier run goes, whatever the driver says"


def test_a_gpu_in_mig_mode_is_left_out():
    node = mesh(gpus=(*box(7), gpu(7, mig=True)))
    shown = page(node)
    assert shown["gpus"][7]["health"] == "MIG"
    assert all(7 not in best["gpus"] for best in shown["best"])
    assert json.loads(report(node).data["devices"])["7"] == "MIG"
    assert "left out" in topology_table.render({"version": "1", "node": "n1", **shown})
