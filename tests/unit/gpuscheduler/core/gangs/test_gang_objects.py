"""Gangs whose number of pods an object says: it may come late, change, and go."""

import pytest

from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, JOB_LABEL, REPLICAS_LABEL, VISIBLE_ANNOTATION
from gpuscheduler.core.calls import BindRefused, BindWrite, Evict, Nominate, Nudge, Report
from gpuscheduler.core.gangs.gang_object import ObjectKey
from gpuscheduler.core.gangs.job_set import read_job_set
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.leader_worker_set import read_leader_worker_set
from gpuscheduler.core.gangs.pod_group import read_pod_group
from gpuscheduler.core.gangs.ray_cluster import read_ray_cluster
from gpuscheduler.core.jobs.broken_jobs import BROKEN_S
from gpuscheduler.core.jobs.job import JobState
from gpuscheduler.core.jobs.jobs import JobLimits
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION, pod_facts
from gpuscheduler.core.scheduling import MEMBERS_A_POD, MOST_RESOLVED, Scheduling
from tests.unit.gpuscheduler.core.api_objects import LeastFree, pod_object, whole_node
from tests.unit.gpuscheduler.core.gangs.workloads import (
    group_pod,
    job_set,
    job_set_pod,
    leader_worker_set,
    pod_group,
    ray_cluster,
    ray_pod,
    replicated_job,
)
from tests.unit.gpuscheduler.core.test_jobs import JobUnderTest

PG = {"scheduling.x-k8s.io/pod-group": "pg"}
GROUP = ObjectKey(ObjectKind.POD_GROUP, "default", "pg")


class GangUnderTest(JobUnderTest):
    """A cluster with objects of other projects."""

    def see(self, made):
        self.pods[made["metadata"]["name"]] = made
        self.scheduling.pod_seen(pod_facts(made), self.now)
        self.act()
        if not (made["spec"].get("nodeName") or pod_facts(made).in_native_group):
            # kube-scheduler asks about each new pod once, and about those of its own groups in one cycle.
            self.filter(made["metadata"]["name"])

    def show(self, found):
        """The watch shows an object, and what is due is done."""
        self.scheduling.gang_seen(found)
        self.settle()

    def settle(self):
        for _ in range(100):
            due = self.scheduling.next_due(self.now)
            if due is None or due > self.now:
                break
            self.scheduling.tick(self.now)
            self.act()

    def why(self, name):
        return next(iter(self.filter(name).unresolvable.values()), "")


@pytest.fixture
def cluster():
    return GangUnderTest(whole_node("n1", gpus=4), whole_node("n2", gpus=4))


def test_pods_wait_until_their_object_is_seen(cluster):
    for name in ("a", "b"):
        cluster.see(job_set_pod(name, "workers", whole=4))
    assert cluster.why("a") == "node(s) not given to JobSet train: its object has not been seen"
    assert cluster.reserved() == 0
    cluster.show(read_job_set(job_set(replicated_job("workers", pods=2))))
    assert {write.node for write in cluster.run("a", "b").values()} == {"n1", "n2"}


def test_pods_see_gpus_of_others_only_by_labels_that_agents_read(cluster):
    """An agent that is told to trust the annotation refuses a pod that names GPUs of another job."""
    cluster.show(read_job_set(job_set(replicated_job("workers", pods=2))))
    for name in ("a", "b"):
        cluster.see(job_set_pod(name, "workers", whole=2))
    for write in cluster.run("a", "b").values():
        assert write.annotations[VISIBLE_ANNOTATION] == write.annotations[GROUP_ANNOTATION]
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    for name in ("c", "d"):
        cluster.see(job_set_pod(name, "workers", set_name="other", labels=labels, whole=2))
    cluster.show(read_job_set(job_set(replicated_job("workers", pods=2), name="other")))
    visible = {write.annotations[VISIBLE_ANNOTATION] for write in cluster.run("c", "d").values()}
    assert visible == {"0,1,2,3"}


def test_a_pod_that_turns_out_to_start_alone_is_tried_again(cluster):
    """kube-scheduler asked about it before its object was seen, and does not do so again by itself for minutes."""
    cluster.see(job_set_pod("a", "workers", whole=4))
    assert cluster.why("a")
    cluster.done.clear()
    cluster.show(read_job_set(job_set(replicated_job("workers"))))
    for _ in range(10):
        cluster.now += 1.0
        cluster.settle()
    assert "a" in {action.pod.name for action in cluster.done if isinstance(action, (Nudge, Nominate))}


def test_a_job_set_waits_for_all_of_its_pods(cluster):
    cluster.show(read_job_set(job_set(replicated_job("workers", jobs=2, pods=2))))
    for name, job in (("a", 0), ("b", 0), ("c", 1)):
        cluster.see(job_set_pod(name, "workers", job, whole=2))
    assert cluster.why("a") == "node(s) not given to JobSet train: 3 of 4 pods are there"
    cluster.see(job_set_pod("d", "workers", 1, whole=2))
    assert len(cluster.run("a", "b", "c", "d")) == 4


def end(cluster, name):
    """The pod succeeds, and the API server keeps it."""
    cluster.pods[name]["status"]["phase"] = "Succeeded"
    cluster.see(cluster.pods[name])


def of_job(cluster, name, index, uid="js", attempt=0):
    """A pod of the Job with this index, which is the pod's controller."""
    labels = {"jobset.sigs.k8s.io/jobset-uid": uid, "jobset.sigs.k8s.io/restart-attempt": str(attempt)}
    made = job_set_pod(name, "workers", index, labels=labels, whole=2)
    made["metadata"]["ownerReferences"][0]["uid"] = f"job-{index}-{uid}-{attempt}"
    cluster.see(made)


def restarted(cluster, found):
    """The same cluster after the scheduler has started again."""
    again = GangUnderTest(*cluster.nodes)
    again.pods = cluster.pods
    again.scheduling = Scheduling(LeastFree())
    for node in again.nodes:
        again.scheduling.node_seen(node)
    again.scheduling.gang_seen(found)
    for made in again.pods.values():
        again.scheduling.pod_seen(pod_facts(made), 0.0)
    again.scheduling.synced(0.0)
    return again


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_pod_that_comes_again_does_not_wait_for_jobs_of_the_set_that_have_succeeded(cluster, is_started_again):
    found = read_job_set(job_set(replicated_job("workers", jobs=2)))
    cluster.show(found)
    of_job(cluster, "a", 0)
    of_job(cluster, "b", 1)
    cluster.run("a", "b")
    for name in ("a", "b"):
        end(cluster, name)
    if is_started_again:
        del cluster.pods["b"]
        cluster = restarted(cluster, found)
    of_job(cluster, "b-again", 1)
    assert cluster.filter("b-again").nodes


def test_the_last_pod_of_many_completions_does_not_wait_for_those_that_have_succeeded(cluster):
    cluster.show(read_job_set(job_set(replicated_job("workers", pods=2, job_spec={"completions": 5}))))
    of_job(cluster, "a", 0)
    of_job(cluster, "b", 0)
    cluster.run("a", "b")
    for ended, name in (("a", "c"), ("b", "d")):
        end(cluster, ended)
        of_job(cluster, name, 0)
        cluster.run(name)
    end(cluster, "c")
    end(cluster, "d")
    of_job(cluster, "e", 0)
    assert cluster.filter("e").nodes


@pytest.mark.parametrize("later", [{"attempt": 1}, {"uid": "made-again"}])
def test_a_set_that_is_made_again_waits_for_all_of_its_pods(cluster, later):
    found = job_set(replicated_job("workers", jobs=2))
    cluster.show(read_job_set(found))
    of_job(cluster, "a", 0)
    of_job(cluster, "b", 1)
    cluster.run("a", "b")
    end(cluster, "a")
    end(cluster, "b")
    of_job(cluster, "c", 0, **later)
    assert cluster.why("c") == "node(s) not given to JobSet train: 1 of 2 pods are there"


def test_three_groups_of_one_template_start_whole_or_not_at_all(cluster):
    cluster.show(read_leader_worker_set(leader_worker_set()))
    for group in range(3):
        cluster.see(group_pod(f"l{group}", group, 0, whole=2))
    assert cluster.why("l0") == "node(s) not given to LeaderWorkerSet group serve-0: 1 of 2 pods are there"
    for group in range(3):
        cluster.see(group_pod(f"w{group}", group, 1, whole=2))
    on = {}
    for group in range(3):
        names = (f"l{group}", f"w{group}")
        answers = [cluster.filter(name) for name in names]
        on[group] = [bool(answer.nodes) for answer in answers]
        if all(on[group]):
            cluster.run(*names)
    # Two groups of 4 GPUs fit on 8 GPUs, and the third waits whole.
    assert sorted(on.values()) == [[False, False], [True, True], [True, True]]


@pytest.mark.parametrize("with_label", [(0, 1, 2), (1, 2)], ids=["all pods", "the workers"])
def test_labels_with_a_number_below_the_size_start_no_group_in_part(cluster, with_label):
    """There is room for four pods of two groups."""
    labels = {JOB_LABEL: "serve", REPLICAS_LABEL: "2"}
    of_leader = labels if 0 in with_label else {}
    cluster.show(read_leader_worker_set(leader_worker_set(leader=True, labels=(of_leader, labels))))
    names = {}
    for group in range(2):
        for worker in with_label:
            made = group_pod(f"p{group}-{worker}", group, worker, size=3, labels=labels, whole=2)
            cluster.see(made)
            names.setdefault(group, []).append(made["metadata"]["name"])
    for of_group in names.values():
        placed = [name for name in of_group if cluster.filter(name).nodes]
        assert len(placed) >= 2
        cluster.run(*placed)


@pytest.mark.parametrize("first", ["a-leaders", "z-leaders"])
def test_the_pods_of_a_group_beyond_its_number_are_no_second_job(cluster, first):
    """The leader and the workers have different controllers, and are created in the same second."""
    labels = {JOB_LABEL: "serve", REPLICAS_LABEL: "2"}
    cluster.show(read_leader_worker_set(leader_worker_set(labels=labels)))
    names = ["leader", "w1", "w2"]
    for number, name in enumerate(names):
        made = group_pod(name, 0, number, size=3, labels=labels, whole=2)
        made["metadata"]["ownerReferences"][0]["uid"] = "m-workers" if number else first
        cluster.see(made)
    assert cluster.run(*names[:2])
    assert cluster.run("w2")


@pytest.mark.parametrize("name", ["train", "other"])
def test_the_pods_of_a_job_set_beyond_its_number_are_no_second_job(cluster, name):
    labels = {JOB_LABEL: name, REPLICAS_LABEL: "2"}
    entries = [replicated_job(entry, labels=labels) for entry in ("a", "b", "c")]
    cluster.show(read_job_set(job_set(*entries)))
    for entry in ("a", "b", "c"):
        made = job_set_pod(entry, entry, labels=labels, whole=2)
        made["metadata"]["ownerReferences"][0]["uid"] = f"job-{entry}"
        cluster.see(made)
    assert cluster.run("a", "b")
    assert cluster.run("c")


def test_two_jobs_of_a_job_set_with_a_pod_group_start_whole(cluster):
    """There is room for one of them. The first pods of both would be as many as the PodGroup says."""
    cluster.show(read_pod_group(pod_group(2)))
    for name, index in (("a", 0), ("c", 1)):
        cluster.see(job_set_pod(name, "workers", index, labels=PG, whole=4))
    assert cluster.why("a") == "node(s) not given to PodGroup pg: its object has not been seen"
    cluster.show(read_job_set(job_set(replicated_job("workers", jobs=2, pods=2, labels=PG))))
    assert cluster.why("a") == "node(s) not given to PodGroup pg/train-workers-0: 1 of 2 pods are there"
    for name, index in (("b", 0), ("d", 1)):
        cluster.see(job_set_pod(name, "workers", index, labels=PG, whole=4))
    assert len(cluster.run("a", "b")) == 2
    assert not cluster.filter("c").nodes


@pytest.mark.parametrize("by", ["labels", "PodGroup"])
def test_leaders_of_all_groups_may_start_together(cluster, by):
    """Only they have the labels. There are two of them, as many pods as a group has."""
    labels = {JOB_LABEL: "leaders", REPLICAS_LABEL: "2"} if by == "labels" else PG
    cluster.show(read_pod_group(pod_group(2)))
    cluster.show(read_leader_worker_set(leader_worker_set(leader=True, labels=(labels, {}))))
    for group in range(2):
        cluster.see(group_pod(f"l{group}", group, 0, labels=labels, whole=2))
    assert len(cluster.run("l0", "l1")) == 2


def test_a_pod_for_debugging_with_copied_labels_says_nothing_of_a_group(cluster):
    """It looks like a worker that asks for no GPUs."""
    cluster.show(read_leader_worker_set(leader_worker_set()))
    copied = without_gpus(group_pod("debug", 0, 1, whole=1))
    copied["metadata"]["ownerReferences"] = []
    cluster.see(copied)
    cluster.see(group_pod("l", 0, 0, whole=4))
    assert "1 of 2 pods are there" in cluster.why("l")


def test_a_pod_that_is_being_deleted_says_nothing_of_a_group(cluster):
    cluster.show(read_leader_worker_set(leader_worker_set()))
    former = without_gpus(group_pod("former", 0, 1, whole=1))
    former["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.see(former)
    cluster.see(group_pod("l", 0, 0, whole=4))
    assert "1 of 2 pods are there" in cluster.why("l")


@pytest.mark.parametrize("labels", [{}, {JOB_LABEL: "j", REPLICAS_LABEL: "2"}], ids=["no labels", "labels"])
def test_replicas_of_a_ray_cluster_start_whole_or_wait(cluster, labels):
    """There is room for four of six pods. The first pods of all replicas come first."""
    cluster.show(read_ray_cluster(ray_cluster(hosts=2, replicas=3)))
    for host in range(2):
        for replica in range(3):
            cluster.see(ray_pod(f"p{replica}-{host}", f"r{replica}", labels=labels, whole=2))
    on = {}
    for replica in range(3):
        names = (f"p{replica}-0", f"p{replica}-1")
        on[replica] = [bool(cluster.filter(name).nodes) for name in names]
        if all(on[replica]):
            cluster.run(*names)
    assert sorted(on.values()) == [[False, False], [True, True], [True, True]]


def without_gpus(made):
    made["spec"]["containers"] = [{"name": "c"}]
    return made


@pytest.mark.parametrize("is_seen_first", [True, False], ids=["leader first", "worker first"])
def test_a_group_of_a_former_template_does_not_wait_for_its_leader_without_gpus(cluster, is_seen_first):
    """By the present template, leaders ask for GPUs."""
    cluster.show(read_leader_worker_set(leader_worker_set(leader=True)))
    pods = [without_gpus(group_pod("l", 0, 0, whole=1)), group_pod("w", 0, 1, whole=4)]
    for made in pods if is_seen_first else reversed(pods):
        cluster.see(made)
    cluster.settle()
    assert cluster.filter("w").nodes


def test_a_leader_of_a_former_template_does_not_wait_for_workers_without_gpus(cluster):
    cluster.show(read_leader_worker_set(leader_worker_set(leader=True)))
    cluster.see(group_pod("l", 0, 0, whole=4))
    assert "1 of 2 pods are there" in cluster.why("l")
    cluster.see(without_gpus(group_pod("w", 0, 1, whole=1)))
    cluster.settle()
    assert cluster.filter("l").nodes


@pytest.mark.parametrize(("leader", "worker"), [(False, True), (True, False)])
def test_a_group_of_a_former_template_with_gpus_starts_whole(cluster, leader, worker):
    cluster.show(read_leader_worker_set(leader_worker_set(leader=leader, worker=worker)))
    cluster.see(group_pod("l", 0, 0, size=3, whole=2))
    cluster.see(group_pod("w1", 0, 1, size=3, whole=2))
    cluster.settle()
    assert {cluster.why(name).partition(": ")[2] for name in ("l", "w1")} == {"2 of 3 pods are there"}
    cluster.see(group_pod("w2", 0, 2, size=3, whole=2))
    cluster.settle()
    assert len([name for name in ("l", "w1", "w2") if cluster.filter(name).nodes]) == 3


def test_a_group_that_is_made_again_is_of_the_present_template(cluster):
    cluster.show(read_leader_worker_set(leader_worker_set(leader=True)))
    cluster.see(without_gpus(group_pod("l", 0, 0, whole=1)))
    cluster.scheduling.pod_gone("l", cluster.now)
    cluster.see(group_pod("w", 0, 1, whole=4))
    cluster.settle()
    assert "1 of 2 pods are there" in cluster.why("w")


def test_a_job_set_and_a_label_of_one_name_are_two_jobs(cluster):
    cluster.show(read_job_set(job_set(replicated_job("workers", pods=2), name="j")))
    cluster.create("a", whole=1)
    cluster.see(job_set_pod("b", "workers", set_name="j", whole=1))
    assert cluster.why("a") == "node(s) not given to job j: 1 of 2 pods are there"
    assert cluster.why("b") == "node(s) not given to JobSet j: 1 of 2 pods are there"


def group_pods(cluster, *names, **given):
    for name in names:
        cluster.see(pod_object(name, uid=name, labels=PG, **(given or {"whole": 2})))


def test_a_pod_group_of_one_pod_is_none_until_it_has_more(cluster):
    cluster.show(read_pod_group(pod_group(1)))
    group_pods(cluster, "a")
    assert cluster.filter("a").nodes
    cluster.show(read_pod_group(pod_group(2)))
    assert cluster.why("a") == "node(s) not given to PodGroup pg: 1 of 2 pods are there"
    assert cluster.reserved() == 0
    cluster.show(read_pod_group(pod_group(1)))
    assert cluster.filter("a").nodes
    assert not cluster.scheduling.jobs.states()


def test_a_written_plan_outlives_a_change_of_the_number(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    group_pods(cluster, "a", "b", whole=4)
    on = {name: cluster.filter(name).nodes[0] for name in ("a", "b")}
    for name, node in on.items():
        cluster.bind(name, node)
    cluster.write("a", cluster.bind("a", on["a"]))
    cluster.show(read_pod_group(pod_group(5)))
    write = cluster.bind("b", on["b"])
    assert isinstance(write, BindWrite)
    cluster.write("b", write)


def test_a_plan_that_is_not_written_follows_the_number(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    group_pods(cluster, "a", "b")
    on = cluster.filter("a").nodes[0]
    cluster.bind("a", on)
    cluster.show(read_pod_group(pod_group(3)))
    assert isinstance(cluster.bind("a", on), BindRefused)
    assert cluster.reserved() == 0
    assert cluster.why("b") == "node(s) not given to PodGroup pg: 2 of 3 pods are there"
    group_pods(cluster, "c")
    cluster.now += 1.0
    cluster.settle()
    assert len(cluster.run("a", "b", "c")) == 3


def test_pods_wait_again_when_their_object_goes_and_run_on_if_they_run(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    group_pods(cluster, "a", "b")
    cluster.run("a", "b")
    cluster.scheduling.gang_gone(GROUP, "pg")
    cluster.settle()
    assert cluster.scheduling.jobs.states() == {JobState.RUNNING: 1}
    other = GangUnderTest(*cluster.nodes)
    other.show(read_pod_group(pod_group(2)))
    group_pods(other, "a", "b")
    other.filter("a")
    other.scheduling.gang_gone(GROUP, "pg")
    other.settle()
    assert other.reserved() == 0
    assert other.why("a") == "node(s) not given to PodGroup pg: its object has not been seen"


def test_a_later_object_of_the_name_stays_when_the_former_one_goes(cluster):
    cluster.show(read_pod_group(pod_group(2, uid="later")))
    cluster.scheduling.gang_gone(GROUP, "former")
    group_pods(cluster, "a", "b")
    assert cluster.filter("a").nodes


def test_a_kind_that_cannot_be_read_is_the_reason(cluster):
    group_pods(cluster, "a", "b")
    cluster.scheduling.gangs_readable(ObjectKind.POD_GROUP, "this cluster has no PodGroups")
    cluster.settle()
    assert cluster.why("a") == "node(s) not given to PodGroup pg: this cluster has no PodGroups"
    cluster.scheduling.gangs_readable(ObjectKind.POD_GROUP, "")
    cluster.show(read_pod_group(pod_group(2)))
    assert len(cluster.run("a", "b")) == 2


def test_pods_that_wait_show_the_latest_reason(cluster):
    """kube-scheduler shows the reason of the last time that it asked."""
    group_pods(cluster, "a", "b")

    def woken():
        names = {action.pod.name for action in cluster.done if isinstance(action, Nudge)}
        cluster.done.clear()
        return names

    woken()
    cluster.scheduling.gangs_readable(ObjectKind.POD_GROUP, "this cluster has no PodGroups")
    cluster.settle()
    assert woken() == {"a", "b"}
    cluster.scheduling.gangs_readable(ObjectKind.POD_GROUP, "")
    cluster.settle()
    assert woken() == {"a", "b"}
    cluster.show(read_pod_group(pod_group(3)))
    assert woken() == {"a", "b"}


def test_more_pods_than_the_minimum_start_too(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    group_pods(cluster, "a", "b")
    cluster.run("a", "b")
    for name in ("c", "d"):
        cluster.see(pod_object(name, uid=name, labels=PG, whole=2, owner=f"another-{name}"))
        assert cluster.run(name)


def test_pods_of_another_namespace_are_not_of_the_group(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    group_pods(cluster, "a")
    cluster.see(pod_object("foreign", uid="foreign", namespace="other", labels=PG, whole=2))
    assert cluster.why("a") == "node(s) not given to PodGroup pg: 1 of 2 pods are there"
    assert cluster.why("foreign") == "node(s) not given to PodGroup pg: its object has not been seen"


def test_a_changed_object_has_few_of_its_pods_taken_at_a_time():
    """A tenant may change it again and again."""
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(whole_node("n1"))
    scheduling.gang_seen(read_pod_group(pod_group(2000)))
    for number in range(5 * MOST_RESOLVED):
        scheduling.pod_seen(pod_facts(pod_object(f"p{number}", labels=PG, whole=1)), 0.0)
    scheduling.synced(0.0)
    taken = []
    kept = scheduling.pod_seen
    scheduling.pod_seen = lambda pod, now: (taken.append(pod), kept(pod, now))
    for minimum in (1, 2000, 1):
        scheduling.gang_seen(read_pod_group(pod_group(minimum)))
    assert taken == []
    scheduling.tick(0.0)
    assert len(taken) == MOST_RESOLVED
    while scheduling.gang_objects.are_outdated:
        scheduling.tick(0.0)
    assert len(taken) == 5 * MOST_RESOLVED


def test_of_a_large_job_fewer_pods_are_taken_at_a_time():
    """With each of them, all members are looked through."""
    scheduling = Scheduling(LeastFree())
    scheduling.node_seen(whole_node("n1"))
    scheduling.gang_seen(read_pod_group(pod_group(2)))
    members = 10 * MEMBERS_A_POD
    for number in range(members):
        scheduling.pod_seen(pod_facts(pod_object(f"p{number}", labels=PG, whole=1)), 0.0)
    scheduling.synced(0.0)
    taken = []
    kept = scheduling.pod_seen
    scheduling.pod_seen = lambda pod, now: (taken.append(pod), kept(pod, now))
    scheduling.gang_seen(read_pod_group(pod_group(3)))
    scheduling.tick(0.0)
    assert 0 < len(taken) <= MOST_RESOLVED // 10
    while scheduling.gang_objects.are_outdated:
        scheduling.tick(0.0)
    assert len(taken) == members


def test_nothing_is_kept_of_pods_and_objects_that_are_gone(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    group_pods(cluster, "a", "b")
    for name in ("a", "b"):
        cluster.scheduling.pod_gone(name, cluster.now)
    cluster.scheduling.gang_gone(GROUP, "pg")
    objects = cluster.scheduling.gang_objects
    assert not any(vars(objects)[name] for name in ("_objects", "_referring", "_outdated"))


def test_nothing_is_kept_of_groups_that_are_gone(cluster):
    for number in range(2):
        cluster.see(group_pod(f"p{number}", 0, number, labels=PG, whole=1))
        cluster.scheduling.pod_gone(f"p{number}", cluster.now)
    objects = cluster.scheduling.gang_objects
    assert not vars(objects)["_referring"]
    roles = vars(objects)["_roles"]
    assert not any(vars(roles).values())


def test_groups_of_another_scheduler_without_gpus_are_left_alone():
    scheduling = Scheduling(LeastFree(), schedulers=("gpu-scheduler",))
    scheduling.gang_seen(read_pod_group(pod_group(2)))
    plain = {"name": "c"}
    scheduling.pod_seen(pod_facts(pod_object("cpu", plain, labels=PG, scheduler="default", on="n1")), 0.0)
    assert not scheduling.pods
    scheduling.pod_seen(pod_facts(pod_object("ours", plain, labels=PG)), 0.0)
    assert scheduling.pods or scheduling.jobs.states()


def test_a_restart_reads_objects_first_and_completes_a_plan(cluster):
    found = read_pod_group(pod_group(2))
    cluster.show(found)
    group_pods(cluster, "a", "b", whole=4)
    on = {name: cluster.filter(name).nodes[0] for name in ("a", "b")}
    for name, node in on.items():
        cluster.bind(name, node)
    cluster.write("a", cluster.bind("a", on["a"]))
    again = GangUnderTest(*cluster.nodes)
    again.pods = cluster.pods
    scheduling = again.scheduling = Scheduling(LeastFree())
    for node in again.nodes:
        scheduling.node_seen(node)
    scheduling.gang_seen(found)
    for made in again.pods.values():
        scheduling.pod_seen(pod_facts(made), 0.0)
    scheduling.synced(0.0)
    assert again.filter("b").nodes == (on["b"],)


def attempt(number, index):
    """A pod of a JobSet's start with that number."""
    labels = {"jobset.sigs.k8s.io/jobset-uid": "js", "jobset.sigs.k8s.io/restart-attempt": str(number)}
    return job_set_pod(f"w-{index}-of-{number}", "w", index, labels=labels, whole=4)


@pytest.mark.parametrize("is_read_again", [False, True])
def test_the_next_attempt_of_a_job_set_does_not_start_beside_what_is_left_of_the_former(cluster, is_read_again):
    cluster.show(read_job_set(job_set(replicated_job("w", jobs=2, pods=1))))
    for index in range(2):
        cluster.see(attempt(9, index))
    cluster.run("w-0-of-9", "w-1-of-9")
    del cluster.pods["w-0-of-9"]
    cluster.scheduling.pod_gone("w-0-of-9", cluster.now)
    cluster.see(attempt(10, 0))
    if is_read_again:
        cluster.pods = dict(reversed(cluster.pods.items()))
        cluster.start()
        cluster.show(read_job_set(job_set(replicated_job("w", jobs=2, pods=1))))
    assert cluster.why("w-0-of-10") == "node(s) not given to JobSet train: 1 of 2 pods are there"
    assert cluster.reserved() == 0
    del cluster.pods["w-1-of-9"]
    cluster.scheduling.pod_gone("w-1-of-9", cluster.now)
    cluster.see(attempt(10, 1))
    assert len(cluster.run("w-0-of-10", "w-1-of-10")) == 2


def test_a_number_that_is_raised_while_its_pods_run_means_no_loss(cluster):
    """The Event would be wrong, and the operator may have the other pods of a job that lost some evicted."""
    cluster.show(read_pod_group(pod_group(2)))
    for name in ("a", "b"):
        cluster.see(pod_object(name, uid=name, labels=PG, whole=1))
    cluster.run("a", "b")
    cluster.show(read_pod_group(pod_group(5)))
    assert cluster.scheduling.jobs.states() == {JobState.RUNNING: 1}
    cluster.see(pod_object("c", uid="c", labels=PG, whole=8))
    assert cluster.scheduling.jobs.states() == {JobState.WAITING: 1}
    cluster.scheduling.pod_gone("b", cluster.now)
    assert cluster.scheduling.jobs.states() == {JobState.BROKEN: 1}


def restart(cluster, minimum):
    """The scheduler ends, and another one reads the pods and the PodGroup, whose number may be another one by now."""
    cluster.start()
    cluster.show(read_pod_group(pod_group(minimum)))


def said_of_losses(cluster):
    """What Events say once pods are missing for long enough."""
    cluster.settle()
    cluster.done.clear()
    cluster.now += BROKEN_S
    cluster.settle()
    return [action.message for action in cluster.done if isinstance(action, Report)]


@pytest.mark.parametrize("launcher", [False, True], ids=["GPUs", "launcher"])
def test_a_number_that_was_raised_before_a_restart_means_no_loss(cluster, launcher):
    """The plan on one of the pods says how many started."""
    had = 3 + launcher
    cluster.show(read_pod_group(pod_group(had)))
    if launcher:
        cluster.see(pod_object("launcher", uid="launcher", labels=PG, on="n1"))
    for name in ("a", "b", "c"):
        cluster.see(pod_object(name, uid=name, labels=PG, whole=1))
    cluster.run("a", "b", "c")
    restart(cluster, 6)
    assert cluster.scheduling.jobs.states() == {JobState.RUNNING: 1}
    assert said_of_losses(cluster) == []
    cluster.scheduling.pod_gone("b", cluster.now)
    [said] = said_of_losses(cluster)
    assert said.startswith(f"PodGroup pg has lost 1 of its {had} pods 60 s ago or longer. The other 2 keep")


def test_a_pod_that_came_again_is_no_further_pod_of_the_start(cluster):
    cluster.show(read_pod_group(pod_group(2)))
    for name in ("a", "b"):
        cluster.see(pod_object(name, uid=name, labels=PG, whole=1))
    cluster.run("b", "a")
    cluster.scheduling.pod_gone("b", cluster.now)
    del cluster.pods["b"]
    cluster.see(pod_object("b2", uid="b2", labels=PG, whole=1))
    cluster.run("b2")
    restart(cluster, 3)
    assert said_of_losses(cluster) == []


def test_what_cannot_be_known_after_a_restart_is_said_so(cluster):
    """The pod with the plan is gone, so nothing says how many there were."""
    cluster.show(read_pod_group(pod_group(3)))
    for name in ("a", "b", "c"):
        cluster.see(pod_object(name, uid=name, labels=PG, whole=1))
    cluster.run("a", "b", "c")
    [planned] = [name for name, made in cluster.pods.items() if COMMIT_ANNOTATION in made["metadata"]["annotations"]]
    del cluster.pods[planned]
    restart(cluster, 3)
    [said] = said_of_losses(cluster)
    assert said.startswith(
        "PodGroup pg lacks 1 of its 3 pods since this scheduler began or longer: they were lost, or have succeeded and "
        "are deleted, or the number of its pods was raised after its start. The other 2 keep their GPUs"
    )


def test_what_was_lost_before_a_restart_evicts_no_pod_although_the_number_comes_later(cluster):
    """The pod may have succeeded, and been deleted since. Objects are seen only after the pods that refer to them."""
    cluster.limits = JobLimits(evict_broken_s=100.0)
    cluster.show(read_pod_group(pod_group(3)))
    for name in ("a", "b", "c"):
        cluster.see(pod_object(name, uid=name, labels=PG, whole=1))
    cluster.run("a", "b", "c")
    del cluster.pods["b"]
    restart(cluster, 3)
    for now in (100.0, 1000.0):
        cluster.now = now
        cluster.settle()
    assert not [action for action in cluster.done if isinstance(action, Evict)]
    cluster.scheduling.pod_gone("c", cluster.now)
    cluster.settle()
    cluster.now += 100.0
    cluster.settle()
    assert [action.pod.name for action in cluster.done if isinstance(action, Evict)] == ["a"]


@pytest.mark.parametrize("scheduler", ["gpu-scheduler", "other"])
def test_a_pod_whose_labels_are_edited_leaves_nothing_behind(scheduler):
    """Any author of pods may edit labels as often as they like."""
    scheduling = Scheduling(LeastFree(), schedulers={"gpu-scheduler"})
    scheduling.synced(0.0)
    for number in range(3):
        labels = {"scheduling.x-k8s.io/pod-group": f"pg-{number}"}
        made = pod_object("a", uid="a", labels=labels, whole=1, scheduler=scheduler)
        scheduling.pod_seen(pod_facts(made), 0.0)
        scheduling.gang_seen(read_pod_group(pod_group(2, name=f"pg-{number}")))
        scheduling.tick(0.0)
    assert scheduling.gang_objects.is_referred_to(ObjectKind.POD_GROUP)
    scheduling.pod_gone("a", 0.0)
    assert not scheduling.gang_objects.is_referred_to(ObjectKind.POD_GROUP)
