"""What people see of a node agrees with what the scheduler counts on it."""

from gpuagent.domain.fleet.node_problems import NodeProblem, condition_message
from gpuagent.domain.fleet.node_summary import Amount, FreeShare, node_reading
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.pages.node_view import Cluster, node_view, pod_views
from tests.unit.gpuscheduler.core.api_objects import OF_NODES, LeastFree, pod

BOTH = [NodeGpu(n, memory=40, core=100) for n in range(2)]
WHOLE = [NodeGpu(n, whole=True) for n in range(2)]


def node(name="n1", gpus=BOTH, mode="core_mem", problems=(), ready="True", unit_mib=1024, **amounts):
    names = {"mem": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE}
    blocked = [problem for problem in problems if problem.severity == "blocking"]
    agent = {
        "type": "GPUAgentReady",
        "status": "False" if blocked else "True",
        "reason": blocked[0].reason if blocked else "Ready",
        "message": condition_message(f"mode {mode}, 2 GPUs", problems),
    }
    published = node_gpus_text(NodeGpus(tuple(gpus), both=any(gpu.core for gpu in gpus), unit_mib=unit_mib))
    return {
        "metadata": {
            "name": name,
            "annotations": {NODE_GPUS_ANNOTATION: published},
            "labels": {"aliyun.accelerator/nvidia_name": "A100", "aliyun.accelerator/nvidia_count": "2"},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": ready}, agent],
            "allocatable": {"cpu": "32", **OF_NODES, **{names[key]: str(units) for key, units in amounts.items()}},
        },
    }


def scheduled(*nodes):
    core = Scheduling(LeastFree())
    for found in nodes:
        name = found["metadata"]["name"]
        core.readings[name] = node_reading(found)
        facts = node_facts(found)
        if facts:
            core.node_seen(facts)
    core.synced(0.0)
    return core


def cluster(core):
    return Cluster(core.usage.nodes, core.readings, core.pods, core.reservations, core.others)


def view(core, name="n1"):
    return node_view(name, cluster(core))


def reserve(scheduling, **asked):
    found = pod(**asked)
    scheduling.pod_seen(found, 0.0)
    assert scheduling.filter(found, ["n1"], 0.0).nodes == ("n1",)
    return found


def test_it_counts_what_the_scheduler_counts():
    core = scheduled(node(mem=80, core=200))
    found = reserve(core, mem=30, core=100)
    seen = view(core)
    assert (seen.summary.memory, seen.summary.core) == (Amount(30, 80), Amount(100, 200))
    assert seen.summary.largest == FreeShare(memory=40, core=100)
    (held,) = pod_views(core.usage.nodes["n1"], cluster(core))
    assert (held.name, held.reserved, held.held, held.whole) == (str(found.name), True, Amounts(30, 100), 0)
    assert (seen.summary.pods, seen.summary.waiting) == (1, 1)
    assert sorted(gpu.pods for gpu in seen.gpus) == [0, 1]
    assert (seen.summary.mode, seen.summary.model) == ("core_mem", "A100")


def test_whole_gpus_are_held_whole():
    core = scheduled(node(gpus=WHOLE, mode="topology", whole=2))
    reserve(core, whole=1)
    seen = view(core)
    assert (seen.summary.whole, seen.summary.largest) == (Amount(1, 2), FreeShare(gpus=1))
    assert pod_views(core.usage.nodes["n1"], cluster(core))[0].whole == 1


def test_a_pod_whose_gpus_are_not_known_counts_on_each_and_is_named():
    core = scheduled(node(mem=80, core=200))
    bound = pod(mem=10, core=10, on="n1")
    core.pod_seen(bound, 0.0)
    seen = view(core)
    (problem,) = seen.summary.problems
    assert (problem.severity, problem.reason) == ("warning", "PodsWithoutKnownGPUs")
    assert str(bound.name) in problem.message
    assert [gpu.held_memory for gpu in seen.gpus] == [10, 10]
    assert [gpu.pods for gpu in seen.gpus] == [1, 1]


def test_a_node_whose_agent_offers_no_gpus_is_there_with_the_reason():
    """It is none of the scheduler's nodes then, and the one that an operator looks for."""
    down = NodeProblem("blocking", "IsolationMissing", "no driver isolates memory")
    core = scheduled(node(gpus=[], mode="cgpu", problems=[down]))
    assert not core.usage.nodes
    summary = view(core).summary
    assert (summary.mode, summary.gpus, summary.usable, summary.is_ready) == ("cgpu", 2, 0, False)
    assert summary.problems == (down,)


def test_a_node_that_gives_gpus_by_claims_is_there():
    summary = view(scheduled(node(gpus=[], mode="dra"))).summary
    assert (summary.mode, summary.gpus, summary.problems) == ("dra", 2, ())


def test_a_node_whose_amounts_are_at_zero_has_nothing_free_and_a_reason():
    core = scheduled(node(mem=0, core=200))
    summary = view(core).summary
    assert not summary.largest
    (problem,) = summary.problems
    assert (problem.severity, problem.reason) == ("blocking", "AmountAtZero")
    assert problem.message.startswith("aliyun.com/gpu-mem is 0 in the node's allocatable amounts")


def test_the_reason_of_a_silent_kubelet_is_said_once():
    summary = view(scheduled(node(ready="Unknown", mem=0, core=0))).summary
    assert [problem.reason for problem in summary.problems] == ["NodeNotReady"]


def test_an_annotation_that_cannot_be_read_is_a_problem():
    broken = node(mem=80, core=200)
    broken["metadata"]["annotations"][NODE_GPUS_ANNOTATION] = "nonsense"
    broken["status"]["allocatable"]["aliyun.com/gpu-count"] = "2"
    summary = view(scheduled(broken)).summary
    assert [problem.reason for problem in summary.problems] == ["GPUsNotReadable"]


def test_a_node_that_is_gone_has_no_view():
    assert view(scheduled(), "n1") is None
