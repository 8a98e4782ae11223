"""Fencing by file: what the file may say, and what comes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.advertise import SETTLE_S
from gpuagent.domain.gpus.fence import EXAMPLE, Fence, parse_fence
from gpuagent.domain.sharing.mode import Kind, Mode, Resources
from gpuagent.domain.status.problems import problems
from gpuagent.domain.status.status_page import status
from tests.unit.domain.builders import CORE, MEM, WHOLE, NodeUnderTest, box, gpu, holding, in_force, unit_ids, uuid

FILE = "/etc/fence.json"


def fence(*indexes: str, uuids: tuple[str, ...] = (), ignored: tuple[str, ...] = ()) -> Fence:
    return Fence(frozenset(indexes), frozenset(uuids), frozenset(ignored))


def fenced(node: NodeUnderTest, *indexes: str, uuids: tuple[str, ...] = ()) -> NodeUnderTest:
    return node.send(ev.FenceRead(fence(*indexes, uuids=uuids), node.now))


def message(node: NodeUnderTest, reason: str) -> str:
    return next(problem.message for problem in problems(node.state) if problem.reason == reason)


# -- the file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", fence()),
        ('{"index": [], "uuid": []}', fence()),
        ('{"index": ["1"]}', fence("1")),
        ('{"uuid": ["GPU-1"]}', fence(uuids=("GPU-1",))),
        ('{"index": ["0", "10"], "uuid": ["GPU-1", "GPU-2"]}', fence("0", "10", uuids=("GPU-1", "GPU-2"))),
        ('{"index": [3, "3", " 03 "]}', fence("3")),
        ('{"index": ["00"]}', fence("0")),
        ('{"index": null, "uuid": ["GPU-1"]}', fence(uuids=("GPU-1",))),
        ('{"index": ["all", "-1", ""]}', fence("all", "-1", "")),
        ('{"indexes": ["1"]}', fence(ignored=("indexes",))),
        ('{"Index": ["1"], "UUID": ["GPU-1"]}', fence("1", uuids=("GPU-1",))),
    ],
)
def test_a_good_file_is_read(text, expected):
    assert parse_fence(text) == expected


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "not JSON: Expecting value in line 1, column 1"),
        ('{"index": ["1"', "not JSON"),
        ('{"index": ["1"]} x', "not JSON: Extra data"),
        ('["1"]', "a list and not an object"),
        ("null", "null and not an object"),
        ('{"index": "1"}', '"index" is a text and not a list'),
        ('{"index": ["1"], "index": ["2"]}', "the key 'index' twice"),
        ('{"index": ["1"], "Index": []}', "the key 'Index' twice, or in two spellings"),
        ('{"other": 1, "other": 1}', "the key 'other' twice"),
        ('{"index": 1}', '"index" is a number and not a list'),
        ('{"index": [true]}', '"index" has true or false among its entries'),
        ('{"index": [1.0]}', '"index" has a number among its entries'),
        ('{"uuid": [1]}', '"uuid" has a number among its entries'),
        ('{"uuid": [["GPU-1"]]}', '"uuid" has a list among its entries'),
        ('{"uuid": {"GPU-1": 1}}', '"uuid" is an object and not a list'),
        ("[" * 50_000, "nested too deep"),
        ('{"index": [' + "1" * 5000 + "]}", "too many digits"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(text, wrong):
    with pytest.raises(ValueError, match='^(it |")') as caught:
        parse_fence(text)
    assert wrong in str(caught.value)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
LIKE_IT = st.fixed_dictionaries({}, optional={"index": VALUES, "uuid": VALUES, "other": VALUES})


@given(st.text() | (VALUES | LIKE_IT).map(json.dumps))
def test_any_text_is_a_fence_or_a_value_error_and_both_can_be_reported(text):
    try:
        text_ = " ".join(parse_fence(text).unknown(box()))
    except ValueError as err:
        text_ = str(err)
    text_.encode()


@given(st.integers(0), st.integers(0))
def test_a_prefix_of_a_file_is_no_fence(one, other):
    text = json.dumps({"index": [str(one), other], "uuid": ["GPU-1"]})
    for length in range(len(text)):
        with pytest.raises(ValueError):
            parse_fence(text[:length])


def test_the_example_in_messages_is_a_fence():
    assert parse_fence(EXAMPLE).indexes == {"0"}


# -- the lists -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "resources"),
    [
        (Mode.DEFAULT, ["nvidia.com/gpu"]),
        (Mode.SHARE, [MEM]),
        (Mode.CGPU, [MEM]),
        (Mode.MPS, [MEM]),
        (Mode.CORE_MEM, [MEM, CORE]),
        (Mode.TOPOLOGY, [WHOLE]),
    ],
)
def test_a_fenced_gpu_is_unhealthy_in_every_mode_until_the_entry_goes(mode, resources):
    node = in_force(mode, resources=Resources("nvidia.com/gpu"))
    before = {resource: node.ids(resource) for resource in resources}
    fenced(node, "0")
    for resource in resources:
        assert (set(node.fenced(resource)), set(node.offer(resource))) == ({0}, {1})
        assert node.ids(resource) == before[resource]
    fenced(node)
    for resource in resources:
        assert (set(node.fenced(resource)), set(node.offer(resource))) == (set(), {0, 1})
    assert node.announced() == ["GPUFenced", "GPUUnfenced"]


def test_an_index_is_the_minor_number_and_a_uuid_names_a_gpu_too():
    node = in_force(Mode.SHARE, (gpu(0, minor=1), gpu(1, minor=0), gpu(2)))
    assert set(fenced(node, "0").fenced(MEM)) == {1}
    assert set(fenced(node, "2", uuids=(uuid(0),)).fenced(MEM)) == {0, 2}
    assert set(fenced(node, uuids=(uuid(0),)).fenced(MEM)) == {0}


def test_a_gpu_that_is_fenced_and_ill_stays_unhealthy_until_neither_is_true():
    node = fenced(in_force(Mode.SHARE), "0").send(ev.XidRaised(uuid(0), 79, 1.0))
    assert status(node.state)["gpus"][0]["cause"] == "XID 79; fenced by file (index 0)"
    assert node.announced() == ["GPUFenced", "GPUUnhealthy"]
    fenced(node)
    assert status(node.state)["gpus"][0]["cause"] == "XID 79"
    assert set(node.fenced(MEM)) == {0}
    assert [(a.reason, a.message) for a in node.announcements] == [
        ("GPUUnfenced", f"GPU 0 ({uuid(0)}) is not fenced any more; it stays unhealthy: XID 79")
    ]


def test_a_fence_holds_for_a_gpu_that_appears_later_and_over_a_mode_switch():
    node = fenced(in_force(Mode.SHARE, (gpu(0),)), "1", "0")
    node.inventory(gpu(0), gpu(1))
    assert set(node.fenced(MEM)) == {0, 1}
    node.label("topology").wait(SETTLE_S).wait(0.1).holdings()
    assert set(node.fenced(WHOLE)) == {0, 1}


def test_the_first_list_has_the_fence_in_it():
    node = fenced(NodeUnderTest(Mode.SHARE), "0").inventory(*box()).holdings()
    assert (set(node.fenced(MEM)), set(node.offer(MEM))) == ({0}, {1})


def test_who_holds_a_fenced_gpu_keeps_it():
    held = holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1))
    node = fenced(in_force(Mode.SHARE).holdings(held), "0").holdings(held)
    assert status(node.state)["gpus"][0]["held"] == {MEM: 2}
    assert len(node.ids(MEM)) == 32


# -- what people are told ------------------------------------------------------------------------------------------


def test_a_bad_file_leaves_the_last_good_fence_in_force_and_says_so():
    node = fenced(in_force(Mode.SHARE, fence_file=FILE), "0")
    node.send(ev.FenceUnreadable("it is not JSON", 1.0))
    assert set(node.fenced(MEM)) == {0}
    assert message(node, "FenceUnreadable") == (
        f"fence file {FILE}: it is not JSON; what it said before stays in force. Write it as {EXAMPLE}, or remove it"
    )
    fenced(node, "0")
    assert [problem.reason for problem in problems(node.state)] == ["GPUFenced"]


def test_a_file_that_was_never_good_fences_nothing():
    node = in_force(Mode.SHARE).send(ev.FenceUnreadable("it is not UTF-8", 1.0))
    assert set(node.offer(MEM)) == {0, 1}
    assert "it fences no GPU" in message(node, "FenceUnreadable")


def test_entries_that_name_no_gpu_cost_nothing_and_are_reported():
    node = in_force(Mode.SHARE, fence_file=FILE)
    node.send(ev.FenceRead(fence("0", "7", "x", uuids=("GPU-9",), ignored=("indexes",)), 1.0))
    assert (set(node.fenced(MEM)), set(node.offer(MEM))) == ({0}, {1})
    assert f"{FILE}: no GPU of this node is meant by index '7', index 'x', uuid 'GPU-9', key 'indexes';" in message(
        node, "FenceUnknown"
    )


def test_many_unknown_entries_make_a_short_message():
    node = fenced(in_force(Mode.SHARE), *(str(n) for n in range(100, 200)), uuids=("GPU-" + "9" * 5000,))
    assert "and 93 more" in message(node, "FenceUnknown")
    assert len(message(fenced(node, uuids=("GPU-" + "9" * 5000,)), "FenceUnknown")) < 400


def test_an_entry_is_not_called_unknown_before_the_driver_has_answered():
    assert "FenceUnknown" not in {problem.reason for problem in problems(fenced(NodeUnderTest(Mode.SHARE), "7").state)}


def test_a_fenced_gpu_is_reported_with_the_entry_and_the_cure():
    node = fenced(in_force(Mode.SHARE, box(3), fence_file=FILE), "0", uuids=(uuid(1),))
    assert [problem.message for problem in problems(node.state)] == [
        f"GPU 0 ({uuid(0)}) is fenced by file (index 0): take the entry out of {FILE} to use it again",
        f"GPU 1 ({uuid(1)}) is fenced by file (its UUID): take the entry out of {FILE} to use it again",
    ]
    assert not any(problem.warning or problem.blocking for problem in problems(node.state))
