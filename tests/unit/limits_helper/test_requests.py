"""What a line may say, and that every other one is refused with a sentence."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.host.cgroups import container_id
from gpuagent.host.limits_client import (
    ERROR_KINDS,
    NO_LIMIT,
    BadRequestError,
    BelowUseError,
    Description,
    Limit,
    LimitsError,
    Target,
)
from gpuagent.limits_helper.driver_thread import HangsError
from gpuagent.limits_helper.requests import (
    MOST_LINE,
    Describe,
    Get,
    Set,
    description_answer,
    error_answer,
    limit_answer,
    parse,
)
from tests.cgroup_trees import CONTAINER, POD, STATIC_POD

GPU = "GPU-00000000-1111-2222-3333-444444444444"
GOOD = {"op": "set", "gpu": GPU, "pod": POD, "leaf": "", "bytes": 1 << 30}


def line(**changes: object) -> bytes:
    fields = {**GOOD, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode() + b"\n"


def test_each_request():
    assert parse(b'{"op": "describe"}\n') == Describe()
    assert parse(line(op="get", bytes=...)) == Get(Target(GPU, POD))
    assert parse(line()) == Set(Target(GPU, POD), 1 << 30)
    scope = f"crio-{CONTAINER}.scope/container"
    assert parse(line(leaf=scope, bytes=NO_LIMIT, pod=STATIC_POD)) == Set(Target(GPU, STATIC_POD, scope), NO_LIMIT)


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "kill"},
        {"op": ["set"]},
        {"op": ...},
        {"op": "describe"},
        {"op": "get"},
        {"bytes": ...},
        {"soft": 0},
        {"path": "/etc"},
        {"gpu": "GPU-1"},
        {"gpu": f"{GPU}\n"},
        {"gpu": "MIG-00000000-1111-2222-3333-444444444444"},
        {"gpu": 0},
        {"pod": ".."},
        {"pod": f"{POD}/.."},
        {"pod": f"../{POD}"},
        {"pod": POD.upper().replace("1", "A")},
        {"pod": f"{POD}\0"},
        {"pod": None},
        {"leaf": ".."},
        {"leaf": "../" + CONTAINER},
        {"leaf": f"{CONTAINER}/.."},
        {"leaf": f"{CONTAINER}/../../../system.slice"},
        {"leaf": f"{CONTAINER}/mine"},
        {"leaf": f"/{CONTAINER}"},
        {"leaf": f"{CONTAINER}\n"},
        {"leaf": f"crio-conmon-{CONTAINER}.scope"},
        {"leaf": None},
        {"bytes": 0},
        {"bytes": -1},
        {"bytes": True},
        {"bytes": 1.5},
        {"bytes": "1"},
        {"bytes": 1 << 63},
        {"bytes": NO_LIMIT - 1},
        {"bytes": NO_LIMIT + 1},
        {"bytes": NO_LIMIT},
        {"bytes": None},
        {"bytes": {"n": 1}},
    ],
)
def test_bad_requests(changes):
    with pytest.raises(BadRequestError) as caught:
        parse(line(**changes))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"null\n",
        b"[]\n",
        b'"set"\n',
        b"{",
        b"\xff{}\n",
        b"[" * 4000,
        b'{"op": "set", "op": "describe"}\n',
        b'{"op": "describe"} {"op": "describe"}\n',
        b'{"op": "describe"}\0\n',
        b'{"op": NaN}\n',
        b'{"bytes": ' + b"9" * 4000 + b"}",
        b" " * (MOST_LINE + 1),
        b"x" * 1_000_000,
    ],
)
def test_lines_that_are_no_request(data):
    with pytest.raises(BadRequestError):
        parse(data)


TEXTS = st.one_of(
    st.text(max_size=100),
    st.sampled_from(["", "..", ".", "/", POD, f"pod{POD}", CONTAINER, f"{CONTAINER}/container", GPU, "\0", "\u202e"]),
    st.lists(st.sampled_from(["..", "/", "container", CONTAINER, ".scope", "cri-containerd-", "\n"]), max_size=5).map(
        "".join
    ),
    st.from_regex(r"[a-z]*-?[0-9a-f]{64}(\.scope)?(/container)?"),
)
VALUES = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(), st.lists(st.integers(), max_size=2))
REQUESTS = st.dictionaries(st.one_of(st.sampled_from(list(GOOD)), st.text(max_size=5)), VALUES, max_size=6)
CHANGED = st.dictionaries(st.sampled_from(["gpu", "pod", "leaf", "bytes"]), VALUES, max_size=2).map(
    lambda new: {**GOOD, **new}
)


@given(
    st.one_of(
        st.binary(max_size=300), REQUESTS.map(json.dumps).map(str.encode), CHANGED.map(json.dumps).map(str.encode)
    )
)
def test_whatever_a_line_says_it_names_a_pods_cgroup_or_is_refused(data):
    try:
        request = parse(data)
    except BadRequestError as err:
        assert str(err).isprintable()
        return
    if isinstance(request, Describe):
        return
    target = request.target
    assert re.fullmatch(r"[0-9a-f-]{32,36}", target.pod)
    assert target.leaf == "" or container_id(target.leaf)
    assert ".." not in target.leaf
    assert target.leaf.count("/") <= 1
    assert not isinstance(request, Set) or 0 < request.size <= NO_LIMIT


def test_answers_are_a_line_each():
    assert json.loads(limit_answer(Limit(None, 3))) == {"ok": True, "hard": None, "used": 3}
    below = json.loads(error_answer(BelowUseError("line\nbreak", 7)))
    assert below == {"ok": False, "error": "BelowUse", "message": "line\nbreak", "used": 7}
    for error, kind in ERROR_KINDS.items():
        assert json.loads(error_answer(error("why")))["error"] == kind
    described = description_answer(Description("615", None, "", {GPU: "MIG\n"}, None))
    assert json.loads(described)["gpus"] == {GPU: "MIG\n"}
    for answer in (described, error_answer(BelowUseError("line\nbreak"))):
        assert answer.count(b"\n") == 1


def test_an_error_of_a_narrower_kind_is_of_the_wider():
    assert json.loads(error_answer(HangsError("it hangs")))["error"] == "DriverError"
    assert json.loads(error_answer(LimitsError("why")))["error"] == "DriverError"
