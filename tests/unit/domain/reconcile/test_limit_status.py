"""The annotation that says what became of a resize."""

from gpuagent.domain.deviceplugin.resize.resizing import most_in_force, withheld_bytes
from gpuagent.domain.pods.annotations import LIMIT_STATUS_ANNOTATION
from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.reconcile.limit_status import with_limit_status
from gpuagent.domain.reconcile.pod_annotations import PodWrite, writes
from gpuagent.domain.status.status_page import status
from gpuagent.domain.usage.free_memory import free_memory
from gpuagent.domain.usage.guarantee import shares
from tests.unit.domain.builders import MEM, pod_json, uuid
from tests.unit.domain.deviceplugin.test_resizing import GIB, ResizingNode, trainer

MAIN = ContainerRef(PodName("ml", "train"), "main")


def status_of(node: ResizingNode) -> str | None:
    """What the agent writes."""
    (write,) = with_limit_status(node.state, ()) or (None,)
    return write.texts[LIMIT_STATUS_ANNOTATION] if write else None


def test_the_pod_says_what_is_in_force():
    node = ResizingNode(trainer())
    assert status_of(node) is None
    node.annotate("train", "main=12")
    assert status_of(node) is None, "a moment later there is more to say"
    node.settle()
    assert status_of(node) == "InForce: main=12"


def test_nothing_is_written_where_the_pod_says_it_already():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.json["train"]["metadata"]["annotations"][LIMIT_STATUS_ANNOTATION] = "InForce: main=12"
    node.show()
    assert status_of(node) is None


def test_a_forged_status_is_put_right():
    node = ResizingNode(trainer())
    node.json["train"]["metadata"]["annotations"][LIMIT_STATUS_ANNOTATION] = "InForce: main=16"
    node.show()
    assert status_of(node) == "InForce: main=8"


def test_any_text_of_a_pod_and_of_a_driver_can_be_read_back():
    node = ResizingNode(trainer())
    node.refuses["uid-train"] = "\u2603\n" * 2000
    node.annotate("train", "main=4")
    node.settle()
    text = status_of(node)
    assert text is not None
    node.json["train"]["metadata"]["annotations"][LIMIT_STATUS_ANNOTATION] = text
    node.show()
    assert status_of(node) is None


def test_nothing_is_written_where_the_agent_does_not_resize():
    node = ResizingNode(trainer(), live_resize=False)
    node.annotate("train", "main=12")
    assert node.verdict("train").startswith("Refused")
    assert status_of(node) is None


def test_it_comes_in_one_write_with_the_other_annotations():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    (write,) = with_limit_status(node.state, writes(node.state))
    assert write.texts.keys() > {LIMIT_STATUS_ANNOTATION}
    other = PodWrite(PodName("ml", "other"), "uid-other", "1", {})
    assert len(with_limit_status(node.state, (other,))) == 2


def test_what_is_published_of_a_gpu_agrees():
    """Kubelet's list, the Node's annotation and the metrics leave the same amount to others."""
    node = ResizingNode(trainer())
    node.run(pod_json("small", {MEM: 4}), first=8)
    node.annotate("train", "main=10")
    node.annotate("small", "main=2")
    node.settle()
    share = shares(node.state)
    assert share[uuid(0), MAIN].memory_bytes == 10 * GIB
    small = share[uuid(0), ContainerRef(PodName("ml", "small"), "main")]
    assert (small.memory_bytes, small.taken_bytes) == (2 * GIB, 4 * GIB)
    taken = sum(one.taken_bytes for one in share.values())
    free = 16 * GIB - taken
    assert free == (node.offered - 8 - 4) * GIB == 2 * GIB
    assert withheld_bytes(node.state) == {uuid(0): 2 * GIB}
    assert free_memory(node.state) == {uuid(0): 2 * GIB}


def test_a_limit_that_cannot_be_lowered_yet_is_shown_as_it_is():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    node.refuses["uid-train"] = "uses 11 GiB"
    node.annotate("train", "main=4")
    node.settle()
    assert most_in_force(node.state) == {MAIN: 12}
    assert shares(node.state)[uuid(0), MAIN].memory_bytes == 12 * GIB


def test_the_status_page_has_each_resize():
    node = ResizingNode(trainer())
    node.annotate("train", "main=12")
    node.settle()
    view = {"pod": "ml/train", "limits": {"main": 12}, "extra_units": 4, "status": "InForce: main=12"}
    assert status(node.state)["resizes"] == [view]
