"""The part of CEL that is read, and that anything else is no error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscheduler.core.explain.published import read_slice
from gpuscheduler.core.explain.selection import Selection, Work, WorkSpent, conditions, mentioned, selects
from tests.unit.gpuscheduler.core.explain.cluster_objects import DRIVER, gpu, slice_of

A = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'
(DEVICE,) = read_slice(slice_of("node-1", gpu(3))).devices


def selected(expression):
    """What all conditions of an expression say together."""
    answers = {selects(tree, DEVICE, Work()) for _, tree in conditions(expression)}
    if Selection.REFUSES in answers:
        return Selection.REFUSES
    return Selection.NOT_CHECKED if Selection.NOT_CHECKED in answers else Selection.TAKES


@pytest.mark.parametrize(
    "expression",
    [
        f'device.driver == "{DRIVER}" && device.allowMultipleAllocations',
        f"device.driver == '{DRIVER}'",
        f"{A}.memoryIsolated",
        f'{A}["minor"] == 3',
        f"{A}.minor >= 3 && {A}.minor < 4 && {A}.minor != -1",
        f'{A}.productName.startsWith("NVIDIA") || {A}.nothing',
        f'{A}.nothing || {A}.productName.contains("A100")',
        f'{A}.productName.lowerAscii().endsWith("80gb")',
        f'!({A}.productName in ["T4", "L4"])',
        f"{A}.minor in [1, 3]",
        f'"productName" in {A} && "{DRIVER}" in device.attributes',
        '!("other.example.com" in device.attributes)',
        f"has({A}.minor) && !has({A}.nothing)",
        f'has({C}.memory) && has(device.attributes["other.example.com"].type) == false',
        f"!has({A}.nothing) || {A}.nothing > 3",
        f'{A}.driverVersion.isGreaterThan(semver("570.0.0"))',
        f'{A}.driverVersion.compareTo(semver("580.95.5")) == 0',
        f'{C}.memory.compareTo(quantity("80Gi")) >= 0',
        f'{C}.memory.isLessThan(quantity("1Ti"))',
        f"size({A}.productName) > 5",
        "true || unknown.word",
        "!!true",
        "1.5 < 2.5",
    ],
)
def test_what_kube_scheduler_would_take(expression):
    assert selected(expression) is Selection.TAKES


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "other"',
        f"{A}.nothing == 1",
        f'{A}.minor == "3"',
        f"{A}.productName > 1",
        f"!{A}.memoryIsolated",
        f"!{A}.minor",
        f"{A}.productName",
        f'{C}.memory.isGreaterThan(quantity("80Gi"))',
        f'{C}.bandwidth.isGreaterThan(quantity("80Gi"))',
        f"false && {A}.nothing",
        f'"x" in {A}',
        f"has({A}.nothing)",
        f"has({A}.minor) && {A}.minor > 3",
    ],
)
def test_what_kube_scheduler_would_refuse(expression):
    assert selected(expression) is Selection.REFUSES


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "(",
        "true true",
        "device",
        "device.other",
        "device.attributes[1]",
        "a ? b : c",
        "[1, 2].exists(x, x == 1)",
        f'{A}.productName.matches("(a+)+$")',
        f'{A}.?productName.orValue("")',
        "device.attributes",
        'quantity("x") == 1',
        'semver("1")',
        '"\\x41" == "A"',
        "1 + 1 == 2",
        "-a",
        "in",
        "f(",
        "has(device)",
        f"has({A}.minor, {A}.minor)",
        "a.",
        "[1",
        "a[1",
        "9" * 40,
        "(" * 1000 + ")" * 1000,
        "!" * 5000 + "a",
        "a" + ".b" * 5000,
        "a" + "()" * 3000,
        "x" * 20_000,
        "||".join(["a"] * 3000),
        "[" * 1000,
    ],
)
def test_what_is_not_read_is_left_to_kube_scheduler(expression):
    assert selected(expression) is not Selection.TAKES
    for _, tree in conditions(expression):
        list(mentioned(tree))


def test_the_conditions_are_told_as_they_are_written():
    texts = [text for text, _ in conditions(f"device.driver == 'x'&&({A}.a || {A}.b)  &&  !{A}.c")]
    assert texts == ["device.driver == 'x'", f"({A}.a || {A}.b)", f"!{A}.c"]


def test_names_are_those_of_which_the_value_is_needed():
    parts = (f'{A}.a.startsWith("x")', f'"b" in {A}', f'[{A}.c] == [{C}["d"]]', f"!f({A}.e)", f"!has({A}.g)")
    (_, tree), *_ = conditions(" || ".join(parts))
    assert [(name.kind, name.word.name) for name in mentioned(tree)] == [
        ("attributes", "a"),
        ("attributes", "c"),
        ("capacity", "d"),
        ("attributes", "e"),
    ]


def test_the_work_ends():
    ((_, tree),) = conditions(f"{A}.minor in [{', '.join(['1'] * 3000)}]")
    work = Work(steps=100)
    with pytest.raises(WorkSpent):
        selects(tree, DEVICE, work)


@given(
    st.lists(st.sampled_from([A, C, ".", "a", "(", ")", "[", "]", "&&", "||", "!", "==", "in", "'x'", "3", "-", " "]))
)
def test_nothing_that_is_written_raises(parts):
    for _, tree in conditions("".join(parts)):
        selects(tree, DEVICE, Work())
        list(mentioned(tree))
