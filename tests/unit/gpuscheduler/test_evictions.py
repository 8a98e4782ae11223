"""Evictions at the API server: what each of its answers means."""

import asyncio
from collections import Counter

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.access import access
from gpuscheduler.cluster_api.connection import Connection
from gpuscheduler.cluster_api.evictions import Evictions
from gpuscheduler.core.calls import EvictOutcome

EVICTION = "create pods/eviction"
CAUSE = "broken-job"


class Evicting:
    """Evictions of the pod p of a cluster."""

    def __init__(self, cluster, *, leads=True, loses_lease=False):
        kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "kubeconfig")
        self.access = access(str(kubeconfig))
        self.leads = leads
        self.loses_lease = loses_lease
        self.counted = Counter()

    def evict(self, uid, **given):
        return asyncio.run(self._evict(uid, **given))

    async def _evict(self, uid, **given):
        leading = asyncio.Event()
        if self.leads:
            leading.set()

        async def read_lease():
            if self.loses_lease:
                leading.clear()

        async with Connection(self.access, lambda verb, code: None) as connection:
            evictions = Evictions(connection, leading, read_lease, self.count)
            pod = PodName("default", "p")
            return await evictions.evict(pod, uid, CAUSE, **given)

    def count(self, cause, result):
        self.counted[cause, result] += 1


@pytest.fixture
def uid(cluster):
    return cluster.pod()["metadata"]["uid"]


def test_a_pod_is_evicted(cluster, uid):
    evicting = Evicting(cluster)
    assert evicting.evict(uid) == (EvictOutcome.EVICTED, "")
    assert cluster.found("p") is None
    assert evicting.counted == {(CAUSE, "evicted"): 1}


def test_a_later_pod_of_the_name_is_not_evicted(cluster, uid):
    outcome, why = Evicting(cluster).evict("of-a-former-pod")
    assert outcome is EvictOutcome.GONE
    assert "of-a-former-pod" in why
    assert cluster.found("p")


def test_a_pod_that_is_gone_is_not_evicted(cluster, uid):
    cluster.api.delete_pod("p")
    outcome, _ = Evicting(cluster).evict(uid)
    assert outcome is EvictOutcome.GONE


@pytest.mark.parametrize("code", [429, 500, 503])
def test_what_a_budget_forbids_now_may_be_tried_again(cluster, uid, code):
    """A second budget for the same pod makes the API server answer 500."""
    cluster.api.fail("create", "pods/eviction", code)
    evicting = Evicting(cluster)
    outcome, why = evicting.evict(uid)
    assert outcome is EvictOutcome.LATER
    assert why
    assert evicting.counted == {(CAUSE, "later"): 1}
    assert cluster.found("p")


def test_an_answer_that_is_lost_may_be_tried_again(cluster, uid):
    cluster.api.fail("create", "pods/eviction", 0)
    evicting = Evicting(cluster)
    outcome, _ = evicting.evict(uid)
    assert outcome is EvictOutcome.LATER
    outcome, _ = evicting.evict(uid)
    assert outcome is EvictOutcome.GONE


def test_a_missing_right_is_refused_in_words(cluster, uid, caplog):
    cluster.api.deny("create", "pods/eviction")
    outcome, why = Evicting(cluster).evict(uid)
    assert outcome is EvictOutcome.REFUSED
    assert "pods/eviction" in why
    assert [record.message for record in caplog.records] == ["Failed to evict a pod"]


def test_only_a_leader_evicts(cluster, uid):
    evicting = Evicting(cluster, leads=False)
    assert evicting.evict(uid) == (EvictOutcome.LATER, "")
    assert cluster.api.requests[EVICTION] == 0
    assert not evicting.counted


def test_a_leader_that_has_lost_the_lease_since_its_last_look_evicts_nothing(cluster, uid):
    evicting = Evicting(cluster, loses_lease=True)
    assert evicting.evict(uid) == (EvictOutcome.LATER, "")
    assert cluster.api.requests[EVICTION] == 0


def test_a_pod_that_is_no_longer_to_be_evicted_stays(cluster, uid):
    assert Evicting(cluster).evict(uid, is_wanted=lambda: False) == (EvictOutcome.LATER, "")
    assert cluster.found("p")
