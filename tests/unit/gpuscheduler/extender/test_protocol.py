"""Calls of kube-scheduler are read, and answered, in the names of its Go types."""

import json

import pytest

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.extender.protocol import (
    MOST_REASON,
    NodeNames,
    ProtocolError,
    bind_call,
    error_result,
    filter_call,
    filter_result,
    preempt_call,
    preempt_result,
)

POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {}, "status": {}}


def body(**given):
    return json.dumps(given, separators=(",", ":")).encode()


def test_a_call_that_names_nodes():
    call = filter_call(body(Pod=POD, Nodes=None, NodeNames=["n1", "n10"]))
    assert call.pod == POD
    assert [name in call.names for name in ("n1", "n10", "n", "1", "n1,n10")] == [True, True, False, False, False]
    assert [*call.names] == ["n1", "n10"]
    assert len(call.names) == 2


def test_an_answer_in_names():
    call = filter_call(body(Pod=POD, Nodes=None, NodeNames=["n1", "n2"]))
    assert json.loads(filter_result(FilterAnswer(nodes=("n2",)), call)) == {
        "Nodes": None,
        "NodeNames": ["n2"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    answer = FilterAnswer(failed={"n1": "full"}, unresolvable={"n2": "no GPUs"}, error="")
    found = json.loads(filter_result(answer, call))
    assert (found["NodeNames"], found["FailedNodes"]) == ([], {"n1": "full", "n2": "no GPUs"})
    assert found["FailedAndUnresolvableNodes"] == {"n2": "no GPUs"}


def test_a_call_with_whole_nodes_is_answered_with_whole_nodes():
    nodes = [{"metadata": {"name": name, "labels": {"a": "é"}}, "spec": {}} for name in ("n1", "n2")]
    call = filter_call(body(Pod=POD, Nodes={"metadata": {}, "items": nodes}, NodeNames=None))
    assert call.names is None
    assert [*call.nodes] == ["n1", "n2"]
    found = json.loads(filter_result(FilterAnswer(nodes=("n2",)), call))
    assert (found["Nodes"]["items"], found["NodeNames"]) == ([nodes[1]], None)


def test_a_bind_call():
    call = bind_call(body(PodName="p", PodNamespace="default", PodUID="u", Node="n1"))
    assert (call.name, call.namespace, call.uid, call.node) == ("p", "default", "u", "n1")
    assert json.loads(error_result("full")) == {"Error": "full"}


@pytest.mark.parametrize("whole", [True, False])
def test_a_preempt_call_has_whole_victims_or_their_uids(whole):
    pods = [{"metadata": {"uid": "v1"}, "spec": {}}] if whole else [{"UID": "v1"}]
    victims = {"n1": {"Pods": pods, "NumPDBViolations": 2}}
    args = {"NodeNameToVictims": victims if whole else None, "NodeNameToMetaVictims": None if whole else victims}
    call = preempt_call(body(Pod=POD, **args))
    assert (call.proposed, call.violations) == ({"n1": ["v1"]}, {"n1": 2})
    found = json.loads(preempt_result({"n1": ["v2"]}, call.violations))
    assert found == {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v2"}], "NumPDBViolations": 2}}}


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        body(Pod=None, NodeNames=["n1"]),
        body(Pod=POD),
        body(Pod=POD, NodeNames="n1"),
        body(Pod=POD, Nodes={"items": [{"metadata": {}}]}),
        b'{"Pod":' + b'{"a":' * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_not_a_filter_call_is_refused_with_a_sentence(wrong):
    with pytest.raises(ProtocolError, match="ExtenderArgs"):
        filter_call(wrong)


def test_names_that_are_not_texts_are_refused_when_they_are_read():
    names = NodeNames(b'["n1",2]')
    assert "n1" in names
    with pytest.raises(ProtocolError, match="NodeNames"):
        list(names)


@pytest.mark.parametrize("wrong", [b"", b"{}", body(PodName="p", PodNamespace="d", PodUID=1, Node="n")])
def test_what_is_no_bind_or_preempt_call_is_refused(wrong):
    with pytest.raises(ProtocolError, match="ExtenderBindingArgs"):
        bind_call(wrong)
    with pytest.raises(ProtocolError, match="ExtenderPreemptionArgs"):
        preempt_call(wrong)


def test_a_reason_is_repeated_for_each_node_so_it_is_short():
    names = [f"n{n}" for n in range(1000)]
    long = dict.fromkeys(names, "x" * 100_000)
    call = filter_call(body(Pod=POD, NodeNames=names))
    result = json.loads(filter_result(FilterAnswer(failed=long, unresolvable=long, error="x" * 100_000), call))
    shown = {*result["FailedNodes"].values(), *result["FailedAndUnresolvableNodes"].values(), result["Error"]}
    assert shown == {"x" * MOST_REASON}
