"""The comparison of a node with what shall be true of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.reconcile.desired_node import DesiredNode, NodePatch, node_patches, same_quantity
from standin.api.patching import merge

NOW, THEN = "2027-01-15T08:00:00Z", "2026-01-01T00:00:00Z"
CONDITION = {"type": "GpusReady", "status": "True", "reason": "Serving", "message": ""}

texts = st.sampled_from(["a", "b", "c"])
amounts = st.sampled_from(["0", "8", "1000", "1k"])
conditions = st.fixed_dictionaries(
    {"type": st.just("GpusReady"), "status": st.sampled_from(["True", "False"]), "reason": texts}
)
nodes = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("labels", "annotations"), st.dictionaries(texts, texts))
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "capacity": st.dictionaries(texts, amounts),
                "allocatable": st.dictionaries(texts, amounts),
                "conditions": st.lists(conditions, max_size=1),
            },
        ),
    },
)
desired_nodes = st.builds(
    DesiredNode,
    st.dictionaries(texts, st.none() | texts),
    st.dictionaries(texts, amounts),
    st.none() | conditions,
    annotations=st.dictionaries(texts, texts),
)


@given(nodes, desired_nodes)
def test_once_patched_nothing_is_left_to_patch(node: dict[str, object], wanted: DesiredNode) -> None:
    for patch in node_patches(node, wanted, NOW):
        node = merge(node, patch.body, strategic=patch.subresource == "status")
    assert node_patches(node, wanted, "later") == ()


@given(nodes, desired_nodes)
def test_each_patch_is_for_another_part(node: dict[str, object], wanted: DesiredNode) -> None:
    node = {**node, "spec": {"taints": [{"key": "k"}]}, "metadata": {"resourceVersion": "5"}}
    parts = [patch.part for patch in node_patches(node, replace(wanted, no_taint="k"), NOW)]
    assert parts[0] == "taints"
    assert len({*parts}) == len(parts)


def test_only_what_differs_is_patched() -> None:
    node = {
        "metadata": {"labels": {"a": "1", "b": "2", "mine": "x"}, "annotations": {"c": "1", "theirs": "y"}},
        "status": {"capacity": {"gpu-count": "8"}, "allocatable": {"gpu-count": "0"}},
    }
    wanted = DesiredNode({"a": "1", "b": "3", "gone": None}, {"gpu-count": "8"}, annotations={"c": "2"})
    assert node_patches(node, wanted, NOW) == (
        NodePatch("", {"metadata": {"labels": {"b": "3"}, "annotations": {"c": "2"}}}),
        NodePatch("status", {"status": {"allocatable": {"gpu-count": "8"}}}),
    )


def test_nothing_desired_no_patches() -> None:
    assert node_patches({}, DesiredNode(), NOW) == ()


@pytest.mark.parametrize(
    ("present", "since"),
    [
        ([], NOW),
        ([{"type": "GpusReady", "status": "False", "lastTransitionTime": THEN}], NOW),
        ([{"type": "GpusReady", "status": "True", "lastTransitionTime": THEN}], THEN),
        ([{"type": "GpusReady", "status": "True"}], NOW),
    ],
)
def test_transition_time_moves_with_the_status(present: list[dict[str, str]], since: str) -> None:
    (patch,) = node_patches({"status": {"conditions": present}}, DesiredNode(condition=CONDITION), NOW)
    (written,) = patch.body["status"]["conditions"]
    assert written == {**CONDITION, "lastHeartbeatTime": NOW, "lastTransitionTime": since}


def test_an_empty_message_is_dropped_by_the_server_and_no_drift() -> None:
    present = {"type": "GpusReady", "status": "True", "reason": "Serving", "lastHeartbeatTime": THEN}
    assert node_patches({"status": {"conditions": [present]}}, DesiredNode(condition=CONDITION), NOW) == ()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("8", "8", True),
        ("1000", "1k", True),
        ("1024", "1Ki", True),
        ("1", "1000m", True),
        ("1e3", "1k", True),
        ("8", "9", False),
        ("8", "", False),
        ("nonsense", "8", False),
        ("x", "y", False),
    ],
)
def test_quantities(one: str, other: str, same: bool) -> None:  # noqa: FBT001
    assert same_quantity(one, other) is same


def test_a_taint_goes_and_those_of_others_stay() -> None:
    mine, other = {"key": "k", "effect": "NoSchedule"}, {"key": "o", "effect": "NoExecute"}
    node = {"metadata": {"resourceVersion": "5"}, "spec": {"taints": [mine, other, {**mine, "effect": "NoExecute"}]}}
    (patch,) = node_patches(node, DesiredNode(no_taint="k"), NOW)
    assert patch.subresource == ""
    assert patch.body == {"metadata": {"resourceVersion": "5"}, "spec": {"taints": [other]}}
    alone = {**node, "spec": {"taints": [mine]}}
    (patch,) = node_patches(alone, DesiredNode(no_taint="k"), NOW)
    assert patch.body["spec"] == {"taints": None}
    assert node_patches(alone, DesiredNode(no_taint="other"), NOW) == ()
    assert node_patches(alone, DesiredNode(), NOW) == ()
    assert node_patches({"spec": {}}, DesiredNode(no_taint="k"), NOW) == ()
