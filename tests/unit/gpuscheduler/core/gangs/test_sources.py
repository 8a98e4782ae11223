"""What pods and objects of other projects say about who belongs together."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs.gang import GangSource
from gpuscheduler.core.gangs.gang_objects import UNSEEN, GangObjects
from gpuscheduler.core.gangs.job_set import read_job_set
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.leader_worker_set import read_leader_worker_set
from gpuscheduler.core.gangs.native_pod_group import read_native_pod_group, read_workload
from gpuscheduler.core.gangs.pod_group import read_pod_group
from gpuscheduler.core.gangs.ray_cluster import read_ray_cluster
from gpuscheduler.core.pod_facts import MOST_READ, changed_on_node, pod_facts
from tests.unit.gpuscheduler.core.api_objects import container, pod_object
from tests.unit.gpuscheduler.core.gangs.workloads import (
    group_pod,
    job_set,
    job_set_pod,
    leader_worker_set,
    native_pod_group,
    owned,
    pod_group,
    ray_cluster,
    ray_pod,
    replicated_job,
)

EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
BY_NODE_SELECTOR = {**EXCLUSIVE, "alpha.jobset.sigs.k8s.io/node-selector": "true"}
KUEUE = {"kueue.x-k8s.io/pod-group-name": "g"}
PG = {"scheduling.x-k8s.io/pod-group": "pg"}
POD_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name"
MIN_AVAILABLE = "pod-group.scheduling.sigs.k8s.io/min-available"
COUNT = {"kueue.x-k8s.io/pod-group-total-count": "3"}


def gang(made, *objects):
    """Title of a pod's gang and its number of pods, when these objects were seen; None if it starts alone."""
    known = GangObjects({})
    for found in objects:
        known.seen(found)
    facts = known.resolved(pod_facts(made))
    if facts.job is None or facts.job.pods == 1:
        return None
    return facts.job.key_in("default").title, facts.job.pods


WORKERS = replicated_job("workers", jobs=2, pods=4)
DRIVER = replicated_job("driver")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (job_set(WORKERS), ("JobSet train", 8)),
        (job_set(WORKERS, DRIVER), ("JobSet train", 9)),
        (job_set(WORKERS, replicated_job("driver", gpus=False)), ("JobSet train", 8)),
        (job_set(WORKERS, DRIVER, startupPolicy={"startupPolicyOrder": "AnyOrder"}), ("JobSet train", 9)),
        (
            job_set(DRIVER, WORKERS, startupPolicy={"startupPolicyOrder": "InOrder"}),
            ("replicated job train/workers", 8),
        ),
        (
            job_set(DRIVER, {**WORKERS, "dependsOn": [{"name": "driver", "status": "Ready"}]}),
            ("replicated job train/workers", 8),
        ),
        (job_set(WORKERS, annotations=EXCLUSIVE), None),
        (job_set(replicated_job("workers", pods=4, job_annotations=EXCLUSIVE), DRIVER), None),
        (job_set(WORKERS, annotations=BY_NODE_SELECTOR), ("JobSet train", 8)),
        (
            job_set(replicated_job("workers", jobs=2, pods=4, annotations={"gpuagent.io/gang": "job"})),
            ("Job train-workers-1", 4),
        ),
        (job_set(replicated_job("workers", pods=4, job_spec={"completions": 2})), ("JobSet train", 2)),
        (job_set(replicated_job("workers", pods=4, job_spec={"completions": 9})), ("JobSet train", 4)),
        (job_set(replicated_job("workers")), None),
        (job_set(DRIVER), None),
    ],
)
def test_a_job_set_starts_together_as_far_as_its_controller_creates_it_together(found, expected):
    assert gang(job_set_pod("w", "workers", 1), read_job_set(found)) == expected


def test_entries_that_start_alone_do_not_count_in_the_whole_set():
    alone = replicated_job("sweep", jobs=5, annotations={"gpuagent.io/gang": "none"})
    racks = replicated_job("racks", pods=3, job_annotations=EXCLUSIVE)
    found = read_job_set(job_set(WORKERS, alone, racks))
    assert gang(job_set_pod("w", "workers"), found) == ("JobSet train", 8)
    assert gang(job_set_pod("r", "racks"), found) is None


OTHERWISE = {
    "labels": {"metadata": {"labels": {JOB_LABEL: "j", REPLICAS_LABEL: "2"}}},
    "PodGroup": {"metadata": {"labels": PG}},
    "native group": {"spec": {"schedulingGroup": {"podGroupName": "g"}}},
    "none": {"metadata": {"annotations": {"gpuagent.io/gang": "none"}}},
}


@pytest.mark.parametrize("said", OTHERWISE)
def test_pods_do_not_wait_for_others_of_their_workload_that_are_of_another_gang(said):
    """A template says so, for example with labels."""
    written = OTHERWISE[said]

    def change(template):
        template["metadata"] |= written.get("metadata", {})
        template["spec"] |= written.get("spec", {})

    of_workers, of_drivers = replicated_job("workers", pods=4), replicated_job("drivers", pods=3)
    change(of_workers["template"]["spec"]["template"])
    found = read_job_set(job_set(of_workers, of_drivers))
    assert gang(job_set_pod("w", "drivers"), found) == ("JobSet train", 3)
    group_set = leader_worker_set(leader=True)
    templates = group_set["spec"]["leaderWorkerTemplate"]
    change(templates["leaderTemplate"])
    found = read_leader_worker_set(group_set)
    assert gang(group_pod("w", 1, 1, size=4), found) == ("LeaderWorkerSet group serve-1", 3)


def test_pods_without_gpus_of_a_job_set_are_left_alone():
    made = job_set_pod("w", "driver")
    made["spec"]["containers"] = [{"name": "c"}]
    assert pod_facts(made).gang_ref is None


@pytest.mark.parametrize(
    ("found", "leader", "worker"),
    [
        (leader_worker_set(), ("LeaderWorkerSet group serve-1", 4), ("LeaderWorkerSet group serve-1", 4)),
        (leader_worker_set(leader=True), ("LeaderWorkerSet group serve-1", 4), ("LeaderWorkerSet group serve-1", 4)),
        (leader_worker_set(leader=False), None, ("LeaderWorkerSet group serve-1", 3)),
        (leader_worker_set(leader=True, worker=False), None, None),
        (leader_worker_set(startupPolicy="LeaderReady"), None, ("LeaderWorkerSet group serve-1", 3)),
        (
            leader_worker_set(annotations={"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}),
            None,
            ("LeaderWorkerSet group serve-1", 3),
        ),
    ],
)
def test_each_group_of_a_leader_worker_set_starts_together(found, leader, worker):
    read = read_leader_worker_set(found)
    templates = found["spec"]["leaderWorkerTemplate"]
    of_workers = templates["workerTemplate"]
    made = group_pod("l", 1, 0, size=4)
    made["spec"] |= templates.get("leaderTemplate", of_workers)["spec"]
    assert gang(made, read) == leader
    made = group_pod("w", 1, 2, size=4)
    made["spec"] |= of_workers["spec"]
    assert gang(made, read) == worker


LABELED = {
    "both": (True, True),
    "leaders": (True, False),
    "workers": (False, True),
}


@pytest.mark.parametrize(
    ("labeled", "number", "is_for_each_group"),
    [
        ("both", 2, True),
        ("both", 3, True),
        ("both", 4, False),
        ("workers", 2, True),
        ("workers", 3, False),
        # The leaders of all groups start together, and the workers of each.
        ("leaders", 2, False),
        ("leaders", 3, False),
    ],
)
@pytest.mark.parametrize("by", ["labels", "PodGroup"])
def test_labels_in_a_leader_worker_set_are_for_each_group_that_has_so_many_pods_with_them(
    labeled, number, is_for_each_group, by
):
    """There are three pods in a group."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(number)} if by == "labels" else PG
    of_leader, of_workers = (labels if is_labeled else {} for is_labeled in LABELED[labeled])
    found = read_leader_worker_set(leader_worker_set(leader=True, labels=(of_leader, of_workers)))
    objects = (found, read_pod_group(pod_group(number)))
    own = "job j" if by == "labels" else "PodGroup pg"
    expected = (f"{own}/serve-1" if is_for_each_group else own), number
    leader = group_pod("l", 1, 0, size=3, labels=of_leader)
    worker = group_pod("w", 1, 2, size=3, labels=of_workers)
    others = None, ("LeaderWorkerSet group serve-1", 2)
    assert gang(leader, *objects) == (expected if of_leader else others[0])
    assert gang(worker, *objects) == (expected if of_workers else others[1])


def test_labels_of_the_pods_that_are_there_count_before_the_templates():
    """The object has a later template, which has no labels."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "3"}
    known = GangObjects({})
    known.seen(read_leader_worker_set(leader_worker_set(leader=True)))
    leader = pod_facts(group_pod("l", 1, 0, size=3, labels=labels))
    worker = pod_facts(group_pod("w", 1, 1, size=3, labels=labels))
    assert known.resolved(worker).job.name == "j"
    known.seen_beside(leader)
    assert known.resolved(worker).job.name == "j/serve-1"
    known.gone_beside(leader.uid)
    assert known.resolved(worker).job.name == "j"


def test_a_leader_with_labels_does_not_wait_for_workers_that_are_created_after_it():
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "3"}
    found = read_leader_worker_set(leader_worker_set(labels=labels, startupPolicy="LeaderReady"))
    assert gang(group_pod("l", 1, 0, size=3, labels=labels), found) is None
    assert gang(group_pod("w", 1, 1, size=3, labels=labels), found) == ("job j/serve-1", 2)


@pytest.mark.parametrize("number", [2, 3, 9])
@pytest.mark.parametrize("by", ["labels", "PodGroup"])
def test_no_number_has_a_leader_wait_for_workers_that_are_created_after_it(by, number):
    """The number may be that of one group, or of all: the leader would wait for ever."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(number)} if by == "labels" else PG
    objects = (
        read_leader_worker_set(leader_worker_set(labels=labels, startupPolicy="LeaderReady")),
        read_pod_group(pod_group(number)),
    )
    own = "job j" if by == "labels" else "PodGroup pg"
    assert gang(group_pod("l", 1, 0, size=3, labels=labels), *objects) is None
    assert gang(group_pod("w", 1, 1, size=3, labels=labels), *objects) == (f"{own}/serve-1", 2)


@pytest.mark.parametrize("by", ["labels", "PodGroup"])
def test_leaders_of_all_groups_start_together_although_their_workers_are_created_after_them(by):
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "4"} if by == "labels" else PG
    made = leader_worker_set(leader=True, labels=(labels, {}), startupPolicy="LeaderReady")
    objects = (read_leader_worker_set(made), read_pod_group(pod_group(4)))
    own = "job j" if by == "labels" else "PodGroup pg"
    assert gang(group_pod("l", 1, 0, size=3, labels=labels), *objects) == (own, 4)


def test_labels_of_a_leader_worker_set_that_cannot_be_read_are_taken_to_be_in_both_templates():
    known = GangObjects({})
    known.readable(ObjectKind.LEADER_WORKER_SET, "may not be read")
    known.seen(read_pod_group(pod_group(3)))
    own = pod_facts(group_pod("w", 1, 1, size=3, labels={JOB_LABEL: "j", REPLICAS_LABEL: "3"}))
    of_pod_group = pod_facts(group_pod("w", 1, 1, size=3, labels=PG))
    assert known.resolved(own).job.name == "j/serve-1"
    assert known.resolved(of_pod_group).job.name == "pg/serve-1"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("4", "job j/train-workers-1"),
        ("8", "job j/train/workers"),
        ("9", "job j/train"),
        ("3", "job j/train"),
        ("10", "job j"),
    ],
)
def test_labels_in_the_template_of_a_job_set_are_for_what_they_have_the_number_of(number, expected):
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: number}
    made = job_set_pod("w", "workers", 1, labels=labels)
    found = job_set(replicated_job("workers", jobs=2, pods=4, labels=labels), replicated_job("driver", labels=labels))
    assert gang(made, read_job_set(found)) == (expected, int(number))


@pytest.mark.parametrize(
    ("number", "expected"),
    [("3", "job j/train-workers-1"), ("7", "job j/train/workers"), ("9", "job j")],
)
@pytest.mark.parametrize("others", [(), (DRIVER,)], ids=["one entry", "one entry with labels"])
def test_labels_in_one_template_of_a_job_set_may_say_less_than_it_has(number, expected, others):
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: number}
    made = job_set_pod("w", "workers", 1, labels=labels)
    found = job_set(replicated_job("workers", jobs=2, pods=4, labels=labels), *others)
    assert gang(made, read_job_set(found)) == (expected, int(number))


def test_labels_that_no_template_of_a_job_set_has_are_taken_to_be_on_all_of_its_pods():
    """An admission webhook may have written them."""
    made = job_set_pod("w", "workers", 1, labels={JOB_LABEL: "j", REPLICAS_LABEL: "9"})
    assert gang(made, read_job_set(job_set(WORKERS, DRIVER))) == ("job j/train", 9)


def test_labels_that_no_template_of_a_group_has_are_taken_to_be_on_all_of_its_pods():
    known = GangObjects({})
    known.seen(read_leader_worker_set(leader_worker_set(leader=True)))
    leader = pod_facts(group_pod("l", 1, 0, size=3, labels={JOB_LABEL: "j", REPLICAS_LABEL: "3"}))
    known.seen_beside(leader)
    assert known.resolved(leader).job.name == "j/serve-1"


ORDERS = {
    "in order": {"startupPolicy": {"startupPolicyOrder": "InOrder"}},
    "with a dependency": {},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("by", ["labels", "PodGroup"])
@pytest.mark.parametrize("number", [9, 12])
def test_no_number_has_an_entry_of_a_job_set_wait_for_one_that_is_created_after_it(by, number, order):
    """The number is that of the set, or of more: the first entry would wait for ever."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(number)} if by == "labels" else PG
    driver = replicated_job("driver", labels=labels)
    workers = replicated_job("workers", jobs=2, pods=4, labels=labels)
    if order == "with a dependency":
        workers["dependsOn"] = [{"name": "driver", "status": "Ready"}]
    objects = (read_job_set(job_set(driver, workers, **ORDERS[order])), read_pod_group(pod_group(number)))
    own = "job j" if by == "labels" else "PodGroup pg"
    assert gang(job_set_pod("d", "driver", labels=labels), *objects) is None
    assert gang(job_set_pod("w", "workers", 1, labels=labels), *objects) == (f"{own}/train/workers", 8)


@pytest.mark.parametrize("by", ["labels", "PodGroup"])
def test_no_number_has_a_pod_wait_for_those_that_are_created_when_it_has_a_node(by):
    """With exclusive topology, JobSet creates the other pods of a Job then."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "4"} if by == "labels" else PG
    workers = replicated_job("workers", pods=4, labels=labels)
    objects = (read_job_set(job_set(workers, annotations=EXCLUSIVE)), read_pod_group(pod_group(4)))
    assert gang(job_set_pod("w", "workers", labels=labels), *objects) is None


def test_labels_that_name_the_job_set_itself_need_no_second_name():
    made = job_set_pod("w", "workers", 1, labels={JOB_LABEL: "train", REPLICAS_LABEL: "9"})
    assert gang(made, read_job_set(job_set(WORKERS, DRIVER))) == ("job train", 9)


@pytest.mark.parametrize("label", ["training.kubeflow.org/job-name", "ray.io/cluster", "spark-app-selector"])
def test_one_template_of_labels_makes_a_job_for_each_workload(label):
    labels = {JOB_LABEL: "sweep", REPLICAS_LABEL: "2"}
    assert gang(pod_object(labels={**labels, label: "trial-7"}, whole=1)) == ("job sweep/trial-7", 2)
    assert gang(pod_object(labels={**labels, label: "sweep"}, whole=1)) == ("job sweep", 2)


def test_each_replica_of_a_ray_cluster_with_several_hosts_starts_together():
    found = read_ray_cluster(ray_cluster(hosts=4))
    assert gang(ray_pod("w", "xh3hf"), found) == ("Ray replica tune/gpus-xh3hf", 4)
    assert gang(ray_pod("w", "other"), found) == ("Ray replica tune/gpus-other", 4)


def test_workers_of_a_ray_cluster_with_one_host_start_alone():
    assert gang(ray_pod("w", None), read_ray_cluster(ray_cluster(hosts=1))) is None
    assert gang(ray_pod("w", None, annotations={"gpuagent.io/gang": "none"}, whole=1)) is None


@pytest.mark.parametrize(
    ("number", "expected"),
    [("4", "job j/tune/gpus-xh3hf"), ("3", "job j/tune/gpus-xh3hf"), ("12", "job j/tune")],
)
def test_labels_in_the_template_of_a_ray_cluster_are_for_each_replica_that_has_so_many_pods(number, expected):
    made = ray_pod("w", "xh3hf", labels={JOB_LABEL: "j", REPLICAS_LABEL: number})
    assert gang(made, read_ray_cluster(ray_cluster(hosts=4))) == (expected, int(number))


def test_labels_of_a_ray_cluster_that_cannot_be_read_are_for_all_of_its_workers():
    known = GangObjects({})
    known.readable(ObjectKind.RAY_CLUSTER, "may not be read")
    made = pod_facts(ray_pod("w", "xh3hf", labels={JOB_LABEL: "j", REPLICAS_LABEL: "12"}))
    assert known.resolved(made).job.name == "j/tune"


ROLES = {"master": ("0",), "worker": ("0", "1", "2")}


def test_pods_of_a_pytorch_job_are_one_job_as_the_training_operator_labels_them():
    """Version 1.9 writes these labels on each pod, over those of the template."""
    titles = set()
    for role, indexes in ROLES.items():
        for index in indexes:
            written = {
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
                "training.kubeflow.org/job-name": "trial-7",
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": index,
            }
            labels = {JOB_LABEL: "llama", REPLICAS_LABEL: "4", **written}
            titles.add(gang(owned(pod_object(labels=labels, whole=8), "PyTorchJob")))
    assert titles == {("job llama/trial-7", 4)}


def test_pods_of_a_pytorch_job_with_a_pod_group_of_the_coscheduling_plugin_need_no_labels():
    """The training operator writes the label if it is started with that plugin's name."""
    labels = {"training.kubeflow.org/job-name": "llama", "scheduling.x-k8s.io/pod-group": "llama"}
    found = read_pod_group(pod_group(4, name="llama"))
    assert gang(owned(pod_object(labels=labels, whole=8), "PyTorchJob"), found) == ("PodGroup llama", 4)


def test_a_pod_group_says_how_many_of_its_pods_start_together():
    labels = {"scheduling.x-k8s.io/pod-group": "pg"}
    found = read_pod_group(pod_group(3))
    group_set = read_leader_worker_set(leader_worker_set(labels=labels))
    assert gang(pod_object(labels=labels, whole=1), found) == ("PodGroup pg", 3)
    # Pods without GPUs count, as they do for the plugin.
    assert gang(pod_object(None, {"name": "c"}, labels=labels), found) == ("PodGroup pg", 3)
    assert gang(pod_object(labels=labels, whole=1), read_pod_group(pod_group(1))) is None
    # One label in a template that serves several groups.
    assert gang(group_pod("w", 1, 0, size=3, labels=labels), found, group_set) == ("PodGroup pg/serve-1", 3)
    assert gang(group_pod("w", 1, 0, size=2, labels=labels), found, group_set) == ("PodGroup pg", 3)


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        (2, "PodGroup pg/train-workers-1"),
        (4, "PodGroup pg/train-workers-1"),
        (5, "PodGroup pg/train"),
        (8, "PodGroup pg/train"),
        (9, "PodGroup pg"),
    ],
)
@pytest.mark.parametrize("labeled", [PG, {}], ids=["of the template", "of a webhook"])
def test_a_pod_group_in_a_job_set_is_for_each_job_that_has_so_many_pods(minimum, expected, labeled):
    found = read_job_set(job_set(replicated_job("workers", jobs=2, pods=4, labels=labeled)))
    made = job_set_pod("w", "workers", 1, labels=PG)
    by_entry = expected.replace("pg/train", "pg/train/workers") if expected == "PodGroup pg/train" else expected
    assert gang(made, found, read_pod_group(pod_group(minimum))) == (by_entry, minimum)


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        (2, "PodGroup pg/train"),
        (4, "PodGroup pg/train"),
        (9, "PodGroup pg/train"),
        (10, "PodGroup pg"),
    ],
)
def test_a_pod_group_in_a_job_set_is_for_all_jobs_if_one_of_them_has_fewer_pods(minimum, expected):
    """The driver is a part of what starts together, and would wait for ever if the workers were that alone."""
    workers = replicated_job("workers", jobs=2, pods=4, labels=PG)
    driver = replicated_job("driver", labels=PG)
    found = read_job_set(job_set(workers, driver))
    group = read_pod_group(pod_group(minimum))
    assert gang(job_set_pod("w", "workers", 1, labels=PG), found, group) == (expected, minimum)
    assert gang(job_set_pod("d", "driver", labels=PG), found, group) == (expected, minimum)


def test_entries_of_a_job_set_that_name_no_pod_group_do_not_count_in_it():
    workers = replicated_job("workers", jobs=2, pods=4, labels=PG)
    found = read_job_set(job_set(workers, replicated_job("driver")))
    made = job_set_pod("w", "workers", 1, labels=PG)
    assert gang(made, found, read_pod_group(pod_group(4))) == ("PodGroup pg/train-workers-1", 4)


def test_a_pod_group_and_a_job_set_of_one_name_need_no_second_name():
    labels = {"scheduling.x-k8s.io/pod-group": "train"}
    workers = replicated_job("workers", jobs=2, pods=4, labels=labels)
    found = read_job_set(job_set(workers, replicated_job("driver", labels=labels)))
    made = job_set_pod("w", "workers", 1, labels=labels)
    assert gang(made, found, read_pod_group(pod_group(9, name="train"))) == ("PodGroup train", 9)


def test_a_pod_group_counts_as_a_whole_where_job_sets_cannot_be_read():
    known = GangObjects({})
    known.readable(ObjectKind.JOB_SET, "may not be read")
    known.seen(read_pod_group(pod_group(4)))
    assert known.resolved(pod_facts(job_set_pod("w", "workers", 1, labels=PG))).job.name == "pg"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [({"gang": {"minCount": 3}}, ("PodGroup pg", 3)), ({"basic": {}}, None), ({"gang": "x"}, None), (None, None)],
)
def test_a_native_pod_group_counts_if_its_policy_is_gang(policy, expected):
    made = pod_object(whole=1)
    made["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
    assert gang(made, read_native_pod_group(native_pod_group(policy))) == expected


def test_a_workload_of_kubernetes_135_has_groups_and_replicas():
    made = pod_object(whole=1)
    made["spec"]["workloadRef"] = {"name": "w", "podGroup": "workers", "podGroupReplicaKey": "2"}
    groups = [{"name": "workers", "policy": {"gang": {"minCount": 4}}}, {"name": "driver", "policy": {"basic": {}}}]
    found = read_workload({"metadata": {"name": "w", "namespace": "default"}, "spec": {"podGroups": groups}})
    assert gang(made, found) == ("PodGroup w/workers/2", 4)
    made["spec"]["workloadRef"] = {"name": "w", "podGroup": "driver"}
    assert gang(made, found) is None


@pytest.mark.parametrize("mark", ["kueue.x-k8s.io/pod-group-serving", "kueue.x-k8s.io/pod-group-fast-admission"])
def test_a_kueue_pod_group_is_a_gang_unless_its_pods_come_one_by_one(mark):
    assert gang(pod_object(labels=KUEUE, annotations=COUNT, whole=1)) == ("Kueue pod group g", 3)
    assert gang(pod_object(labels=KUEUE, annotations={**COUNT, mark: "true"}, whole=1)) is None


def test_pod_group_labels_without_an_object_make_a_gang():
    labels = {POD_GROUP_NAME: "train", MIN_AVAILABLE: "3"}
    assert gang(pod_object(labels=labels, whole=1)) == ("pod group train", 3)
    # All of its pods count, as they do for ACK's scheduler.
    assert gang(pod_object(labels=labels)) == ("pod group train", 3)


def test_pod_group_labels_of_two_workloads_of_one_template_make_two_gangs():
    labels = {POD_GROUP_NAME: "train", MIN_AVAILABLE: "3", "training.kubeflow.org/job-name": "run-7"}
    assert gang(pod_object(labels=labels, whole=1)) == ("pod group train/run-7", 3)


@pytest.mark.parametrize("labels", [{POD_GROUP_NAME: "train"}, {MIN_AVAILABLE: "3"}])
def test_half_of_the_pod_group_labels_makes_no_gang(labels):
    assert gang(pod_object(labels=labels, whole=1)) is None


def test_the_more_explicit_source_counts():
    """Each source is taken away in its turn."""
    made = group_pod("w", 1, 0, labels={JOB_LABEL: "j", REPLICAS_LABEL: "5", **KUEUE}, annotations=COUNT)
    made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "pg"
    made["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
    labels = made["metadata"]["labels"]
    labels.update({POD_GROUP_NAME: "pgl", MIN_AVAILABLE: "4"})

    known = GangObjects({})
    known.seen(read_leader_worker_set(leader_worker_set()))

    def source():
        return known.resolved(pod_facts(made)).job.source

    assert source() is GangSource.LABELS
    del labels[JOB_LABEL]
    assert source() is GangSource.NATIVE_POD_GROUP
    del made["spec"]["schedulingGroup"]
    assert source() is GangSource.POD_GROUP
    del labels["scheduling.x-k8s.io/pod-group"]
    assert source() is GangSource.POD_GROUP_LABELS
    del labels[MIN_AVAILABLE]
    assert source() is GangSource.LEADER_WORKER_SET
    del labels["leaderworkerset.sigs.k8s.io/name"]
    assert source() is GangSource.KUEUE


def test_an_author_may_have_pods_start_alone_but_not_those_of_our_labels():
    alone = {"gpuagent.io/gang": "none"}
    assert gang(group_pod("w", 1, 0, annotations=alone), read_leader_worker_set(leader_worker_set())) is None
    assert gang(pod_object(labels=KUEUE, annotations={**COUNT, **alone}, whole=1)) is None
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    assert gang(pod_object(labels=labels, annotations=alone, whole=1)) == ("job j", 2)


@pytest.mark.parametrize("made", [job_set_pod("w", "workers"), group_pod("w", 1, 0), ray_pod("w", "a")])
def test_a_pod_that_copies_the_labels_of_a_controller_is_alone(made):
    """Such as one for debugging."""
    assert pod_facts(made).gang_ref
    assert pod_facts(owned(made, "ReplicaSet")).gang_ref is None
    made["metadata"]["ownerReferences"] = []
    assert pod_facts(made).gang_ref is None


@pytest.mark.parametrize("label", ["leaderworkerset.sigs.k8s.io/group-index"])
@pytest.mark.parametrize("odd", ["", "x", "-1", "1/2", "\u00b2"])
def test_odd_numbers_in_labels_are_no_group(label, odd):
    made = group_pod("w", 1, 0)
    made["metadata"]["labels"][label] = odd
    assert pod_facts(made).gang_ref is None


ODD = [None, 7, "x", [], {}, [7], {"x": 7}, -1, True, 2**70]


@pytest.mark.parametrize(
    "read",
    [
        read_job_set,
        read_leader_worker_set,
        read_pod_group,
        read_ray_cluster,
        read_native_pod_group,
        read_workload,
    ],
)
@pytest.mark.parametrize("odd", ODD)
def test_odd_objects_are_read(read, odd):
    for found in (
        {"metadata": odd, "spec": odd},
        {"spec": {"replicatedJobs": odd, "startupPolicy": odd, "leaderWorkerTemplate": odd, "podGroups": odd}},
        {"spec": {"replicatedJobs": [{"name": odd, "replicas": odd, "dependsOn": odd, "template": odd}]}},
        {
            "spec": {
                "replicatedJobs": [{"template": {"spec": {"parallelism": odd, "completions": odd, "template": odd}}}]
            }
        },
        {"spec": {"workerGroupSpecs": odd}},
        {"spec": {"workerGroupSpecs": [{"groupName": odd, "numOfHosts": odd}]}},
        {"spec": {"minMember": odd, "schedulingPolicy": {"gang": {"minCount": odd}}, "podGroups": [{"policy": odd}]}},
    ):
        found.setdefault("metadata", {"name": "n", "namespace": "default"})
        known = read(found)
        for made in (
            job_set_pod("w", "workers"),
            group_pod("w", 1, 0),
            ray_pod("w", "xh3hf"),
            pod_object(labels={"scheduling.x-k8s.io/pod-group": "n"}),
        ):
            ref = pod_facts(made).gang_ref
            if ref and ref.kind is known.key.kind:
                known.gang_of(ref)


@pytest.mark.parametrize("odd", ODD)
def test_odd_pods_are_read(odd):
    made = group_pod("w", 1, 0)
    made["spec"]["schedulingGroup"] = odd
    made["spec"]["workloadRef"] = odd
    made["metadata"]["annotations"] = {"leaderworkerset.sigs.k8s.io/size": odd, "gpuagent.io/gang": odd}
    pod_facts(made)
    made["metadata"]["annotations"] = odd
    made["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": odd, "jobset.sigs.k8s.io/jobset-name": odd}
    pod_facts(made)


def test_a_kind_that_cannot_be_seen_is_said_and_labels_do_without_it():
    known = GangObjects({})
    waiting = known.resolved(pod_facts(job_set_pod("w", "workers")))
    assert (waiting.job.pods, waiting.job.unknown) == (None, UNSEEN)
    known.readable(ObjectKind.JOB_SET, "the cluster has no JobSets")
    assert known.resolved(waiting).job.unknown == "the cluster has no JobSets"
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "4"}
    own = known.resolved(pod_facts(job_set_pod("w", "workers", labels=labels)))
    assert (own.job.name, own.job.pods) == ("j", 4)


def test_a_large_pod_on_a_node_stays_in_its_gang():
    made = job_set_pod("w", "workers")
    made["spec"]["containers"] = [container(f"c{n}", mem=1) for n in range(MOST_READ + 1)]
    made["spec"]["nodeName"] = "n1"
    facts = pod_facts(made)
    again = changed_on_node(made, facts)
    assert facts.gang_ref
    assert (again.gang_ref, again.job) == (facts.gang_ref, facts.job)
