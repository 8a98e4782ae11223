"""kube-scheduler writes the number of nodes before a reason, and counts equal ones: its message has to read well."""

from collections import Counter

import pytest

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_COUNT, GPU_MEM, JOB_LABEL, MODE_LABEL, REPLICAS_LABEL
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.scheduling import Scheduling
from tests.unit.gpuscheduler.core.api_objects import OF_NODES, LeastFree, container, pod, pod_object


def labeled(name, gpus, mode, **rules):
    """A node whose agent publishes these GPUs."""
    metadata = {
        "name": name,
        "annotations": {NODE_GPUS_ANNOTATION: node_gpus_text(NodeGpus(tuple(gpus), **rules))},
        "labels": {MODE_LABEL: mode},
    }
    allocatable = {
        "cpu": "32",
        **OF_NODES,
        GPU_MEM: str(sum(gpu.memory for gpu in gpus)),
        "aliyun.com/gpu-core.percentage": str(sum(gpu.core for gpu in gpus)),
        "aliyun.com/gpu": str(sum(gpu.whole for gpu in gpus)),
    }
    return node_facts({"metadata": metadata, "status": {"allocatable": allocatable}})


def shared(name="n1", memory=40, mode="cgpu", usable=2, **rules):
    return labeled(name, [NodeGpu(n, memory, usable=n < usable) for n in range(2)], mode, **rules)


def whole(name="n1", mode="topology", usable=4):
    return labeled(name, [NodeGpu(n, whole=True, usable=n < usable) for n in range(4)], mode)


def core_mem(name="n1"):
    return labeled(name, [NodeGpu(n, 40, 100) for n in range(2)], "core_mem", core_step=5, both=True)


def of_another_plugin(name="n1"):
    """The size of a unit is not known."""
    amounts = {"cpu": "32", **OF_NODES, GPU_MEM: "40", GPU_COUNT: "1"}
    return node_facts({"metadata": {"name": name}, "status": {"allocatable": amounts}})


def cluster(*nodes, running=()):
    scheduling = Scheduling(LeastFree())
    for node in nodes:
        scheduling.node_seen(node)
    scheduling.synced(0.0)
    for given in running:
        asked = pod(**given)
        scheduling.pod_seen(asked, 0.0)
        assert scheduling.filter(asked, list(scheduling.usage.nodes), 0.0).nodes
    return scheduling


def counted(scheduling, asked):
    """kube-scheduler's message."""
    answer = scheduling.filter(asked, list(scheduling.usage.nodes), 0.0)
    assert not answer.nodes
    counts = Counter({**answer.unresolvable, **answer.failed}.values())
    return sorted(f"{count} {reason}" for reason, count in counts.items())


SHORT = {
    "memory": (shared(), [{"mem": 10}, {"mem": 35}], {"mem": 36}, "at most 30 GiB free on one GPU, 36 GiB wanted"),
    "units of 256 MiB": (
        shared(unit_mib=256),
        [{"mem": 39}, {"mem": 39}],
        {"mem": 4},
        "at most 256 MiB free on one GPU, 1 GiB wanted",
    ),
    "units of unknown size": (
        of_another_plugin(),
        [{"mem": 10}],
        {"mem": 36},
        "at most 30 of aliyun.com/gpu-mem free on one GPU, 36 of aliyun.com/gpu-mem wanted",
    ),
    "compute": (
        core_mem(),
        [{"mem": 5, "core": 80}, {"mem": 5, "core": 80}],
        {"mem": 5, "core": 30},
        "at most 20 % of compute free on one GPU, 30 % wanted",
    ),
    "both on one GPU": (
        core_mem(),
        [{"mem": 35, "core": 30}, {"mem": 10, "core": 80}],
        {"mem": 20, "core": 50},
        "no GPU with 20 GiB and 50 % of compute free",
    ),
    "several GPUs": (
        shared(),
        [{"mem": 30}],
        {"mem": 40, "gpu_count": 2},
        "at most 1 GPUs with 20 GiB free, 2 wanted (label aliyun.com/gpu-count)",
    ),
    "whole GPUs": (whole(), [{"whole": 2}], {"whole": 3}, "at most 2 unused GPUs, 3 wanted"),
}


@pytest.mark.parametrize("case", SHORT)
def test_a_reason_says_what_is_free_and_what_is_wanted(case):
    node, running, wanted, text = SHORT[case]
    assert counted(cluster(node, running=running), pod(**wanted)) == [f"1 node(s) had {text}"]


def test_containers_that_have_no_room_together_are_named():
    containers = [container(f"c{n}", mem=30) for n in range(3)]
    text = "1 node(s) had no room for 3 containers that want 90 GiB together"
    assert counted(cluster(shared()), pod_facts(pod_object(None, *containers))) == [text]


NEVER = {
    "memory of whole GPUs": (whole(), {"mem": 8}, "share no GPU memory: their mode is topology"),
    "the label is removed": (whole(mode=""), {"mem": 8}, "share no GPU memory: their mode is topology"),
    "the label is of a mode not in force": (
        whole(mode="cgpu"),
        {"mem": 8},
        "share no GPU memory: their mode is topology",
    ),
    "whole GPUs of shared ones": (shared(), {"whole": 1}, "give no whole GPUs: their mode is cgpu"),
    "the mode is not known": (shared(mode="topology"), {"whole": 1}, "give no whole GPUs"),
    "compute of shared memory": (
        shared(mode="share"),
        {"mem": 8, "core": 30},
        "share no compute of GPUs: their mode is share",
    ),
    "too large": (shared(), {"mem": 41}, "had no GPU with 41 GiB"),
    "too many": (whole(), {"whole": 5}, "had fewer than 5 GPUs"),
    "too large for several": (shared(), {"mem": 90, "gpu_count": 2}, "had fewer than 2 GPUs with 45 GiB"),
    "no healthy one": (shared(usable=0), {"mem": 8}, "had no usable GPU with 8 GiB"),
    "too few healthy ones": (whole(usable=2), {"whole": 3}, "had fewer than 3 usable GPUs"),
    "memory alone": (core_mem(), {"mem": 8}, "share memory and compute of GPUs only together: their mode is core_mem"),
    "an odd amount": (core_mem(), {"mem": 8, "core": 7}, "share compute of GPUs in steps of 5 %"),
    "no whole number": (
        shared(),
        {"mem": "much"},
        "cannot serve a pod that asks for an amount that is no whole number (aliyun.com/gpu-mem of c)",
    ),
}


@pytest.mark.parametrize("case", NEVER)
def test_a_reason_says_what_the_node_cannot_do(case):
    node, wanted, text = NEVER[case]
    assert counted(cluster(node), pod(**wanted)) == [f"1 node(s) {text}"]


def test_nodes_of_one_kind_have_one_text():
    """A hundred nodes, no two of which have as much free, are three kinds."""
    nodes = [shared(f"s{n}") for n in range(40)]
    nodes += [shared(f"u{n}", unit_mib=512) for n in range(20)]
    nodes += [whole(f"w{n}") for n in range(30)]
    nodes += [shared(f"t{n}", memory=8) for n in range(10)]
    running = [{"mem": 1 + n % 35} for n in range(60)]
    assert counted(cluster(*nodes, running=running), pod(mem=41)) == [
        "20 node(s) had no GPU with 20.5 GiB",
        "30 node(s) share no GPU memory: their mode is topology",
        "50 node(s) had no GPU with 41 GiB",
    ]


def test_a_job_has_one_text_for_all_nodes():
    member = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    scheduling = cluster(whole("n1"), whole("n2"), shared("n3"))
    first = pod(whole=1, labels=member)
    scheduling.pod_seen(first, 0.0)
    assert counted(scheduling, first) == ["3 node(s) not given to job j: 1 of 2 pods are there"]
