"""The comparison of a ConfigMap with what shall be true of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.reconcile.configmap import MANAGED_BY, TAKEN_OVER, Change, ConfigMapFacts, change
from standin.api.patching import merge

LABELS = {"nodename": "n1"}
DATA = {"report": "[]"}
KEYS = frozenset(DATA)
FACTS = ConfigMapFacts("kube-system", "n1-report", LABELS, DATA, KEYS)
ABSENT = ConfigMapFacts("kube-system", "n1-report", LABELS, None, KEYS)
MARK = {TAKEN_OVER: "true"}

texts = st.sampled_from(["a", "b", "c"])
founds = st.builds(
    lambda labels, rest: {"metadata": {"name": "m", "uid": "u", "resourceVersion": "7", **labels}, **rest},
    st.fixed_dictionaries({}, optional={"labels": st.dictionaries(texts, texts) | st.none()}),
    st.fixed_dictionaries({}, optional={"data": st.dictionaries(texts, texts) | st.none()}),
)
facts = st.builds(
    ConfigMapFacts,
    st.just("ns"),
    st.just("m"),
    st.dictionaries(texts, texts),
    st.dictionaries(texts, st.none() | texts),
)


def found(
    labels: dict[str, str] | None = None, data: dict[str, str] | None = None, **metadata: str
) -> dict[str, object]:
    return {"metadata": {"uid": "u", "resourceVersion": "7", "labels": labels, **metadata}, "data": data}


def test_a_missing_one_is_made() -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "kube-system", "name": "n1-report", "labels": LABELS},
        "data": DATA,
    }
    assert change(None, FACTS) == Change("create", body)


def test_a_key_that_shall_not_be_there_is_not_made() -> None:
    made = change(None, ConfigMapFacts("ns", "m", {}, {"a": "1", "b": None}))
    assert made
    assert made.body["data"] == {"a": "1"}


@pytest.mark.parametrize(
    ("labels", "data", "body"),
    [
        (LABELS, {}, {"data": DATA}),
        (None, DATA, {"metadata": {"labels": LABELS | MARK}}),
        ({"nodename": "n2"}, None, {"metadata": {"labels": LABELS | MARK}, "data": DATA}),
        (MARK, DATA, {"metadata": {"labels": LABELS}}),
    ],
)
def test_only_what_differs_is_patched(labels, data, body) -> None:
    metadata = {"resourceVersion": "7", **body.get("metadata", {})}
    assert change(found(labels, data), FACTS) == Change("patch", {**body, "metadata": metadata})


def test_what_others_added_is_no_difference() -> None:
    assert change(found({**LABELS, "team": "a"}, {**DATA, "note": "b"}), FACTS) is None


def test_a_deletion_names_what_was_looked_at() -> None:
    wanted = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u", "resourceVersion": "7"}}
    assert change(found({**LABELS, "team": "a"}, DATA), ABSENT) == Change("delete", wanted)


MANAGED = ConfigMapFacts("ns", "m", {MANAGED_BY: "gpuagent", **LABELS}, DATA, KEYS)


def test_who_manages_one_that_others_made_stays_as_it_was() -> None:
    theirs = found({MANAGED_BY: "Helm"}, {"note": "b"})
    taken = change(theirs, MANAGED)
    assert taken
    assert taken.body["metadata"]["labels"] == LABELS | MARK
    after = merge(theirs, taken.body, strategic=False)
    assert change(after, MANAGED) is None
    assert change(after, replace(MANAGED, data=None)) == Change(
        "patch",
        {"metadata": {"resourceVersion": "7", "labels": dict.fromkeys([*LABELS, *MARK])}, "data": {"report": None}},
    )


@pytest.mark.parametrize(
    "shared",
    [
        found({**LABELS, "team": "a"}, {**DATA, "note": "b"}),
        found({**LABELS, **MARK}, DATA),
        {**found(LABELS, DATA), "binaryData": {"blob": "AA=="}},
    ],
)
def test_of_one_that_has_anything_of_others_only_what_is_ours_goes(shared) -> None:
    needed = change(shared, ABSENT)
    assert needed
    assert needed.verb == "patch"
    after = merge(shared, needed.body, strategic=False)
    assert "report" not in after["data"]
    assert not (LABELS | MARK).keys() & after["metadata"]["labels"].keys()
    assert after["data"].keys() == shared["data"].keys() - KEYS
    assert change(after, ABSENT) is None


@pytest.mark.parametrize(
    "present",
    [None, found(), found({"nodename": "n2"}, DATA), found(LABELS, DATA, deletionTimestamp="2027-01-15T08:00:00Z")],
)
def test_what_is_gone_or_going_or_not_ours_is_not_deleted(present) -> None:
    assert change(present, ABSENT) is None


def test_without_a_label_nothing_is_known_for_ours() -> None:
    assert change(found(LABELS, DATA), ConfigMapFacts("ns", "m", {}, None)) is None


@given(st.none() | founds, facts)
def test_one_change_makes_it_right_and_leaves_the_rest(before, wanted) -> None:
    needed = change(before, wanted)
    if needed is None:
        after = before
    elif needed.verb == "create":
        after = {**needed.body, "metadata": {**needed.body["metadata"], "resourceVersion": "8", "uid": "u"}}
    else:
        after = merge(before, needed.body, strategic=False)
    assert change(after, wanted) is None
    for part, ours in (("data", wanted.data), ("labels", wanted.labels)):
        ours = {*ours, TAKEN_OVER}
        was, now = ((one or {}) if part == "data" else (one or {}).get("metadata", {}) for one in (before, after))
        foreign = {key: value for key, value in (was.get(part) or {}).items() if key not in ours}
        assert foreign == {key: value for key, value in (now.get(part) or {}).items() if key not in ours}
