"""A GPU whose memory changes: never more is sold than there is, and less than before is explained."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.changed_memory import restart_applies
from gpuagent.domain.dra.resource_slice import slice_specs
from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION, former_gpus
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import (
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    node_json,
    pod_json,
    unit_ids,
    uuid,
)

SHARING = (Mode.SHARE, Mode.CGPU, Mode.MPS, Mode.CORE_MEM)
SMALLER = gpu(0, 15)
LARGER = gpu(0, 20)


def messages(node: NodeUnderTest, reason: str) -> list[str]:
    return [problem.message for problem in problems(node.state) if problem.reason == reason]


def started(*gpus: Any, annotations: dict[str, str], mode: Mode = Mode.SHARE, **policy: Any) -> NodeUnderTest:
    """An agent that starts on a node with these annotations of the last run."""
    node = NodeUnderTest(mode, **policy)
    seen(node, annotations)
    return node.inventory(*gpus).holdings()


def seen(node: NodeUnderTest, annotations: dict[str, str]) -> None:
    stored = node_json(str(node.state.node.mode))
    stored["metadata"]["annotations"] = annotations
    node.send(ev.NodeSeen(stored, node.now))


# -- while the agent runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SHARING)
def test_a_gpu_that_becomes_smaller_takes_no_new_pods_until_the_agent_restarts(mode):
    node = in_force(mode)
    node.inventory(SMALLER, gpu(1)).wait(5)
    assert node.offer(MEM) == {1: 16}
    assert MEM in node.state.advertised.lists
    (text,) = messages(node, "GPUMemoryChanged")
    assert text.startswith(f"GPU 0 ({uuid(0)}) has 15360 MiB of memory now, and had 16384 MiB")
    assert "no new pods" in text
    assert "restart" in text
    assert restart_applies(node.state)
    assert node.announced().count("GPUMemoryChanged") == 1
    assert node_condition(node.state)["status"] == "True", "the other one serves"


@pytest.mark.parametrize("mode", SHARING)
def test_its_units_leave_the_list_as_those_of_any_gpu_do(mode):
    """Kubelet crashes if a device vanishes while it waits for an answer."""
    node = in_force(mode).allocate_begins()
    node.inventory(SMALLER, gpu(1)).wait(5)
    assert node.fenced(MEM) == {0: 16}
    node.allocate_ends().wait(5)
    assert node.fenced(MEM) == {}


def test_a_gpu_that_has_its_former_size_again_is_served_again():
    node = in_force(Mode.SHARE)
    node.inventory(SMALLER, gpu(1)).wait(5)
    node.inventory(*box())
    assert node.offer(MEM) == {0: 16, 1: 16}
    assert messages(node, "GPUMemoryChanged") == []
    assert not restart_applies(node.state)


@pytest.mark.parametrize("mode", SHARING)
def test_a_gpu_that_becomes_larger_keeps_its_units_until_the_agent_restarts(mode):
    node = in_force(mode)
    node.inventory(LARGER, gpu(1)).wait(5)
    assert node.offer(MEM) == {0: 16, 1: 16}
    (text,) = messages(node, "GPUMemoryChanged")
    assert text.startswith(f"GPU 0 ({uuid(0)}) has 20480 MiB of memory now, and had 16384 MiB")
    assert "keeps its units" in text
    assert restart_applies(node.state)


def test_a_gpu_whose_memory_is_not_reported_any_more_takes_no_new_pods():
    node = in_force(Mode.SHARE)
    node.inventory(gpu(0, memory_mib=0), gpu(1)).wait(5)
    assert node.offer(MEM) == {1: 16}
    (text,) = messages(node, "GPUMemoryChanged")
    assert "does not report its memory any more, and had 16384 MiB" in text


def test_no_gpu_of_a_former_size_is_left():
    node = in_force(Mode.SHARE, [gpu(0)])
    node.inventory(SMALLER).wait(5)
    assert "of 1, 1 is of another memory size than when the agent started" in messages(node, "NoUsableGPU")[0]
    assert node_condition(node.state)["status"] == "False"


def test_whole_gpus_are_given_whatever_their_memory_is():
    node = in_force(Mode.TOPOLOGY)
    node.inventory(SMALLER, gpu(1)).wait(5)
    assert node.offer(WHOLE) == {0: 1, 1: 1}
    (text,) = messages(node, "GPUMemoryChanged")
    assert "no new pods" not in text


def test_claims_do_not_get_a_gpu_that_became_smaller():
    node = in_force(Mode.DRA)
    node.inventory(SMALLER, gpu(1)).wait(5)
    devices = [device for spec in slice_specs(node.state, "n").values() for device in spec.get("devices", ())]
    assert [device["attributes"]["uuid"]["string"] for device in devices] == [uuid(1)]
    assert len(messages(node, "GPUMemoryChanged")) == 1


def test_the_size_in_mig_mode_is_no_change():
    node = in_force(Mode.SHARE)
    node.inventory(replace(SMALLER, mig=True), gpu(1)).wait(5)
    assert messages(node, "GPUMemoryChanged") == []
    assert not restart_applies(node.state)


# -- over a restart ----------------------------------------------------------------------------------------------


def test_the_node_remembers_the_memory_of_its_gpus():
    known = json.loads(node_annotations(started(*box(), annotations={}).state)[KNOWN_GPUS_ANNOTATION])
    assert known[uuid(0)] == {"pci": "00000000:01:00.0", "mib": 16384}


def test_a_gpu_that_is_smaller_after_a_restart_is_named_over_all_restarts_until_that_is_accepted():
    annotations = node_annotations(started(*box(), annotations={}).state)
    for _ in range(3):
        node = started(SMALLER, gpu(1), annotations=annotations)
        assert node.offer(MEM) == {0: 15, 1: 16}
        (text,) = messages(node, "GPUMemoryShrunk")
        assert text.startswith(f"GPU 0 ({uuid(0)}) has 15360 MiB of memory, and had 16384 MiB before")
        assert "15 units of 1 GiB and not 16" in text
        assert f"kubectl annotate node n {KNOWN_GPUS_ANNOTATION}-" in text
        assert node_condition(node.state)["status"] == "True"
        annotations = node_annotations(node.state)
        seen(node, annotations)
        assert len(messages(node, "GPUMemoryShrunk")) == 1, "also once the Node has what was written"
    seen(node, {})
    assert messages(node, "GPUMemoryShrunk") == []
    again = started(SMALLER, gpu(1), annotations=node_annotations(node.state))
    assert messages(again, "GPUMemoryShrunk") == []


@pytest.mark.parametrize("mode", [*SHARING, Mode.DRA])
def test_it_is_named_in_every_mode_that_shares_memory(mode):
    annotations = node_annotations(started(*box(), annotations={}).state)
    assert len(messages(started(SMALLER, gpu(1), annotations=annotations, mode=mode), "GPUMemoryShrunk")) == 1


@pytest.mark.parametrize("mode", [Mode.TOPOLOGY, Mode.DEFAULT])
def test_it_is_not_where_gpus_are_given_whole(mode):
    annotations = node_annotations(started(*box(), annotations={}).state)
    node = started(SMALLER, gpu(1), annotations=annotations, mode=mode)
    assert messages(node, "GPUMemoryShrunk") == []
    assert former_gpus({"metadata": {"annotations": node_annotations(node.state)}})[uuid(0)].memory_mib == 16384


def test_a_loss_below_one_unit_is_none():
    """Drivers differ by some MiB in what they count."""
    annotations = node_annotations(started(gpu(0, memory_mib=16800), annotations={}).state)
    assert messages(started(gpu(0), annotations=annotations), "GPUMemoryShrunk") == []
    fine = started(gpu(0), annotations=annotations, unit=MemoryUnit(1))
    assert len(messages(fine, "GPUMemoryShrunk")) == 1


def test_a_gpu_that_is_larger_after_a_restart_is_no_problem_and_remembered():
    annotations = node_annotations(started(*box(), annotations={}).state)
    node = started(LARGER, gpu(1), annotations=annotations)
    assert node.offer(MEM) == {0: 20, 1: 16}
    assert messages(node, "GPUMemoryShrunk") == []
    back = started(*box(), annotations=node_annotations(node.state))
    assert "had 20480 MiB before" in messages(back, "GPUMemoryShrunk")[0]


def test_a_smaller_gpu_in_the_slot_of_a_former_one_is_named_too():
    """Another vGPU profile is another GPU at the same address."""
    annotations = node_annotations(started(*box(), annotations={}).state)
    node = started(gpu(0, 8, uuid=uuid(9)), gpu(1), annotations=annotations)
    (text,) = messages(node, "GPUMemoryShrunk")
    assert text.startswith(f"GPU 0 ({uuid(9)}) has 8192 MiB of memory, and had 16384 MiB before")
    assert messages(node, "GPUMissing") == []
    again = started(gpu(0, 8, uuid=uuid(9)), gpu(1), annotations=node_annotations(node.state))
    assert messages(again, "GPUMemoryShrunk") == [text]


def test_a_gpu_whose_memory_is_not_reported_after_a_restart_is_named():
    annotations = node_annotations(started(*box(), annotations={}).state)
    node = started(gpu(0, memory_mib=0), gpu(1), annotations=annotations, mode=Mode.DRA)
    assert "does not report its memory, and had 16384 MiB before" in messages(node, "GPUMemoryShrunk")[0]


def test_an_annotation_without_sizes_is_read():
    text = json.dumps({uuid(0): "00000000:01:00.0", uuid(5): "00000000:06:00.0"})
    node = started(*box(), annotations={KNOWN_GPUS_ANNOTATION: text})
    assert messages(node, "GPUMemoryShrunk") == []
    assert len(messages(node, "GPUMissing")) == 1
    assert json.loads(node_annotations(node.state)[KNOWN_GPUS_ANNOTATION])[uuid(0)]["mib"] == 16384


@pytest.mark.parametrize("mib", [-1, 1 << 40, 1.5, "16384", True, None, [], {}])
def test_a_size_that_is_not_the_agents_own_counts_as_unknown(mib):
    text = json.dumps({uuid(0): {"pci": "00000000:01:00.0", "mib": mib}})
    node = started(*box(), annotations={KNOWN_GPUS_ANNOTATION: text})
    assert messages(node, "GPUMemoryShrunk") == []


# -- units that containers hold beyond the new size --------------------------------------------------------------


def test_held_units_beyond_the_size_are_not_sold_a_second_time():
    """A pod got units 12 to 15 of 16, and the GPU has 15: eleven are free, whatever numbers they have."""
    node = NodeUnderTest(Mode.SHARE).inventory(SMALLER, gpu(1))
    held = unit_ids(0, Kind.MEMORY_SHARE, 12, 13, 14, 15)
    node.pods(pod_json("a", {MEM: 4})).holdings(holding("a", held))
    of_gpu = {device_id for device_id in node.ids(MEM) if device_id.startswith(gpu(0).key)}
    assert len(of_gpu - held) == 11
    (text,) = messages(node, "UnitsChanged")
    assert "ml/a" in text
    assert "Until then, 4 of its units are not advertised" in text
    node.holdings()
    assert node.offer(MEM) == {0: 15, 1: 16}
    assert messages(node, "UnitsChanged") == []
