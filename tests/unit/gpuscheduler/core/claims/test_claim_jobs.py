"""Jobs with claims: people learn once that they may start in part."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.claims.claim_jobs import MOST_TOLD, ClaimJobs
from gpuscheduler.core.claims.claim_nodes import ClaimNodes
from gpuscheduler.core.claims.gpu_claims import read_claim
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.binpack_spread import Binpack
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.waiting.scheduler_names import SchedulerNames
from tests.unit.gpuscheduler.core.claims.dra_cluster import claim_object

ANY = SchedulerNames(())


@pytest.fixture
def claims():
    """A view that knows a claim for a GPU, and not the one for another device."""
    view = ClaimNodes(Binpack(), Mix())
    view.claim_seen(read_claim(claim_object("gpu", memory="8Gi")))
    return view


def member(name="p0", job="train", replicas="2", claim="gpu", scheduler="gpu-scheduler", **metadata):
    labels = {JOB_LABEL: job, REPLICAS_LABEL: replicas} if job else {}
    spec = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "resources": {}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
    }
    return pod_facts(
        {"metadata": {"name": name, "namespace": "ml", "uid": name, "labels": labels} | metadata, "spec": spec}
    )


def test_a_job_with_claims_is_reported_once(claims):
    jobs = ClaimJobs(claims, ANY)
    report = jobs.report(member("p0"))
    assert (report.uid, report.reason) == ("p0", "JobNotWhole")
    assert report.message.startswith("Pods of job train have ResourceClaims for GPUs")
    assert jobs.report(member("p1")) is None
    assert jobs.report(member("q0", job="other")) is not None


@pytest.mark.parametrize(
    "pod",
    [
        member(job=""),
        member(replicas="1"),
        member(claim="nic"),
        member(scheduler="default-scheduler"),
        member(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
    ids=["no job", "alone", "another device", "another scheduler", "deleted"],
)
def test_other_pods_are_not_reported(claims, pod):
    assert ClaimJobs(claims, SchedulerNames({"gpu-scheduler"})).report(pod) is None


def test_a_native_pod_group_starts_whole(claims):
    """kube-scheduler allots the devices for all of its pods before it binds the first."""
    pod = {
        "metadata": {"name": "p", "namespace": "ml", "uid": "p"},
        "spec": {
            "schedulingGroup": {"podGroupName": "train"},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
        },
    }
    assert ClaimJobs(claims, ANY).report(pod_facts(pod)) is None


def test_what_is_remembered_of_jobs_is_bounded(claims):
    jobs = ClaimJobs(claims, ANY)
    for number in range(MOST_TOLD + 10):
        assert jobs.report(member(job=f"job-{number}"))
    assert jobs.report(member(job="job-0")), "the oldest are forgotten"
    assert jobs.report(member(job=f"job-{MOST_TOLD}")) is None
