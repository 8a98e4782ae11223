"""What schedulers decided about shares: read, checked against the pod, resolved to this node's GPUs."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.pods.annotations import CORE_ANNOTATION, DECIDED_ANNOTATION, MEMORY_ANNOTATION
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.scheduling.decision import SKEW_NS, Decision, Ignored, read
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, Mode, Resources
from tests.unit.domain import hostile
from tests.unit.domain.builders import CORE, MEM, WHOLE, pod_json, uuid

SHARE, CORE_MEM = (Resources().in_mode(mode) for mode in (Mode.SHARE, Mode.CORE_MEM))
MINORS = {uuid(n): n for n in range(4)}
AMOUNTS = {MEM: dict.fromkeys(MINORS, 16), CORE: dict.fromkeys(MINORS, 100), WHOLE: {}}
BORN_NS = 1_767_225_600 * 10**9
"""When pods of `pod_json` were created."""


def v1(gpu: int | str, units: int, **texts: str | None) -> dict[str, str]:
    """As the open extender writes it; None takes a key away."""
    found = {
        an.V1_GPU: str(gpu),
        an.V1_UNITS: str(units),
        an.V1_GPU_UNITS: "16",
        an.V1_ASSUMED: str(BORN_NS + 10**9),
        an.V1_ASSIGNED: "false",
        **{f"ALIYUN_COM_GPU_MEM_{key}": text for key, text in texts.items()},
    }
    return {key: text for key, text in found.items() if text is not None}


def v2(containers: object, key: str = MEMORY_ANNOTATION) -> dict[str, str]:
    return {key: json.dumps(containers)}


def pod(annotations: dict[str, str], *containers: dict[str, int], **more) -> Pod:
    return parse_pod(pod_json("a", *(containers or ({MEM: 4},)), annotations=annotations, **more))


def units(found: object) -> dict[tuple[str, str], dict[int, int]]:
    """By container and resource, minor number to units."""
    assert isinstance(found, Decision), found
    assert not found.unmet
    return {name: {MINORS[u]: n for u, n in gpus.items()} for name, gpus in found.units.items()}


def test_v1_names_one_gpu_for_all_containers_of_the_pod():
    found = read(pod(v1(2, 7), {MEM: 4}, {}, {MEM: 3}), SHARE, MINORS, AMOUNTS)
    assert units(found) == {("main", MEM): {2: 4}, ("main-2", MEM): {2: 3}}


def test_v2_names_gpus_for_each_container():
    found = read(pod(v2({"0": {"1": 4}, "2": {"3": 3}}), {MEM: 4}, {}, {MEM: 3}), SHARE, MINORS, AMOUNTS)
    assert units(found) == {("main", MEM): {1: 4}, ("main-2", MEM): {3: 3}}


def test_gpus_are_named_by_minor_number_or_by_uuid():
    minors = {uuid(0): 5, uuid(1): 4}
    by_number = read(pod(v2({"0": {"4": 4}})), SHARE, minors, AMOUNTS)
    assert by_number == read(pod(v2({"0": {uuid(1): 4}})), SHARE, minors, AMOUNTS)
    assert isinstance(by_number, Decision)
    assert by_number.uuids == {uuid(1)}
    first = read(pod(v1(uuid(0), 4)), SHARE, minors, AMOUNTS)
    assert isinstance(first, Decision)
    assert first.uuids == {uuid(0)}


def test_v2_comes_before_v1_where_it_is_a_decision():
    assert units(read(pod(v2({"0": {"1": 4}}) | v1(2, 4)), SHARE, MINORS, AMOUNTS)) == {("main", MEM): {1: 4}}
    assert units(read(pod(v2({"0": {"1": 9}}) | v1(2, 4)), SHARE, MINORS, AMOUNTS)) == {("main", MEM): {2: 4}}


def test_units_are_spread_where_the_label_asks_for_it():
    two = {GPU_COUNT_LABEL: "2"}
    found = read(pod(v2({"0": {"1": 2, "3": 2}}), labels=two), SHARE, MINORS, AMOUNTS)
    assert units(found) == {("main", MEM): {1: 2, 3: 2}}
    for uneven in ({"1": 3, "3": 1}, {"1": 4}, {"0": 1, "1": 1, "2": 2}):
        assert isinstance(read(pod(v2({"0": uneven}), labels=two), SHARE, MINORS, AMOUNTS), Ignored)
    assert isinstance(read(pod(v2({"0": {"1": 2, "3": 2}})), SHARE, MINORS, AMOUNTS), Ignored)
    assert isinstance(read(pod(v1(1, 4), labels=two), SHARE, MINORS, AMOUNTS), Ignored)


def test_compute_goes_where_memory_goes_and_the_other_way_round():
    both = {MEM: 4, CORE: 30}
    wanted = {("main", MEM): {1: 4}, ("main", CORE): {1: 30}}
    cores = v2({"0": {"1": 30}}, CORE_ANNOTATION)
    for annotations in (v2({"0": {"1": 4}}), cores, v2({"0": {"1": 4}}) | cores, v1(1, 4), v1(1, 4) | cores):
        assert units(read(pod(annotations, both), CORE_MEM, MINORS, AMOUNTS)) == wanted


@pytest.mark.parametrize("family", [v2({"0": {"1": 4}}), v1(1, 4), v2({"0": {"1": 30}}, CORE_ANNOTATION)])
def test_annotations_with_the_uid_of_another_pod_are_no_decision(family):
    both = {MEM: 4, CORE: 30}
    own = read(pod(family | {DECIDED_ANNOTATION: "uid-a"}, both), CORE_MEM, MINORS, AMOUNTS)
    assert own == read(pod(family, both), CORE_MEM, MINORS, AMOUNTS)
    copied = read(pod(family | {DECIDED_ANNOTATION: "uid-b"}, both), CORE_MEM, MINORS, AMOUNTS)
    assert copied == Ignored("gpuagent.io/decided names the pod with UID 'uid-b': it was copied")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (v2({"0": {"1": 4}}) | v2({"0": {"2": 30}}, CORE_ANNOTATION), "memory on GPU 1 and its compute on GPU 2"),
        (v2({"0": {"1": 4}}) | v2({"0": {"1": 20}}, CORE_ANNOTATION), "gives container main 20 of"),
        (v2({"0": {"1": 4}}) | {CORE_ANNOTATION: "x"}, "is no JSON object"),
    ],
)
def test_memory_and_compute_that_do_not_fit_each_other_are_no_decision(annotations, expected):
    found = read(pod(annotations, {MEM: 4, CORE: 30}), CORE_MEM, MINORS, AMOUNTS)
    assert isinstance(found, Ignored)
    assert expected in found.why


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (v1(2, 5), "ALIYUN_COM_GPU_MEM_POD says 5, and the pod's containers ask for 4"),
        (v1(2, 4, POD=None), "says nothing, and the pod's containers ask for 4"),
        (v1(2, 4, ASSUME_TIME=None), "stands without ALIYUN_COM_GPU_MEM_ASSUME_TIME: no scheduler wrote it"),
        (v1(2, 4, ASSIGNED=None), "stands without ALIYUN_COM_GPU_MEM_ASSIGNED"),
        (v1(2, 4, ASSIGNED="maybe"), "is neither true nor false"),
        (v1(2, 4, ASSUME_TIME=str(BORN_NS - 10**12)), "is older than the pod: it was copied from another pod"),
        (v1(2, 4, ASSUME_TIME=str(BORN_NS - 10**12), ASSIGNED="true"), "is older than the pod"),
        (v2({"0": {"1": 5}}), "gives container main 5 of aliyun.com/gpu-mem, and it asks for 4"),
        (v2({}), "gives container main 0 of"),
        (v2({"0": {"1": 4}, "1": {"1": 1}}), "names container 1, and the pod has 1"),
        (v2({"0": {"1": 2, "2": 2}}), "units of GPU 1 and 2, and no label aliyun.com/gpu-count asks for several"),
        (v2([]), "is no JSON object"),
    ],
)
def test_what_does_not_fit_the_pod_is_no_decision(annotations, expected):
    found = read(pod(annotations), SHARE, MINORS, AMOUNTS)
    assert isinstance(found, Ignored)
    assert expected in found.why


def test_a_decision_that_was_carried_out_still_holds_for_its_own_pod():
    assert units(read(pod(v1(2, 4, ASSIGNED="true")), SHARE, MINORS, AMOUNTS)) == {("main", MEM): {2: 4}}


def test_clocks_may_differ_a_little():
    soon = str(BORN_NS - 10**10)
    assert units(read(pod(v1(2, 4, ASSUME_TIME=soon)), SHARE, MINORS, AMOUNTS))
    assert isinstance(read(pod(v1(2, 4, ASSUME_TIME=soon, ASSIGNED="true")), SHARE, MINORS, AMOUNTS), Ignored), "a copy"


def test_a_gpu_that_is_not_there_makes_a_decision_that_cannot_be_kept():
    for annotations in (v1(7, 4), v2({"0": {"7": 4}})):
        found = read(pod(annotations), SHARE, MINORS, AMOUNTS)
        assert isinstance(found, Decision)
        assert found.unmet == "names GPU 7, and this node has no such GPU"


def test_there_is_nothing_to_decide_for_a_pod_without_a_share_and_in_other_modes():
    assert read(pod(v2({"0": {"1": 4}}), {WHOLE: 1}), SHARE, MINORS, AMOUNTS) is None
    assert read(pod(v1(1, 4)), Resources().in_mode(Mode.TOPOLOGY), MINORS, AMOUNTS) is None
    assert read(pod({}), SHARE, MINORS, AMOUNTS) is None
    assert read(pod({an.GROUP_ANNOTATION: "0"}), SHARE, MINORS, AMOUNTS) is None


def test_init_containers_follow_the_container_that_gets_their_units():
    found = read(pod(v2({"0": {"1": 4}, "1": {"2": 3}}), {MEM: 4}, {MEM: 3}, init=({MEM: 4},)), SHARE, MINORS, AMOUNTS)
    assert isinstance(found, Decision)
    assert found.follows == {("init-0", MEM): "main"}
    assert not found.unmet


def test_units_that_go_from_one_init_container_to_two_gpus_cannot_be():
    found = read(pod(v2({"0": {"1": 4}, "1": {"2": 3}}), {MEM: 4}, {MEM: 3}, init=({MEM: 5},)), SHARE, MINORS, AMOUNTS)
    assert isinstance(found, Decision)
    assert "puts main and main-1 on different GPUs, and kubelet hands the units of init-0 on to both" in found.unmet


def test_sidecars_are_not_numbered_by_schedulers():
    found = read(pod(v2({"0": {"1": 4}}), {MEM: 4}, sidecar=({MEM: 2},)), SHARE, MINORS, AMOUNTS)
    assert units(found) == {("main", MEM): {1: 4}}
    assert units(read(pod(v1(1, 4), {MEM: 4}, sidecar=({MEM: 2},)), SHARE, MINORS, AMOUNTS)) == {("main", MEM): {1: 4}}


# -- whatever anybody writes -------------------------------------------------------------------------------------

limits = st.sampled_from(
    [{}, {MEM: 1}, {MEM: 4}, {MEM: 6}, {MEM: 6, CORE: 30}, {MEM: 4, CORE: 6}, {CORE: 30}, {WHOLE: 1}]
)
few = [0, 0, 0, 0, 1, -1, 2]
"""What a scheduler miscounts by: mostly nothing."""
spoilt = st.lists(st.tuples(st.sampled_from(an.KEYS), hostile.anything), max_size=2).map(dict)
times = [BORN_NS + 10**9, BORN_NS, BORN_NS - SKEW_NS, BORN_NS - SKEW_NS - 1, BORN_NS - 10**12, 0, 10**20 - 1]


@st.composite
def pods(draw) -> Pod:
    """A pod with what a scheduler decided for it, well or badly, of which somebody may have spoilt something."""
    apps = draw(st.lists(limits, min_size=1, max_size=3))
    label = draw(st.sampled_from([None, None, None, "1", "2", "3", "x", ""]))
    each = int(label) if label in ("1", "2", "3") else 1
    first, step, more = draw(st.integers(0, 4)), draw(st.sampled_from([0, 0, 1])), draw(st.sampled_from(few))
    named = draw(st.sampled_from([str, lambda n: uuid(n) if n < len(MINORS) else str(n)]))

    def table(resource: str, apart: int = 0) -> dict[str, dict[str, int]]:
        return {
            str(n): {named((first + apart + n * step + k) % 5): amount // each + more for k in range(each)}
            for n, container in enumerate(apps)
            if (amount := container.get(resource, 0))
        }

    old = v1(named(first), sum(c.get(MEM, 0) for c in apps) + more, ASSIGNED=draw(st.sampled_from(["true", "false"])))
    old[an.V1_ASSUMED] = str(draw(st.sampled_from(times)))
    new, cores = v2(table(MEM)), v2(table(CORE, apart=draw(st.sampled_from([0, 0, 0, 1]))), CORE_ANNOTATION)
    written = draw(st.sampled_from([new, old, cores, new | old, new | cores, old | cores, new | old | cores]))
    created = draw(
        st.sampled_from(["2026-01-01T00:00:00Z"] * 4 + ["", "yesterday", "9999-12-31T23:59:59Z", "0001-01-01"])
    )
    return parse_pod(
        pod_json(
            "a",
            *apps,
            init=tuple(draw(st.lists(limits, max_size=1))),
            sidecar=tuple(draw(st.lists(limits, max_size=1))),
            labels={} if label is None else {GPU_COUNT_LABEL: label},
            annotations=written | draw(spoilt),
            created=created,
        )
    )


@given(pods(), st.sampled_from([SHARE, SHARE, CORE_MEM, CORE_MEM, {}]))
@example(pod(v2({"0": {"1": 4}}) | v1(2, 4)), SHARE)
def test_a_decision_is_never_for_more_than_the_limits_nor_for_a_gpu_that_is_not_there(asker, resource_kinds):
    found = read(asker, resource_kinds, MINORS, AMOUNTS)
    if not isinstance(found, Decision):
        assert found is None or (isinstance(found, Ignored) and found.why)
        return
    limits = {c.name: c.limits for c in asker.app_containers}
    for (name, resource), given_units in found.units.items():
        assert sum(given_units.values()) == limits[name][resource]
        assert given_units.keys() <= MINORS.keys()
        assert len(set(given_units.values())) == 1
        assert len(given_units) == (asker.gpu_count or 1)
    for resource, of in AMOUNTS.items():
        for gpu in of:
            assert sum(gpus.get(gpu, 0) for (_, name), gpus in found.units.items() if name == resource) <= of[gpu]
    for (name, resource), taker in found.follows.items():
        assert (taker, resource) in found.units
        assert name not in limits
    by_container: dict[str, set[frozenset[str]]] = {}
    for (name, _), given_units in found.units.items():
        by_container.setdefault(name, set()).add(frozenset(given_units))
    assert all(len(places) == 1 for places in by_container.values())


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20), st.sampled_from(sorted(MINORS))), min_size=1, max_size=4),
    st.booleans(),
)
def test_what_a_scheduler_writes_is_read_exactly(wanted, core_mem):
    asks = [{MEM: memory, CORE: compute * 5} if core_mem else {MEM: memory} for memory, compute, _ in wanted]
    names = [f"main-{n}" if n else "main" for n in range(len(asks))]
    places = {name: MINORS[gpu] for name, (_, _, gpu) in zip(names, wanted, strict=True)}
    one = next(iter(places.values()))
    endless = {resource: dict.fromkeys(MINORS, 1000) for resource in (MEM, CORE)}

    def table(resource: str) -> dict[str, dict[str, int]]:
        amounts = (
            (n, places[name], ask.get(resource, 0)) for n, (name, ask) in enumerate(zip(names, asks, strict=True))
        )
        return {str(n): {str(gpu): amount} for n, gpu, amount in amounts if amount}

    cores = v2(table(CORE), CORE_ANNOTATION) if core_mem else {}
    older = v1(one, sum(ask[MEM] for ask in asks))
    for annotations, there in ((v2(table(MEM)) | cores, places), (older, dict.fromkeys(names, one))):
        found = read(pod(annotations, *asks), CORE_MEM if core_mem else SHARE, MINORS, endless)
        assert units(found) == {
            (name, resource): {there[name]: amount}
            for name, ask in zip(names, asks, strict=True)
            for resource, amount in ask.items()
            if amount
        }
