"""Which pods are moved so that another gets room, and which never are."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.constraints.node_site import node_site
from gpuscheduler.core.constraints.selectors import Requirement, Selector
from gpuscheduler.core.defragment.budgets import DisruptionBudget
from gpuscheduler.core.defragment.move_plan import MovePlan, NoPlan
from gpuscheduler.core.defragment.planner import SEARCH_TRIES, search, search_steps
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import pod, pod_object, shared_node
from tests.unit.gpuscheduler.core.defragment.fragmented import Fragmented, gpus, moves, running


def halves(**given):
    """Two nodes with two GPUs of 10 each: three GPUs have 4 free, and one has 5."""
    cluster = Fragmented(shared_node("n1"), shared_node("n2"))
    return cluster.run(
        running("a", "n1", 0, 6, **given),
        running("b", "n1", 1, 6, **given),
        running("c", "n2", 0, 6, **given),
        running("d", "n2", 1, 4, **given),
    )


def test_the_pod_that_fits_elsewhere_leaves_and_the_waiting_one_gets_its_gpu():
    plan = search(pod("w", mem=10), halves().surroundings, 1, 0.0)
    assert isinstance(plan, MovePlan)
    assert moves(plan) == {"d": ("n1", [0])} or moves(plan) == {"d": ("n1", [1])} or moves(plan) == {"d": ("n2", [0])}
    assert (plan.node, gpus(plan.choice)) == ("n2", [1])


def test_a_pod_that_fits_now_needs_no_plan():
    plan = search(pod("w", mem=6), halves().surroundings, 3, 0.0)
    assert plan == NoPlan("it fits on node n2 as it is")


def test_no_more_pods_leave_than_allowed():
    cluster = Fragmented(shared_node("n1", gpus=1), shared_node("n2", gpus=2))
    cluster.run(
        *(running(f"a{number}", "n1", 0, 2) for number in range(3)),
        *(running(f"b{number}", "n2", number, 8) for number in range(2)),
    )
    waiting = pod("w", mem=8)
    assert isinstance(search(waiting, cluster.surroundings, 1, 0.0), NoPlan)
    plan = search(waiting, cluster.surroundings, 2, 0.0)
    assert isinstance(plan, MovePlan)
    assert len(plan.moves) == 2
    assert sorted(moves(plan).values()) == [("n2", [0]), ("n2", [1])]


def test_a_pod_is_moved_to_another_gpu_of_its_node():
    cluster = Fragmented(shared_node("n1", gpus=2)).run(running("a", "n1", 0, 4), running("b", "n1", 1, 4))
    plan = search(pod("w", mem=10), cluster.surroundings, 1, 0.0)
    assert isinstance(plan, MovePlan)
    (move,) = plan.moves
    assert move.node == "n1"
    assert gpus(move.choice) != gpus(plan.choice)


def test_a_pod_leaves_so_that_the_one_that_is_moved_has_room():
    """The large one goes to where the small one is, and the small one to a third GPU."""
    cluster = Fragmented(*(shared_node(name, gpus=1) for name in ("n1", "n2", "n3")))
    cluster.run(
        running("fixed", "n1", 0, 2, kind=""),
        running("large", "n1", 0, 6),
        running("also-fixed", "n2", 0, 3, kind=""),
        running("small", "n2", 0, 4),
        running("other", "n3", 0, 6, kind=""),
    )
    waiting = pod("w", mem=8)
    assert isinstance(search(waiting, cluster.surroundings, 1, 0.0), NoPlan)
    plan = search(waiting, cluster.surroundings, 2, 0.0)
    assert isinstance(plan, MovePlan)
    assert moves(plan) == {"large": ("n2", [0]), "small": ("n3", [0])}


def annotated(key, value):
    return {"annotations": {key: value}}


def with_spec(**spec):
    return {"change": lambda made: made["spec"].update(spec)}


PROTECTED = {
    "gang by labels": {"labels": {JOB_LABEL: "job", REPLICAS_LABEL: "2"}},
    "gang of coscheduling": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
    "gang of JobSet": {
        "labels": {"jobset.sigs.k8s.io/jobset-name": "g", "jobset.sigs.k8s.io/replicatedjob-name": "r"},
        "kind": "Job",
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    },
    "gang of LeaderWorkerSet": {
        "labels": {"leaderworkerset.sigs.k8s.io/name": "g", "leaderworkerset.sigs.k8s.io/group-index": "0"},
        "kind": "StatefulSet",
        "annotations": {"leaderworkerset.sigs.k8s.io/size": "2"},
    },
    "gang of Kueue": {
        "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    },
    "native gang": with_spec(schedulingGroup={"podGroupName": "g"}),
    "of Kueue": {"labels": {"kueue.x-k8s.io/managed": "true"}},
    "not safe to evict": annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    "not to be disrupted": annotated("karpenter.sh/do-not-disrupt", "true"),
    "not to be disrupted, old": annotated("karpenter.sh/do-not-evict", "true"),
    "not to be evicted": annotated("descheduler.alpha.kubernetes.io/prefer-no-eviction", ""),
    "no controller": {"kind": ""},
    "no controller, but safe": {
        "kind": "",
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    },
    "a Job": {"kind": "Job"},
    "a DaemonSet": {"kind": "DaemonSet"},
    "a DaemonSet, but safe": {
        "kind": "DaemonSet",
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    },
    "a static pod": {"kind": "Node"},
    "a mirror pod": annotated("kubernetes.io/config.mirror", "x"),
    "higher priority": {"priority": 1},
    "kube-system": {"namespace": "kube-system"},
    "ending": {"change": lambda made: made["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z")},
    "a claimed volume": with_spec(volumes=[{"persistentVolumeClaim": {"claimName": "c"}}]),
    "an ephemeral volume": with_spec(volumes=[{"ephemeral": {}}]),
    "a directory of the node": with_spec(volumes=[{"hostPath": {"path": "/"}}]),
    "a local volume": with_spec(volumes=[{"emptyDir": {}}]),
    "claimed devices": with_spec(resourceClaims=[{"name": "c"}]),
    "anti-affinity": with_spec(
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}}
    ),
    "spread": with_spec(topologySpreadConstraints=[{"whenUnsatisfiable": "DoNotSchedule"}]),
    "host network": with_spec(hostNetwork=True),
    "a long grace period": with_spec(terminationGracePeriodSeconds=3600),
    "another node is not selected": with_spec(nodeSelector={"zone": "a"}),
    "its own node by name": with_spec(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                    ]
                }
            }
        }
    ),
}


@pytest.mark.parametrize("given", PROTECTED.values(), ids=PROTECTED.keys())
def test_a_protected_pod_stays(given):
    cluster = Fragmented(shared_node("n1", gpus=1), shared_node("n2", gpus=1))
    cluster.run(running("kept", "n1", 0, 4, **given), running("other", "n2", 0, 6, kind=""))
    assert isinstance(search(pod("w", mem=10), cluster.surroundings, 3, 0.0), NoPlan)


ALLOWED = {
    "a StatefulSet": {"kind": "StatefulSet"},
    "a Job that is safe": {
        "kind": "Job",
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    },
    "a local volume that is safe": {
        **with_spec(volumes=[{"emptyDir": {}}]),
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    },
    "a volume in memory": with_spec(volumes=[{"emptyDir": {"medium": "Memory"}}, {"configMap": {}}]),
    "a lower priority": {"priority": -1},
    "a wish": with_spec(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]),
    "other values": annotated("karpenter.sh/do-not-disrupt", "false"),
    "odd values": {"change": lambda made: made["spec"].update(volumes=7, affinity=[], topologySpreadConstraints="x")},
}


@pytest.mark.parametrize("given", ALLOWED.values(), ids=ALLOWED.keys())
def test_another_pod_is_moved(given):
    cluster = Fragmented(shared_node("n1", gpus=1), shared_node("n2", gpus=1))
    cluster.run(running("moved", "n1", 0, 4, **given), running("other", "n2", 0, 6, kind=""))
    plan = search(pod("w", mem=10), cluster.surroundings, 1, 0.0)
    assert isinstance(plan, MovePlan)
    assert moves(plan) == {"moved": ("n2", [0])}


WAITING = {
    "a gang": {"labels": {JOB_LABEL: "job", REPLICAS_LABEL: "2"}},
    "gated": {"gates": ["example.com/later"]},
}


def test_nothing_is_moved_for_a_pod_whose_rules_are_not_all_read():
    made = pod_object("w", mem=10)
    made["spec"]["nodeSelector"] = {f"label-{number}": "x" for number in range(1000)}
    found = search(pod_facts(made), halves().surroundings, 1, 0.0)
    assert isinstance(found, NoPlan)
    assert "not all of its rules are known" in found.why


@pytest.mark.parametrize("given", WAITING.values(), ids=WAITING.keys())
def test_nothing_is_moved_for_such_a_pod(given):
    assert isinstance(search(pod("w", mem=10, **given), halves().surroundings, 1, 0.0), NoPlan)


def test_a_node_that_is_passed_over_takes_no_pod():
    cluster = Fragmented(shared_node("n1", gpus=1), shared_node("n2", gpus=1))
    cluster.run(running("a", "n1", 0, 4), running("b", "n2", 0, 4))
    assert isinstance(search(pod("w", mem=10), cluster.surroundings, 1, 0.0), MovePlan)
    cluster.passed_over = frozenset({"n2"})
    assert isinstance(search(pod("w", mem=10), cluster.surroundings, 1, 0.0), NoPlan)


def tainted_node(name):
    facts = shared_node(name, gpus=1)
    made = {
        "metadata": {"name": name, "labels": {}},
        "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
    }
    return replace(facts, site=node_site(made))


def test_a_taint_keeps_a_moved_pod_off():
    cluster = Fragmented(shared_node("n1", gpus=1), tainted_node("n2"))
    cluster.run(running("a", "n1", 0, 4), running("b", "n2", 0, 4, kind=""))
    assert isinstance(search(pod("w", mem=10), cluster.surroundings, 1, 0.0), NoPlan)


def test_cpu_that_is_taken_keeps_a_moved_pod_off():
    cluster = Fragmented(shared_node("n1", gpus=1), shared_node("n2", gpus=1, cpu="4"))

    def asks_for_cpu(made):
        made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "5"}

    cluster.run(running("a", "n1", 0, 4, change=asks_for_cpu), running("b", "n2", 0, 4, kind=""))
    assert isinstance(search(pod("w", mem=10), cluster.surroundings, 1, 0.0), NoPlan)


def budget(allowed, *, name="b", **labels):
    requirements = tuple(Requirement(key, "In", frozenset({value})) for key, value in labels.items())
    return DisruptionBudget("default", name, f"uid-{name}", Selector(requirements), allowed)


def test_a_budget_bounds_the_evictions():
    cluster = Fragmented(shared_node("n1", gpus=1), shared_node("n2", gpus=2))
    cluster.run(
        *(running(f"a{number}", "n1", 0, 3, labels={"app": "a"}) for number in range(2)),
        *(running(f"b{number}", "n2", number, 7, kind="") for number in range(2)),
    )
    waiting = pod("w", mem=8)
    for allowed, is_possible in ((0, False), (1, False), (2, True)):
        cluster.budgets.seen(budget(allowed, app="a"))
        assert isinstance(search(waiting, cluster.surroundings, 3, 0.0), MovePlan) is is_possible, allowed
    cluster.budgets.seen(budget(9, name="second", app="a"))
    assert isinstance(search(waiting, cluster.surroundings, 3, 0.0), NoPlan), "the Eviction API refuses two budgets"
    cluster.budgets.gone("uid-second")
    assert isinstance(search(waiting, cluster.surroundings, 3, 0.0), MovePlan)


def test_a_budget_of_other_pods_does_not_count():
    cluster = halves(labels={"app": "a"})
    cluster.budgets.seen(budget(0, app="other"))
    assert isinstance(search(pod("w", mem=10), cluster.surroundings, 1, 0.0), MovePlan)


def test_a_pod_of_several_gpus_gets_them():
    cluster = Fragmented(shared_node("n1", gpus=3), shared_node("n2", gpus=1))
    cluster.run(
        *(running(f"a{number}", "n1", number, 3) for number in range(2)),
        running("b", "n1", 2, 1, kind=""),
        running("c", "n2", 0, 4, kind=""),
    )
    plan = search(pod("w", mem=20, gpu_count=2), cluster.surroundings, 2, 0.0)
    assert isinstance(plan, MovePlan)
    assert gpus(plan.choice) == [0, 1]
    assert moves(plan).keys() == {"a0", "a1"}


def random_cluster(rng):
    """Up to four nodes of up to three GPUs, most of them half full; some pods must stay."""
    nodes = [shared_node(f"n{row}", gpus=int(rng.integers(1, 4))) for row in range(int(rng.integers(2, 5)))]
    cluster = Fragmented(*nodes)
    count = 0
    for facts in nodes:
        for gpu in facts.gpus.gpus:
            free = 10
            for size in rng.integers(1, 7, int(rng.integers(1, 4))).tolist():
                if size > free:
                    continue
                kind = "ReplicaSet" if rng.random() < 0.7 else ""
                cluster.run(running(f"p{count}", facts.name, gpu.minor, size, kind=kind))
                free -= size
                count += 1
    return cluster


def exact(cluster, need, most):
    """Whether any set of at most `most` pods can be moved so that the pod that waits fits."""
    free = [amounts.memory for node in cluster.usage.nodes.values() for amounts in node.free]
    gpu_of = {}
    number = 0
    for name, node in cluster.usage.nodes.items():
        for gpu in node.facts.gpus.gpus:
            gpu_of[name, gpu.minor] = number
            number += 1
    movable = []
    for user in cluster.pods.values():
        if not user.mobility.why_not:
            ((minor, amounts),) = user.used
            movable.append((amounts.memory, gpu_of[user.node, minor]))

    def fit_all(sizes, left):
        if not sizes:
            return True
        first, *others = sizes
        for gpu, units in enumerate(left):
            if units >= first:
                left[gpu] -= first
                if fit_all(others, left):
                    return True
                left[gpu] += first
        return False

    for count in range(most + 1):
        for moved in combinations(movable, count):
            left = list(free)
            for size, gpu in moved:
                left[gpu] += size
            if fit_all([need, *(size for size, _ in moved)], left):
                return count
    return None


@pytest.mark.parametrize("seed", range(150))
def test_random_clusters_against_all_sets_of_moves(seed):
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng)
    need = int(rng.integers(4, 11))
    most = int(rng.integers(1, 4))
    plan = search(pod("w", mem=need), cluster.surroundings, most, 0.0)
    fewest = exact(cluster, need, most)
    if fewest is None:
        assert isinstance(plan, NoPlan)
        assert not plan.gave_up
        return
    if fewest == 0:
        assert isinstance(plan, NoPlan)
        assert "as it is" in plan.why
        return
    assert isinstance(plan, MovePlan)
    assert len(plan.moves) == fewest
    check(cluster, plan, most)


def check(cluster, plan, most):
    """Carry the plan out on paper: all of it fits, and nothing protected was touched."""
    assert 1 <= len(plan.moves) <= most
    assert len({move.pod.uid for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        assert not move.pod.mobility.why_not
        cluster.usage.release(move.pod.uid)
    cluster.usage.use("w", plan.node, plan.choice.used)
    for move in plan.moves:
        cluster.usage.use(f"{move.pod.uid}-moved", move.node, move.choice.used)
    for found in cluster.usage.nodes.values():
        assert all(amounts.memory >= 0 for amounts in found.free)


def test_the_search_is_bounded_in_a_large_cluster():
    """Whatever authors of pods write, calls wait for the search."""
    cluster = Fragmented(*(shared_node(f"n{row}", gpus=8, memory=40) for row in range(150)))
    for row in range(150):
        for gpu in range(8):
            cluster.run(*(running(f"p{row}-{gpu}-{number}", f"n{row}", gpu, 7) for number in range(5)))
    steps = search_steps(pod("w", mem=12), cluster.surroundings, 3, 0.0)
    with pytest.raises(StopIteration) as end:
        for _ in range(SEARCH_TRIES):
            next(steps)
    assert end.value.value.gave_up
