"""Placeholders as pods: what is missing is made, what is not wanted goes, and a refusal ends nothing."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuagent.kube.api.api_errors import ApiError
from gpuscheduler.cluster_api.placeholder_pods import FOR_LABEL, PlaceholderPods
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER, Placeholder

POD = PodName("team", "large")
WANTED = Placeholder(POD, "uid-1", 41)
NAME = "gpu-placeholder-uid-1"
PODS = "/api/v1/namespaces/kube-system/pods"
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "model", "operator": "In", "values": ["A10"]}]}]}
WAITING = {
    "metadata": {"namespace": "team", "name": "large", "uid": "uid-1"},
    "spec": {
        "nodeSelector": {"pool": "gpus"},
        "tolerations": [{"key": "gpu-scheduler", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": SELECTOR},
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
        },
        "priorityClassName": "high",
        "containers": [
            {
                "name": "main",
                "image": "team/secret",
                "resources": {"requests": {GPU_MEM: "20", "cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}},
            }
        ],
    },
}


class ApiServer:
    """Keeps placeholders, and has one waiting pod."""

    def __init__(self, *placeholders, waiting=WAITING, refusal=0):
        self.placeholders = {made["metadata"]["name"]: made for made in placeholders}
        self._waiting = waiting
        self._refusal = refusal

    async def get(self, path, params=None):
        if params:
            assert (path, params) == (PODS, {"labelSelector": FOR_LABEL})
            return msgspec.json.encode({"items": list(self.placeholders.values())})
        if self._waiting is None:
            raise ApiError(404, "NotFound", "not found")
        return msgspec.json.encode(self._waiting)

    async def create(self, path, body):
        if self._refusal:
            raise ApiError(self._refusal, "Forbidden", "exceeded quota")
        self.placeholders[body["metadata"]["name"]] = body

    async def patch(self, path, body, content_type):
        self.placeholders[path.removeprefix(f"{PODS}/").removesuffix("/status")] |= body

    async def delete(self, path, options):
        del self.placeholders[path.removeprefix(f"{PODS}/")]


class Core:
    def __init__(self, *wanted):
        self.wanted = wanted

    def look_for_placeholders(self, now):
        # No step takes time.
        yield from ()
        return list(self.wanted)

    def needs_placeholder(self, uid):
        return any(placeholder.uid == uid for placeholder in self.wanted)


def existing(uid="uid-1", units=41, marked=True):
    conditions = [{"type": "PodScheduled", "status": "False", "message": "waits"}]
    requests = {"requests": {GPU_MEM: str(units)}}
    return {
        "metadata": {"name": f"gpu-placeholder-{uid}", "labels": {FOR_LABEL: uid}},
        "spec": {"containers": [{"name": "placeholder", "resources": requests}]},
        "status": {"conditions": conditions if marked else []},
    }


class Run:
    """One check, with what it tells others."""

    def __init__(self, server, core):
        self.created = []
        self.written = []
        asyncio.run(self._check(server, core))

    async def _check(self, server, core):
        leading = asyncio.Event()
        leading.set()
        pods = PlaceholderPods(
            connection=server,
            namespace="kube-system",
            core=core,
            leading=leading,
            is_current=lambda: True,
            created=lambda placeholder, name: self.created.append((placeholder, name)),
            written=lambda kind, result: self.written.append((kind, result)),
        )
        running = asyncio.ensure_future(pods.run())
        # The first check needs no time, as the server answers at once.
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def test_it_asks_for_what_the_pod_asks_for_but_for_the_units_and_goes_where_the_pod_may_go():
    server = ApiServer()
    run = Run(server, Core(WANTED))
    made = server.placeholders[NAME]
    spec = made["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {GPU_MEM: "41", "cpu": "2000m", "memory": str(2**30)}
    assert container["image"] != "team/secret"
    assert spec["schedulerName"] == PLACEHOLDER_SCHEDULER
    assert spec["nodeSelector"] == {"pool": "gpus"}
    assert spec["tolerations"] == WAITING["spec"]["tolerations"]
    assert spec["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": SELECTOR}}
    assert "priorityClassName" not in spec
    assert made["status"]["conditions"][0]["reason"] == "Unschedulable"
    assert run.created == [(WANTED, NAME)]
    assert run.written == [("placeholder", "ok")]


GONE = {
    "its pod has a place": (existing("uid-2"), ()),
    "it is too small by now": (existing(units=30), (WANTED,)),
}


@pytest.mark.parametrize(("former", "wanted"), GONE.values(), ids=GONE)
def test_what_does_not_serve_any_more_goes(former, wanted):
    server = ApiServer(former)
    run = Run(server, Core(*wanted))
    assert ("placeholder-end", "ok") in run.written
    assert server.placeholders.keys() == {NAME for _ in wanted}


def test_one_that_is_large_enough_stays():
    server = ApiServer(existing(units=60))
    assert Run(server, Core(WANTED)).written == []


def test_one_that_a_former_leader_did_not_mark_is_marked():
    server = ApiServer(existing(marked=False))
    Run(server, Core(WANTED))
    assert server.placeholders[NAME]["status"]["conditions"][0]["reason"] == "Unschedulable"


@pytest.mark.parametrize("waiting", [None, WAITING | {"metadata": {"uid": "another"}}])
def test_there_is_none_for_a_pod_that_is_gone(waiting):
    server = ApiServer(waiting=waiting)
    assert Run(server, Core(WANTED)).written == []
    assert server.placeholders == {}


def test_a_refusal_is_said(caplog):
    run = Run(ApiServer(refusal=403), Core(WANTED))
    assert run.written == [("placeholder", "refused")]
    assert run.created == []
    assert "Failed to create a placeholder" in caplog.text


def test_a_bug_of_the_core_does_not_end_it(caplog):
    class Broken(Core):
        def look_for_placeholders(self, now):
            raise ValueError

    Run(ApiServer(), Broken())
    assert "Placeholders failed" in caplog.text
