"""A GPU that is missing after a restart is named, and the operator can say that it was removed on purpose."""

import json
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.gpu import Inventory, UnreadableGpu
from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION, former_gpus
from gpuagent.domain.reconcile.node_report import node_condition, node_labels
from gpuagent.domain.reconcile.published_gpus import node_annotations
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import NodeUnderTest, box, gpu, node_json, uuid


def stored(annotations: dict[str, str], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The Node as the API server has it."""
    node = node_json("share")
    node["metadata"]["annotations"] = annotations
    node["metadata"]["labels"] |= labels or {}
    return node


def sees(node: NodeUnderTest, **metadata: Any) -> NodeUnderTest:
    return node.send(ev.NodeSeen(stored(**metadata), node.now))


def started(*gpus: Any, **metadata: Any) -> NodeUnderTest:
    """An agent that starts on a node with these GPUs; `metadata` is what the last run wrote."""
    node = NodeUnderTest(Mode.SHARE, isolates=frozenset())
    return sees(node, **metadata).inventory(*gpus).holdings()


def missing(node: NodeUnderTest) -> list[str]:
    return [problem.message for problem in problems(node.state) if problem.reason == "GPUMissing"]


def written(node: NodeUnderTest) -> dict[str, str]:
    return node_annotations(node.state)


def test_a_gpu_that_is_missing_after_a_restart_is_named_and_the_way_to_accept_it_too():
    before = written(started(*box(8), annotations={}))
    node = started(*box(8)[:3], *box(8)[4:], annotations=before)
    (text,) = missing(node)
    assert text.startswith(f"GPU {uuid(3)} at PCI address 00000000:04:00.0 is missing: the node had it before")
    assert f"kubectl annotate node n {KNOWN_GPUS_ANNOTATION}-" in text
    assert node_condition(node.state)["status"] == "True", "the others serve"
    assert node_labels(node.state)["aliyun.accelerator/nvidia_count"] == "7"


def test_it_stays_missing_over_more_restarts_until_it_is_back():
    annotations = written(started(*box(4), annotations={}))
    for _ in range(3):
        node = started(*box(4)[:3], annotations=annotations)
        assert len(missing(node)) == 1
        annotations = written(node)
    assert missing(started(*box(4), annotations=annotations)) == []


def test_an_operator_who_removes_the_annotation_accepts_what_is_there():
    annotations = written(started(*box(4), annotations={}))
    node = started(*box(4)[:3], annotations=annotations)
    others = {key: text for key, text in annotations.items() if key != KNOWN_GPUS_ANNOTATION}
    sees(node, annotations=others)
    assert missing(node) == []
    known = {each.uuid: {"pci": each.pci_bus_id, "mib": each.memory_mib} for each in box(3)}
    assert json.loads(written(node)[KNOWN_GPUS_ANNOTATION]) == known
    assert missing(started(*box(4)[:3], annotations=written(node))) == []


def test_what_the_operator_removes_while_no_agent_runs_is_accepted_too():
    node = started(*box(4)[:3], annotations={}, labels={"aliyun.accelerator/nvidia_count": "3"})
    assert missing(node) == []


def test_a_gpu_that_replaces_another_one_in_its_slot_is_no_loss():
    annotations = written(started(gpu(0), gpu(1), annotations={}))
    replaced = gpu(1, uuid=uuid(9))
    node = started(gpu(0), replaced, annotations=annotations)
    assert missing(node) == []
    assert set(json.loads(written(node)[KNOWN_GPUS_ANNOTATION])) == {uuid(0), uuid(9)}


def test_what_an_agent_before_this_annotation_published_is_known_by_number():
    published = written(started(*box(8), annotations={}))
    del published[KNOWN_GPUS_ANNOTATION]
    node = started(*box(8)[:3], *box(8)[4:], annotations=published)
    assert [text.partition(" is missing")[0] for text in missing(node)] == ["a GPU (minor 3)"]
    again = started(*box(8)[:3], *box(8)[4:], annotations=written(node))
    assert len(missing(again)) == 1
    assert missing(started(*box(8), annotations=written(again))) == []


def test_the_label_alone_tells_how_many_there_were():
    node = started(*box(7), annotations={}, labels={"aliyun.accelerator/nvidia_count": "8"})
    assert [text.partition(" is missing")[0] for text in missing(node)] == ["a GPU (number 8)"]


def test_a_second_look_at_the_node_does_not_forget_before_the_annotation_is_written():
    labels = {"aliyun.accelerator/nvidia_count": "8"}
    node = started(*box(7), annotations={}, labels=labels)
    sees(node, annotations={}, labels={"aliyun.accelerator/nvidia_count": "7"})
    assert len(missing(node)) == 1


def test_a_gpu_that_cannot_be_read_is_not_missing_as_well():
    annotations = written(started(*box(2), annotations={}))
    node = sees(NodeUnderTest(Mode.SHARE, isolates=frozenset()), annotations=annotations)
    node.inventory(gpu(0), unreadable=(UnreadableGpu(1, "GPU is lost"),)).holdings()
    assert missing(node) == []
    assert KNOWN_GPUS_ANNOTATION not in written(node), "it stays as it is"


def restarted(
    *gpus: Any, former: int, unreadable: tuple[int, ...], absent: dict[str, str] | None = None
) -> NodeUnderTest:
    """An agent that starts on a node that had so many GPUs; the driver cannot read some of those that it lists."""
    annotations = written(started(*box(former), annotations={}))
    node = sees(NodeUnderTest(Mode.SHARE, isolates=frozenset()), annotations=annotations)
    silent = tuple(UnreadableGpu(index, "Unknown Error") for index in unreadable)
    node.send(ev.InventoryRead(Inventory(tuple(gpus), unreadable=silent, absent=absent or {}), node.now))
    return node.holdings()


def test_more_missing_gpus_than_unreadable_ones_are_counted():
    """Which of them is gone is not known, because the unreadable one may be any of them."""
    node = restarted(gpu(0), gpu(1), former=4, unreadable=(2,))
    (text,) = missing(node)
    names = ", ".join(f"GPU {uuid(n)} at PCI address 00000000:0{n + 1}:00.0" for n in (2, 3))
    assert text.startswith(f"1 of these 2 GPUs is missing: {names}. The node had them before")
    assert "lists only 1 more, which it cannot read" in text
    assert f"kubectl annotate node n {KNOWN_GPUS_ANNOTATION}-" in text
    assert KNOWN_GPUS_ANNOTATION not in written(node), "it stays as it is"
    sees(node, annotations={})
    assert missing(node) == []
    assert missing(restarted(gpu(0), former=5, unreadable=(1, 2)))[0].startswith("2 of these 4 GPUs are missing")
    assert missing(restarted(former=2, unreadable=(0,)))[0].startswith("1 of these 2 GPUs is missing")


@pytest.mark.parametrize(("former", "unreadable"), [(4, (2, 3)), (3, (2, 3)), (2, (2, 3))])
def test_as_many_unreadable_gpus_as_former_ones_explain_them(former: int, unreadable: tuple[int, ...]):
    assert missing(restarted(gpu(0), gpu(1), former=former, unreadable=unreadable)) == []


def test_a_gpu_that_was_read_in_this_run_and_fails_now_explains_no_other_one():
    """It is known which GPU that is, so the missing one is too."""
    node = restarted(gpu(0), gpu(1), gpu(2), former=4, unreadable=())
    node.inventory(gpu(0), gpu(1), unreadable=(UnreadableGpu(2, "Unknown Error"),))
    (text,) = missing(node)
    assert text.startswith(f"GPU {uuid(3)} at PCI address 00000000:04:00.0 is missing")


def test_a_former_gpu_on_the_bus_is_missing_whatever_cannot_be_read():
    on_bus = {"0000:04:00.0": "bound to driver nvidia"}
    (text,) = missing(restarted(gpu(0), gpu(1), former=4, unreadable=(2,), absent=on_bus))
    assert text.startswith(f"GPU {uuid(3)} at PCI address 00000000:04:00.0 is missing")
    assert "it is on the PCI bus, bound to driver nvidia" in text


def test_gpus_known_by_number_are_counted_too():
    node = NodeUnderTest(Mode.SHARE, isolates=frozenset())
    sees(node, annotations={}, labels={"aliyun.accelerator/nvidia_count": "8"})
    node.inventory(*box(6), unreadable=(UnreadableGpu(6, "Unknown Error"),)).holdings()
    (text,) = missing(node)
    assert text.startswith("1 of these 2 GPUs is missing: a GPU (number 7), a GPU (number 8).")


def test_nothing_is_missing_before_the_driver_has_answered():
    annotations = written(started(*box(2), annotations={}))
    node = sees(NodeUnderTest(Mode.SHARE, isolates=frozenset()), annotations=annotations)
    assert missing(node) == []
    assert KNOWN_GPUS_ANNOTATION not in written(node)


def test_all_gpus_missing_is_said_for_each():
    annotations = written(started(*box(2), annotations={}))
    node = started(annotations=annotations)
    assert len(missing(node)) == 2
    assert node_condition(node.state)["reason"] == "NoGPUs"


def test_a_gpu_on_the_bus_that_the_driver_does_not_list_is_named():
    annotations = written(started(*box(2), annotations={}))
    node = started(gpu(0), annotations=annotations)
    absent = {"0000:02:00.0": "bound to driver nvidia", "0000:03:00.0": "bound to no driver"}
    node.send(ev.InventoryRead(Inventory((gpu(0),), absent=absent), node.now))
    former, other = missing(node)
    assert f"GPU {uuid(1)} at PCI address 00000000:02:00.0 is missing" in former
    assert "it is on the PCI bus, bound to driver nvidia" in former
    assert other.startswith("the GPU at PCI address 0000:03:00.0 is missing: it is on the PCI bus, bound to no driver")


@pytest.mark.parametrize("text", ["", "[", "[]", "7", '{"a": 1}', '{"' + "x" * 70 + '": ""}', "[" * 100_000])
def test_a_text_that_is_not_the_agents_own_names_no_gpu(text: str):
    assert former_gpus(stored({KNOWN_GPUS_ANNOTATION: text})) == {}
    assert missing(started(*box(2), annotations={KNOWN_GPUS_ANNOTATION: text})) == []
