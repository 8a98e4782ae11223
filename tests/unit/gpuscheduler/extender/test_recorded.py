"""Calls as the oldest and the newest kube-scheduler encode them are read, and answers have the fields of their types.

`go-types-*` was written by the Go types `k8s.io/kube-scheduler/extender/v1` of that version; `kube-scheduler-1.36.3` are
calls of a running one.
"""

import json
from pathlib import Path

import pytest

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.core.gpu_request import RequestKind
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.extender.protocol import (
    bind_call,
    error_result,
    filter_call,
    filter_result,
    preempt_call,
    preempt_result,
)

HERE = Path(__file__).parent
TYPES = "go-types-1.18.19", "go-types-1.37.1"
ALL = pytest.mark.parametrize("version", [*TYPES, "kube-scheduler-1.36.3"])


def recorded(version, name):
    return (HERE / version / f"{name}.json").read_bytes()


@ALL
def test_a_filter_call_names_its_nodes(version):
    call = filter_call(recorded(version, "filter"))
    assert pod_facts(call.pod).request.kind is RequestKind.SHARE
    assert list(call.names) == json.loads(recorded(version, "filter"))["NodeNames"]


@pytest.mark.parametrize("version", TYPES)
def test_a_filter_call_with_whole_nodes(version):
    call = filter_call(recorded(version, "filter-nodes"))
    assert (call.names, [*call.nodes]) == (None, ["n1"])


@ALL
def test_a_bind_call(version):
    sent, call = json.loads(recorded(version, "bind")), bind_call(recorded(version, "bind"))
    assert (call.name, call.namespace, call.uid, call.node) == tuple(sent.values())


@ALL
def test_a_preempt_call(version):
    sent, call = json.loads(recorded(version, "preempt")), preempt_call(recorded(version, "preempt"))
    victims = sent["NodeNameToMetaVictims"]
    assert call.proposed == {node: [pod["UID"] for pod in one["Pods"]] for node, one in victims.items()}
    assert call.violations == {node: one["NumPDBViolations"] for node, one in victims.items()}


def test_answers_have_the_fields_of_the_newest_types():
    call = filter_call(recorded(TYPES[1], "filter"))
    answers = {
        "filter-result": filter_result(FilterAnswer(nodes=("n1", "n2"), failed={"n3": "why"}), call),
        "bind-result": error_result("why"),
        "preempt-result": preempt_result({"n1": ["uid-v"]}, {}),
    }
    for name, answer in answers.items():
        newest, oldest = (json.loads(recorded(version, name)) for version in reversed(TYPES))
        found = json.loads(answer)
        assert found.keys() == newest.keys() >= oldest.keys()
        assert {key: found[key] for key in oldest} == oldest
