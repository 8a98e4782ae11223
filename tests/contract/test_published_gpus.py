"""The node's annotation for schedulers, from the agent as a whole: it says what kubelet's lists say."""

import json
from collections.abc import Callable

import pytest

from gpuagent.domain.node_state.former_gpus import KNOWN_GPUS_ANNOTATION
from gpuagent.domain.pods.annotations import DECIDED_ANNOTATION, MEMORY_ANNOTATION
from gpuagent.domain.scheduling.held_gpus import HELD_GPUS_ANNOTATION, HeldGpu, held_gpus
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus
from gpuagent.domain.scheduling.node_links import node_links
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, MODE_LABEL
from tests.contract.harness import MEM, NODE, WHOLE, Isolating, Node, box, pod

MakeNode = Callable[..., Node]


def annotations(one: Node) -> dict[str, str]:
    return dict(one.server.node()["metadata"].get("annotations") or {})


def published(one: Node) -> NodeGpus | None:
    """The annotation as our scheduler reads it."""
    found = node_gpus(annotations(one))
    assert found is None or isinstance(found, NodeGpus), found
    return found


def publishes(one: Node, *gpus: NodeGpu) -> NodeGpus:
    """Wait until the Node shows exactly these GPUs."""

    def right() -> bool:
        found = published(one)
        return found is not None and found.gpus == gpus

    assert one.server.wait(right), published(one)
    found = published(one)
    assert found is not None
    return found


def annotate(one: Node, **texts: str | None) -> None:
    """Another client writes annotations of the Node."""
    one.server.objects.patch(("nodes", "", NODE), "", {"metadata": {"annotations": texts}}, strategic=False)


def fence(one: Node, *index: str) -> None:
    one.fence_file.parent.mkdir(exist_ok=True)
    new = one.fence_file.with_suffix(".new")
    new.write_text(json.dumps({"index": index}))
    new.replace(one.fence_file)


@pytest.mark.parametrize(
    ("mode", "gpus"),
    [
        ("default", ()),
        ("share", (NodeGpu(0, 24), NodeGpu(1, 24))),
        ("cgpu", (NodeGpu(0, 24), NodeGpu(1, 24))),
        ("mps", (NodeGpu(0, 24), NodeGpu(1, 24))),
        ("core_mem", (NodeGpu(0, 24, 100), NodeGpu(1, 24, 100))),
        ("topology", (NodeGpu(0, whole=True), NodeGpu(1, whole=True))),
    ],
)
def test_each_mode_publishes_its_units(node: MakeNode, mode: str, gpus: tuple[NodeGpu, ...]) -> None:
    one = node("1.36", box(2, 24), labels={MODE_LABEL: mode})
    one.run(Isolating(), max_pods_per_gpu=7)
    found = publishes(one, *gpus)
    assert (found.unit_mib, found.most_pods, found.core_step) == (1024, 7, 5)
    assert found.both is (mode == "core_mem")
    assert bool(found.links) is (mode == "topology")


def test_without_isolation_and_under_an_unknown_label_no_more_is_published_than_is_advertised(node: MakeNode) -> None:
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "cgpu"})
    one.run()
    publishes(one)
    one.label("share")
    publishes(one, NodeGpu(0, 24))
    one.label("nonsense")
    one.event("InvalidModeLabel")
    publishes(one, NodeGpu(0, 24))


def test_a_gpu_is_usable_while_it_is_healthy_and_not_fenced(node: MakeNode) -> None:
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run(settle=0.2)
    publishes(one, NodeGpu(0, 24), NodeGpu(1, 24))
    one.simulator.lose(0)
    publishes(one, NodeGpu(0, 24, usable=False), NodeGpu(1, 24))
    fence(one, "1")
    publishes(one, NodeGpu(0, 24, usable=False), NodeGpu(1, 24, usable=False))
    one.simulator.restore(0)
    publishes(one, NodeGpu(0, 24), NodeGpu(1, 24, usable=False))
    one.fence_file.unlink()
    publishes(one, NodeGpu(0, 24), NodeGpu(1, 24))


def test_in_a_switch_a_gpu_is_usable_when_the_pods_of_the_old_mode_are_gone(node: MakeNode) -> None:
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run(Isolating())
    publishes(one, NodeGpu(0, 24), NodeGpu(1, 24))
    one.offers(mem=48)
    old = one.bind(pod("old", {MEM: 4}))
    assert one.kubelet.admit(old)
    one.kubelet.start_container(old, "c0")
    one.label("core_mem")
    publishes(one, NodeGpu(0, usable=False), NodeGpu(1, 24, 100))
    one.offers(mem=24, core=100)
    one.end(old)
    publishes(one, NodeGpu(0, 24, 100), NodeGpu(1, 24, 100))
    one.offers(mem=48, core=200)


def test_the_annotation_is_put_back_and_those_of_others_are_not_touched(node: MakeNode) -> None:
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "share"})
    one.run()
    publishes(one, NodeGpu(0, 24))
    keys = {NODE_GPUS_ANNOTATION, HELD_GPUS_ANNOTATION, KNOWN_GPUS_ANNOTATION}
    assert one.server.wait(lambda: annotations(one).keys() == keys)
    written = annotations(one)
    for text in (None, "forged"):
        annotate(one, **dict.fromkeys(keys, text), theirs="x")
        assert one.server.wait(lambda: annotations(one) == {**written, "theirs": "x"})


def test_a_restart_of_the_agent_does_not_withdraw_the_gpus(node: MakeNode) -> None:
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "share"})
    agent = one.run()
    publishes(one, NodeGpu(0, 24))
    one.stop(agent)
    fence(one, "0")
    one.run()

    def fenced() -> bool:
        found = published(one)
        assert found is not None
        assert found.gpus
        return not found.gpus[0].usable

    assert one.server.wait(fenced)


def test_the_links_of_the_hash_are_in_the_config_map(node: MakeNode) -> None:
    one = node("1.36", box(4, 24), labels={MODE_LABEL: "topology"})
    one.run()
    publishes(one, *(NodeGpu(n, whole=True) for n in range(4)))

    def links() -> object:
        report, found = one.server.config_map(f"{NODE}-gputopo-report"), published(one)
        return report and found and node_links(report["data"], found)

    assert one.server.wait(links)
    one.label("share")
    assert one.server.wait(lambda: (found := published(one)) and found.links == "")


@pytest.mark.parametrize(
    ("mode", "asks", "key", "first", "own"),
    [
        ("share", {MEM: 4}, MEMORY_ANNOTATION, '{"0":{"1":4}}', '{"0":{"0":4}}'),
        ("topology", {WHOLE: 1}, GROUP_ANNOTATION, "1", "0"),
    ],
    ids=["share", "whole GPU"],
)
def test_a_copied_pod_gets_a_gpu_of_the_agents_choice_and_annotations_of_its_own(
    node: MakeNode, mode: str, asks: dict[str, int], key: str, first: str, own: str
) -> None:
    """A scheduler put the first pod on GPU 1. The agent chooses GPU 0 for the copy, and says so in its annotations."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: mode})
    one.run()
    one.offers(**({"mem": 48} if mode == "share" else {"whole": 2}))
    copied = one.bind(pod("copy", asks), annotations={key: first, DECIDED_ANNOTATION: "uid-of-the-first"})
    admitted = one.kubelet.admit(copied)
    assert admitted.containers["c0"].env["NVIDIA_VISIBLE_DEVICES"] == one.uuids[0]
    one.kubelet.start_container(copied, "c0")
    wanted = {key: own, DECIDED_ANNOTATION: copied.uid}
    assert one.server.wait(lambda: wanted.items() <= one.server.pods()[0]["metadata"]["annotations"].items())


def test_a_running_pod_that_its_author_edits_again_and_again_costs_one_write_of_the_node(node: MakeNode) -> None:
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run()
    publishes(one, NodeGpu(0, 24), NodeGpu(1, 24))
    one.offers(mem=48)
    theirs = one.bind(pod("a", {MEM: 4}), annotations={MEMORY_ANNOTATION: '{"0":{"1":4}}'})
    assert one.kubelet.admit(theirs)
    one.kubelet.start_container(theirs, "c0")
    uid, expected = theirs.uid, (HeldGpu(1, memory=4),)
    assert one.server.wait(lambda: held_gpus(annotations(one)) == {})

    def edit(text: str) -> None:
        one.server.patch_pod("a", {"metadata": {"annotations": {MEMORY_ANNOTATION: text}}})

    edit('{"0":{"0":4}}')
    assert one.server.wait(lambda: held_gpus(annotations(one)) == {uid: expected})
    nodes, pods = (one.server.requests[f"patch {kind}"] for kind in ("nodes", "pods"))
    for number in range(100):
        edit(f'{{"0":{{"0":{number}}}}}')
    assert held_gpus(annotations(one)) == {uid: expected}
    assert one.server.requests["patch nodes"] == nodes
    assert one.server.requests["patch pods"] - pods < 20
    one.end(theirs)
    assert one.server.wait(lambda: held_gpus(annotations(one)) == {})
