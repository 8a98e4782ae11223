"""Every request gets an answer: a call a result, what is no call a sentence."""

import asyncio
import json
import re

import pytest

from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.extender import routes
from gpuscheduler.extender.routes import Routes
from gpuscheduler.metrics import READY, SchedulerMetrics

POD = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
FILTER = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}
BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}
VICTIMS = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}]}}}


class FirstNodeExtender:
    """Takes the first node."""

    error = trouble = ""

    def filter(self, call):
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

    def problem(self):
        return self.trouble

    def usage(self):
        yield b'{"nodes":'
        yield b"[]}"


class AsgiClient:
    """Calls the application as a server does."""

    def __init__(self):
        self.service = FirstNodeExtender()
        self.metrics = SchedulerMetrics(lambda: {READY: {(): 1.0}})
        self.app = Routes(self.service, self.metrics)
        self.status, self.headers, self.body = 0, {}, b""

    def request(self, method, path, body=b"", *, pieces=1, then="http.disconnect"):
        size = max(1, -(-len(body) // pieces))
        parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages[-1]["more_body"] = False
        messages.append({"type": then})
        self.status, self.headers, self.body = 0, {}, b""

        async def receive():
            return messages.pop(0)

        async def send(message):
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], dict(message["headers"])
            else:
                self.body += message["body"]

        asyncio.run(self.app({"type": "http", "method": method, "path": path}, receive, send))
        return self.status

    def call(self, path, body, **how):
        assert self.request("POST", path, json.dumps(body).encode(), **how) == 200
        return json.loads(self.body)


@pytest.fixture
def client():
    return AsgiClient()


@pytest.mark.parametrize("prefix", ["", "/gpushare-scheduler"])
def test_each_verb_is_answered_also_under_the_prefix_of_aliyuns_extender(client, prefix):
    assert client.call(f"{prefix}/filter", FILTER, pieces=7)["NodeNames"] == ["n1"]
    assert client.call(f"{prefix}/bind", BIND) == {"Error": ""}
    victims = {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}}
    assert client.call(f"{prefix}/preempt", VICTIMS) == {"NodeNameToMetaVictims": victims}


def test_why_a_pod_is_not_bound_is_the_error(client):
    client.service.error = "the GPUs are taken"
    assert client.call("/bind", BIND) == {"Error": "the GPUs are taken"}


@pytest.mark.parametrize("path", ["/filter", "/bind", "/preempt"])
def test_what_is_no_call_is_refused(client, path):
    for body in (b"", b"{}", b"hello", b"\x00" * 100):
        assert client.request("POST", path, body) == 400
        assert b"Extender" in client.body
        assert b"Traceback" not in client.body
    assert client.request("GET", path) == 405


def test_a_body_without_end_is_refused(client, monkeypatch):
    monkeypatch.setattr(routes, "MOST_BODY", 100)
    assert client.request("POST", "/filter", b"x" * 101, pieces=5) == 413


def test_a_bug_is_an_error_without_a_trace(client, caplog):
    client.service.trouble = "filter"
    assert "its log says why" in client.call("/filter", FILTER)["Error"]
    assert "a bug" in caplog.text


def test_a_caller_that_goes_away_during_its_call_gets_no_answer(client):
    client.request("POST", "/filter", b"{", then="http.disconnect")
    messages = [{"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        raise AssertionError(message)

    asyncio.run(client.app({"type": "http", "method": "POST", "path": "/filter"}, receive, send))


def test_a_bind_call_that_waits_learns_that_its_caller_has_gone(client):
    client.service.trouble = "wait"
    assert client.call("/bind", BIND) == {"Error": "the caller has gone"}


def test_probes_and_pages(client):
    assert (client.request("GET", "/healthz"), client.body) == (200, b"ok\n")
    assert client.request("GET", "/readyz") == 200
    client.service.trouble = "no list yet"
    assert (client.request("GET", "/readyz"), client.body) == (503, b"no list yet\n")
    assert client.request("GET", "/usage") == 200
    assert json.loads(client.body) == {"nodes": []}
    assert (client.request("HEAD", "/usage"), client.body) == (200, b"")
    assert client.request("POST", "/usage") == 405
    assert client.request("GET", "/nothing") == 404


def test_a_browser_gets_the_page_and_all_that_it_loads(client):
    assert client.request("GET", "/") == 200
    loaded = re.findall(rb'(?:href|src)="([a-z.]+\.(?:css|js))"', client.body)
    assert loaded == [b"page.css", b"cluster.js"]
    for name in (*loaded, b"live.js"):
        assert client.request("GET", f"/{name.decode()}") == 200


def test_calls_are_counted_by_verb_and_result(client):
    client.call("/filter", FILTER)
    client.request("POST", "/filter", b"{}")
    client.service.error = "no"
    client.call("/bind", BIND)
    client.call("/preempt", VICTIMS)
    assert client.request("GET", "/metrics") == 200
    page = client.body.decode()
    for verb, result in (("filter", "placed"), ("filter", "malformed"), ("bind", "refused"), ("preempt", "victims")):
        assert f'gpuscheduler_calls_total{{result="{result}",verb="{verb}"}} 1.0\n' in page
    assert 'gpuscheduler_call_duration_seconds_count{verb="filter"} 2.0\n' in page
    assert "gpuscheduler_ready 1.0\n" in page
