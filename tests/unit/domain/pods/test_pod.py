"""Reading Pod objects."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.events import PodsSeen
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import ContainerSpec, PodName, count_of, requests
from gpuagent.domain.policy import Policy
from gpuagent.domain.state import State
from gpuagent.domain.step import step
from tests.unit.domain import hostile
from tests.unit.domain.builders import CORE, MEM, pod_json


@given(hostile.words | st.text(max_size=14) | st.text("0123456789", max_size=14))
@example("9" * 5000)
@example("0" * 5000 + "1")
def test_counts_are_whole_numbers_within_bounds_or_nothing(text):
    count = count_of(text)
    assert count is None or (1 <= count <= 9999 and str(count) == text.lstrip("0"))


def test_a_pod_says_what_its_containers_ask_for():
    pod = parse_pod(
        pod_json("a", {MEM: 4, CORE: 30}, {MEM: 2}, init=({MEM: 1},), sidecar=({MEM: 3},), labels={"x": "y"})
    )
    assert pod.name == PodName("ml", "a")
    assert (pod.uid, pod.ended, pod.labels) == ("uid-a", False, {"x": "y"})
    assert pod.containers == (
        ContainerSpec("init-0", {MEM: 1}, init=True),
        ContainerSpec("side-0", {MEM: 3}, sidecar=True),
        ContainerSpec("main", {MEM: 4, CORE: 30}),
        ContainerSpec("main-1", {MEM: 2}),
    )


def test_cpu_and_memory_are_nothing_to_us():
    pod = parse_pod({"spec": {"containers": [{"resources": {"limits": {"cpu": "4", "memory": "1Gi", MEM: 2}}}]}})
    assert pod.containers[0].limits == {MEM: 2}


def test_an_amount_that_cannot_be_read_is_not_nothing():
    odd = {MEM: None, CORE: "5x", "a.b/c": {}, "d.e/f": "-1", "cpu": "x", "g.h/i": "0"}
    (container,) = parse_pod({"spec": {"containers": [{"resources": {"limits": odd}}]}}).containers
    assert (container.limits, container.unread) == ({}, {MEM, CORE, "a.b/c", "d.e/f"})
    assert container.asks(MEM)
    assert container.may_want(MEM, 7)
    assert not container.asks("g.h/i")


@pytest.mark.parametrize(("phase", "ended"), [("Pending", 0), ("Running", 0), ("Succeeded", 1), ("Failed", 1)])
def test_only_two_phases_are_an_end(phase, ended):
    assert parse_pod(pod_json("a", phase=phase)).ended == bool(ended)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        {"metadata": {"labels": None, "creationTimestamp": None}},
        {"spec": {"containers": None, "initContainers": None}},
        {"spec": {"containers": [{}]}},
        {"spec": {"containers": [{"name": "c", "resources": None}]}},
        {"spec": {"containers": [{"name": "c", "resources": {"limits": None}}]}},
    ],
)
def test_missing_parts_are_empty(odd):
    pod = parse_pod(odd)
    assert pod.name == PodName("", "")
    assert all(c.limits == {} for c in pod.containers)
    assert list(requests([pod], MEM, 1)) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def parts(**known):
    """An object where any part may be missing or be anything at all."""
    return st.fixed_dictionaries({}, optional={name: JSON | strategy for name, strategy in known.items()})


CONTAINERS = st.lists(
    JSON | parts(name=st.just("c"), restartPolicy=st.just("Always"), resources=parts(limits=parts(**{MEM: JSON}))),
    max_size=2,
)
PODS = parts(
    metadata=parts(
        namespace=st.just("ml"),
        name=st.sampled_from("ab"),
        uid=st.just("u"),
        labels=JSON,
        creationTimestamp=st.just("2026"),
    ),
    spec=parts(initContainers=CONTAINERS, containers=CONTAINERS),
    status=parts(phase=st.just("Failed")),
)


def null_anywhere(value):
    """`value` with any part of it possibly null."""
    if isinstance(value, dict):
        inner = st.fixed_dictionaries({k: null_anywhere(v) for k, v in value.items()})
    elif isinstance(value, list):
        inner = st.tuples(*(null_anywhere(v) for v in value)).map(list)
    else:
        inner = st.just(value)
    return inner | st.none()


WHOLE_POD = pod_json("a", {MEM: 4}, init=({MEM: 1},), labels={"aliyun.com/gpu-count": "2"})


@given(st.lists(null_anywhere(WHOLE_POD).filter(bool), min_size=2, max_size=3))
def test_null_in_any_place_never_stops_the_reading(pods):
    state, _ = step(State(policy=Policy()), PodsSeen(tuple(map(parse_pod, pods)), 0.0))
    assert len(state.pods.seen) == len(pods)
    assert all(pod.gpu_count_label in {None, "2"} for pod in state.pods.seen)
    list(requests(state.pods.seen, MEM, 4))


@given(st.lists(PODS, max_size=3))
def test_whatever_json_says_it_is_a_pod_it_never_stops_the_reading(pods):
    state, _ = step(State(policy=Policy()), PodsSeen(tuple(map(parse_pod, pods)), 0.0))
    list(requests(state.pods.seen, MEM, 4))


@pytest.mark.parametrize(
    ("timestamp", "ends_at"),
    [("2026-01-01T00:01:00Z", 1767225660.0), ("soon", None), (7, None), ("9999-99-99T00:00:00Z", None), (None, None)],
)
def test_a_pod_that_is_deleted_ends_with_its_grace_period(timestamp, ends_at):
    pod = parse_pod({"metadata": {"deletionTimestamp": timestamp}})
    assert pod.deleting
    assert pod.ends_at == ends_at


def test_a_pod_that_stays_has_no_end():
    assert parse_pod({"metadata": {}}).ends_at is None


def test_requests_come_oldest_first_and_only_from_living_pods():
    young = parse_pod(pod_json("young", {MEM: 4}, created="2026-01-01T00:00:02Z"))
    old = parse_pod(pod_json("old", {MEM: 2}, {MEM: 4}, created="2026-01-01T00:00:01Z"))
    dead = parse_pod(pod_json("dead", {MEM: 4}, created="2026-01-01T00:00:00Z", phase="Failed"))
    twin = parse_pod(pod_json("twin", {MEM: 4}, created="2026-01-01T00:00:02Z"))
    found = [(pod.name.name, container.name) for pod, container in requests([young, twin, dead, old], MEM, 4)]
    assert found == [("old", "main-1"), ("young", "main"), ("twin", "main")]
