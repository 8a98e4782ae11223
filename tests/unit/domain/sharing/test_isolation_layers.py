"""Which driver serves a mode, and what follows from its word."""

from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.sharing.isolation_layers import AUTO, NO_LAYER, Layer, chosen
from gpuagent.domain.sharing.mode import Isolates, Kind, Mode
from gpuagent.domain.status.problems import problems
from gpuagent.domain.status.status_page import status
from tests.unit.domain.builders import CORE, MEM, box, holding, in_force, node_json, unit_ids, uuid

BOTH = frozenset(Isolates)
CGPU = Layer(
    driver="cgpu", installed=True, isolates=BOTH, modes=frozenset({Mode.CGPU, Mode.CORE_MEM}), version="1.5.10"
)
MPS = Layer(
    driver="mps", installed=True, isolates=BOTH, modes=frozenset({Mode.CGPU, Mode.CORE_MEM, Mode.MPS}), max_sharers=48
)
LAYERS = {"cgpu": CGPU, "mps": MPS}


@pytest.mark.parametrize(
    ("mode", "setting", "layers", "driver"),
    [
        (Mode.CGPU, AUTO, LAYERS, "cgpu"),
        (Mode.CORE_MEM, AUTO, LAYERS, "cgpu"),
        (Mode.MPS, AUTO, LAYERS, "mps"),
        (Mode.CGPU, AUTO, {**LAYERS, "cgpu": replace(CGPU, installed=False)}, "mps"),
        (Mode.CORE_MEM, AUTO, {**LAYERS, "cgpu": replace(CGPU, isolates=frozenset({Isolates.MEMORY}))}, "mps"),
        (Mode.CGPU, AUTO, {**LAYERS, "cgpu": replace(CGPU, problem="broken")}, "cgpu"),
        (Mode.CGPU, "mps", LAYERS, "mps"),
        (Mode.MPS, "cgpu", LAYERS, "cgpu"),
        (Mode.CGPU, "none", LAYERS, "none"),
        (Mode.CGPU, AUTO, {}, "none"),
        (Mode.SHARE, AUTO, LAYERS, "none"),
        (Mode.TOPOLOGY, "cgpu", LAYERS, "none"),
    ],
)
def test_the_driver_of_a_mode(mode, setting, layers, driver):
    assert chosen(mode, setting, layers, {}).driver == driver


def test_containers_keep_their_driver_when_a_better_one_comes():
    assert chosen(Mode.CGPU, AUTO, LAYERS, {Mode.CGPU: "mps"}).driver == "mps"
    node = living()
    reports(node, MPS)
    assert node.state.layer.driver == "mps"
    node.holdings(holding("p", sorted(node.ids(MEM))[:2]))
    reports(node, CGPU)
    assert node.state.layer.driver == "mps"
    node.wait(1).holdings()
    assert node.state.layer.driver == "cgpu"


def test_a_driver_keeps_a_mode_it_serves_while_it_works():
    assert CGPU.keeps(Mode.CGPU)
    assert not CGPU.keeps(Mode.MPS)
    assert not replace(CGPU, problem="gone").keeps(Mode.CGPU)
    assert not replace(CGPU, isolates=frozenset({Isolates.MEMORY})).keeps(Mode.CORE_MEM)
    weak = replace(CGPU, unserved={Mode.CORE_MEM: "policy 5"})
    assert weak.keeps(Mode.CGPU)
    assert not weak.keeps(Mode.CORE_MEM)
    assert NO_LAYER.keeps(Mode.SHARE)
    assert not NO_LAYER.keeps(Mode.CGPU)


def living(mode=Mode.CGPU, **policy):
    node = in_force(mode, box(2), **policy)
    node.isolation(layers={"cgpu": replace(CGPU, installed=False), "mps": replace(MPS, installed=False)})
    return node.wait(0).wait(3)  # what another driver had on offer has left the lists


def reports(node, layer):
    return node.send(ev.LayerSeen(layer, node.now))


def reasons(node):
    return [problem.reason for problem in problems(node.state)]


def test_a_driver_that_comes_is_served_and_one_that_dies_zeroes_the_offer():
    node = living()
    assert node.ids(MEM) == set()
    assert reasons(node) == ["IsolationMissing"]
    offered = reports(node, CGPU).ids(MEM)
    assert offered
    assert reasons(node) == []
    reports(node, replace(CGPU, problem="its module is gone; load it"))
    assert node.offer(MEM) == {}
    assert reasons(node) == ["IsolationDown"]
    condition = node_condition(node.state)
    assert (condition["status"], condition["reason"]) == ("False", "IsolationDown")
    assert "its module is gone; load it" in condition["message"]
    assert "running containers are not affected" in condition["message"]
    assert node.wait(3).ids(MEM) == set()
    assert reports(node, CGPU).ids(MEM) == offered
    assert reasons(node) == []


def test_what_every_driver_lacks_is_reported_where_none_is_installed():
    node = living()
    reports(node, Layer(driver="cgpu", installed=False, problem="not loaded: install it"))
    (problem,) = problems(node.state)
    assert "cgpu: not loaded: install it" in problem.message


def test_before_the_drivers_have_looked_that_is_shown_and_no_event_is_sent():
    node = living().isolation(unreported=frozenset({"cgpu"}))
    assert reasons(node) == ["IsolationNotYetKnown"]
    assert node.wait(1).announced() == []
    reports(node, replace(CGPU, installed=False))
    assert reasons(node) == ["IsolationMissing"]


def test_a_gpu_the_driver_cannot_isolate_is_left_out_aloud():
    node = reports(living(), replace(CGPU, left_out={uuid(1): "too old; use mode share"}))
    assert {i.split("-")[0] for i in node.ids(MEM)} == {node.state.gpus.by_uuid[uuid(0)].key}
    problem, divided = problems(node.state)
    assert (problem.reason, divided.reason) == ("GPUIsolationUnsupported", "MixedGPUs")
    assert "GPU 1" in problem.message
    assert "too old; use mode share" in problem.message


def test_the_nodes_label_that_turns_isolation_off_is_shouted():
    node = reports(living(), CGPU)
    labelled = node_json("cgpu")
    labelled["metadata"]["labels"]["cgpu.disable.isolation"] = "true"
    node.send(ev.NodeSeen(labelled, node.now))
    (problem,) = problems(node.state)
    assert problem.reason == "IsolationDisabled"
    assert "cgpu.disable.isolation=true" in problem.message


def test_the_status_page_names_driver_version_and_caveats():
    node = reports(living(), replace(CGPU, caveats=("unified memory is not limited",)))
    assert status(node.state)["isolation"] == {
        "driver": "cgpu",
        "version": "1.5.10",
        "problem": None,
        "isolates": ["compute", "memory"],
        "max_sharers": None,
        "caveats": ["unified memory is not limited"],
    }


def test_core_mem_needs_compute_too():
    node = reports(living(Mode.CORE_MEM), replace(CGPU, unserved={Mode.CORE_MEM: "policy 5 shares nothing; set 3"}))
    assert node.ids(MEM) == node.ids(CORE) == set()
    (problem,) = problems(node.state)
    assert "policy 5 shares nothing; set 3" in problem.message


def test_what_is_held_under_isolation_is_verified_also_on_a_gpu_that_is_not_there():
    node = in_force(Mode.SHARE, box(1))
    assert node.state.verified == set()
    assert node.holdings(holding("p", unit_ids(1, Kind.MEMORY_CGPU, 0))).state.verified == {MEM}
