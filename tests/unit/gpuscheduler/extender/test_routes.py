"""Every request gets an answer: a call a result, what is no call a sentence."""

import asyncio
import json

import pytest

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.extender.call_head import HeadError
from gpuscheduler.extender.routes import MOST_BIND_BODY, MOST_BODY, Routes
from gpuscheduler.metrics import READY, SchedulerMetrics

POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
FILTER = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}
BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}
VICTIMS = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}]}}}


class FirstNodeExtender:
    """Takes the first node."""

    error = trouble = ""

    async def filter(self, call):
        if self.trouble == "filter":
            raise RuntimeError("a bug")
        return FilterAnswer(nodes=(next(iter(call.names)),))

    async def bind(self, call, left):
        if self.trouble == "wait":
            await left()
            return "refused", "the caller has gone"
        return ("refused" if self.error else "bound"), self.error

    def preempt(self, call):
        return call.proposed

    def prioritize(self, call):
        return dict.fromkeys(call.node_names, 7)

    prioritize_claims = prioritize


class Caller:
    """Calls as the server does."""

    def __init__(self):
        self.service = FirstNodeExtender()
        self.metrics = SchedulerMetrics(lambda: {READY: {(): 1.0}})
        self.routes = Routes(self.service, self.metrics)

    def request(self, path, body=b""):
        async def left():
            pass

        self.routes.check("POST", path, len(body))
        status, _, answer = asyncio.run(self.routes.answer(path, body, left))
        return status, answer

    def call(self, path, body):
        status, answer = self.request(path, json.dumps(body).encode())
        assert status == 200
        return json.loads(answer)


@pytest.fixture
def caller():
    return Caller()


@pytest.mark.parametrize("prefix", ["", "/gpushare-scheduler"])
def test_each_verb_is_answered_also_under_the_prefix_of_aliyuns_extender(caller, prefix):
    assert caller.call(f"{prefix}/filter", FILTER)["NodeNames"] == ["n1"]
    assert caller.call(f"{prefix}/bind", BIND) == {"Error": ""}
    victims = {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
    assert caller.call(f"{prefix}/preempt", VICTIMS) == {"NodeNameToMetaVictims": victims}


def test_why_a_pod_is_not_bound_is_the_error(caller):
    caller.service.error = "the GPUs are taken"
    assert caller.call("/bind", BIND) == {"Error": "the GPUs are taken"}


@pytest.mark.parametrize("verb", ["prioritize", "prioritize-claims"])
@pytest.mark.parametrize("nodes", [{}, {"NodeNames": None, "Nodes": {"items": [{"metadata": {"name": "n1"}}]}}])
def test_nodes_are_scored_whether_they_are_named_or_carried(caller, nodes, verb):
    scores = caller.call(f"/{verb}", FILTER | nodes)
    assert {"Host": "n1", "Score": 7} in scores


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/prioritize-claims", "/bind", "/preempt"])
def test_what_is_no_call_is_refused(caller, path):
    for body in (b"", b"{}", b"hello", b"\x00" * 100):
        status, answer = caller.request(path, body)
        assert status == 400
        assert b"Extender" in answer
        assert b"Traceback" not in answer


@pytest.mark.parametrize(
    ("method", "path", "body_bytes", "status"),
    [
        ("GET", "/filter", 0, 405),
        ("POST", "/filter", MOST_BODY + 1, 413),
        ("POST", "/preempt", MOST_BODY + 1, 413),
        ("POST", "/bind", MOST_BIND_BODY + 1, 413),
        ("POST", "/usage", 0, 404),
        ("GET", "/healthz", 0, 404),
    ],
)
def test_a_request_is_refused_by_its_head(caller, method, path, body_bytes, status):
    with pytest.raises(HeadError) as refused:
        caller.routes.check(method, path, body_bytes)
    assert refused.value.status == status


def test_a_bug_is_an_error_without_a_trace(caller, caplog):
    caller.service.trouble = "filter"
    assert "its log says why" in caller.call("/filter", FILTER)["Error"]
    assert "a bug" in caplog.text


def test_a_bind_call_that_waits_learns_that_its_caller_has_gone(caller):
    caller.service.trouble = "wait"
    assert caller.call("/bind", BIND) == {"Error": "the caller has gone"}


def test_calls_are_counted_by_verb_and_result(caller):
    caller.call("/filter", FILTER)
    caller.request("/filter", b"{}")
    caller.service.error = "no"
    caller.call("/bind", BIND)
    caller.call("/preempt", VICTIMS)
    page = caller.metrics.page().decode()
    for verb, result in (("filter", "placed"), ("filter", "malformed"), ("bind", "refused"), ("preempt", "victims")):
        assert f'gpuscheduler_calls_total{{result="{result}",verb="{verb}"}} 1.0\n' in page
    assert 'gpuscheduler_call_duration_seconds_count{verb="filter"} 2.0\n' in page
    assert "gpuscheduler_ready 1.0\n" in page
