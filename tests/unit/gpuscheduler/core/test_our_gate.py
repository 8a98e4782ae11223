"""The scheduler's own gate `gpuagent.io/job` is taken off each pod that no other pod of a job keeps back."""

import pytest

from gpuscheduler.core.calls import Ungate
from gpuscheduler.core.gangs.job_set import read_job_set
from gpuscheduler.core.gangs.leader_worker_set import read_leader_worker_set
from gpuscheduler.core.gangs.pod_group import read_pod_group
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import pod_object, whole_node
from tests.unit.gpuscheduler.core.gangs.workloads import (
    group_pod,
    job_set,
    job_set_pod,
    leader_worker_set,
    pod_group,
    replicated_job,
)
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

GATE = {"name": "gpuagent.io/job"}
FOREIGN = {"name": "queue.example/admission"}
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "zone"}
OWN = {"gpu-topology": "j", "gpu-topology-replica": "2"}


def alone(**given):
    return pod_object("a", uid="a", **given), None


ALONE = {
    "no gang": lambda: alone(whole=1),
    "a job of one pod": lambda: alone(whole=1, labels={"gpu-topology": "j", "gpu-topology-replica": "1"}),
    "no GPUs": lambda: alone(),
    "a PodGroup of one": lambda: (
        pod_object("a", uid="a", whole=1, labels={"scheduling.x-k8s.io/pod-group": "pg"}),
        read_pod_group(pod_group(1)),
    ),
    "a group of one": lambda: (group_pod("a", 0, 0, size=1), read_leader_worker_set(leader_worker_set())),
    "a JobSet with a topology of its own": lambda: (
        job_set_pod("a", "w"),
        read_job_set(job_set(replicated_job("w"), annotations=EXCLUSIVE)),
    ),
}


class Gated(JobUnderTest):
    def see(self, made, *gates):
        made["spec"]["schedulingGates"] = list(gates)
        self.pods[made["metadata"]["uid"]] = made
        self.scheduling.pod_seen(pod_facts(made), self.now)
        self.act()

    def let_in(self):
        return [action.pod.name for action in self.done if isinstance(action, Ungate)]


@pytest.fixture
def cluster():
    return Gated(whole_node("n1", gpus=4))


@pytest.mark.parametrize("case", ALONE)
@pytest.mark.parametrize("is_read_at_start", [False, True])
def test_a_pod_that_starts_alone_is_let_in_once(cluster, case, is_read_at_start):
    made, found = ALONE[case]()
    if is_read_at_start:
        made["spec"]["schedulingGates"] = [GATE]
        cluster.pods = {"a": made}
        cluster.start()
    if found:
        cluster.scheduling.gang_seen(found)
    if not is_read_at_start:
        cluster.see(made, GATE)
    cluster.scheduling.tick(0.0)
    cluster.act()
    assert cluster.let_in() == ["a"]
    if case != "no GPUs":
        cluster.see(made, GATE)
        assert cluster.let_in() == ["a"], "the write is on its way"


def test_a_pod_is_not_let_in_while_another_controller_holds_it_back(cluster):
    made, _ = alone(whole=1)
    cluster.see(made, GATE, FOREIGN)
    assert cluster.let_in() == []
    cluster.see(made, GATE)
    assert cluster.let_in() == ["a"]


def test_members_without_gpus_are_let_in_with_the_others(cluster):
    cluster.see(pod_object("a", uid="a", whole=1, labels=OWN), GATE)
    assert cluster.let_in() == []
    cluster.see(pod_object("b", uid="b", labels=OWN), GATE)
    assert sorted(cluster.let_in()) == ["a", "b"]
