"""A call about a pod that the watch has shown in the same version reads nothing of it again."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from gpuscheduler import service as module
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.extender.protocol import filter_call, preempt_call
from gpuscheduler.service import Service
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod_object, shared_node


@pytest.fixture
def reads(monkeypatch):
    """UIDs of the pods that calls read."""
    uids = []

    def counted(pod):
        uids.append(pod["metadata"]["uid"])
        return pod_facts(pod)

    monkeypatch.setattr(module, "pod_facts", counted)
    return uids


@pytest.fixture
def service():
    core = Scheduling(LeastFree())
    core.node_seen(shared_node("n1"))
    core.synced(0.0)
    writes = SimpleNamespace(add=lambda _: None)
    nothing = {"problem": lambda: "", "not_leading": lambda: "", "term": lambda: 0, "lagged": lambda _: None}
    return Service(core=core, claims=None, claim_jobs=None, writes=writes, evictions=None, read_lease=None, **nothing)


def filtered(service, pod):
    call = filter_call(msgspec.json.encode({"Pod": pod, "NodeNames": ["n1"]}))
    return asyncio.run(service.filter(call))


def test_a_pod_that_the_watch_has_shown_is_not_read_again(service, reads):
    pod = pod_object(mem=4)
    service.pod_seen(pod_facts(pod))
    assert filtered(service, pod).nodes == ("n1",)
    proposed = {"Pod": pod, "NodeNameToMetaVictims": {"n1": {"Pods": []}}}
    service.preempt(preempt_call(msgspec.json.encode(proposed)))
    assert reads == []


def test_a_pod_that_the_watch_has_not_shown_is_read(service, reads):
    pod = pod_object(mem=4)
    assert filtered(service, pod).nodes == ("n1",)
    assert reads == [pod["metadata"]["uid"]]


def test_a_pod_in_another_version_is_read(service, reads):
    pod = pod_object(mem=4)
    service.pod_seen(pod_facts(pod))
    pod["metadata"]["resourceVersion"] = "2"
    pod["metadata"]["labels"] = {"gpu-topology": "j", "gpu-topology-replica": "2"}
    assert "has changed" in filtered(service, pod).error
    assert reads == [pod["metadata"]["uid"]]


def test_a_pod_without_a_version_is_read(service, reads):
    pod = pod_object(mem=4)
    del pod["metadata"]["resourceVersion"]
    service.pod_seen(pod_facts(pod))
    assert filtered(service, pod).nodes == ("n1",)
    assert reads == [pod["metadata"]["uid"]]
