"""What a pod asks for, where it is, and why it has no GPU."""

import pytest

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.fetch.cluster import agents_wanted
from inspectcgpu.read.agent_page import AgentView, SeenGpu, read_page
from inspectcgpu.read.gpu_pod import read_pod
from inspectcgpu.read.resize import read_resize
from inspectcgpu.read.usage import Usage, read_usage
from inspectcgpu.show.notes import notes
from tests.unit.inspectcgpu.sample_cluster import V2, V2_CORE, node, on, pod, pod_json, report


def why(found, at="n1", **more):
    """Of the only pod."""
    shown = report([node("n1", gpus=2, mem=30)], [found], **more)
    return next(p.why for p in [*shown.nodes[0].pods, *shown.waiting])


def with_status(name="a", at="n1", **status):
    found = pod_json(name, at, mem=4, phase="Pending")
    found["status"] |= status
    return read_pod(found)


def waiting(reason, message=""):
    return {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, "not annotated by a scheduler; kubelet has not taken it up yet"),
        (waiting("ContainerCreating"), "not annotated by a scheduler; its containers are being made"),
        (
            waiting("ImagePullBackOff", "Back-off pulling image"),
            "not annotated by a scheduler; container main: ImagePullBackOff: Back-off pulling image",
        ),
        (
            waiting("CreateContainerError", "refused: isolation"),
            "container main: CreateContainerError: refused: isolation",
        ),
        ({"phase": "Running"}, "not annotated by a scheduler"),
    ],
)
def test_a_pod_on_a_node_says_what_it_waits_for(status, expected):
    assert expected in why(with_status(**status))


HUGE = "x" * 820_000
CUT = "… (cut: it has 820000 characters)"


@pytest.mark.parametrize(
    ("at", "status"),
    [
        ("n1", waiting("CreateContainerError", HUGE)),
        ("n1", waiting(HUGE)),
        ("n1", {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": HUGE}),
        ("", {"conditions": [{"type": "PodScheduled", "status": "False", "reason": HUGE, "message": HUGE}]}),
    ],
    ids=["message", "reason", "refusal", "condition"],
)
def test_a_huge_message_is_cut(at, status):
    found = pod_json("a", at, mem=4)
    found["status"] = status
    shown = read_pod(found).waits
    assert CUT in shown
    assert len(shown) < 5000


@pytest.mark.parametrize("answer", [f"Refused: {HUGE}; in force: main=4", f"Refused: {HUGE}", f"InForce: {HUGE}"])
def test_a_huge_answer_to_a_resize_is_cut(answer):
    """Others than the agent can write it."""
    resize = read_resize("main=8", answer)
    assert CUT in resize.in_force + resize.refused
    assert len(resize.in_force + resize.refused) < 2100


@pytest.mark.parametrize(
    ("asks", "annotations"),
    [
        ({"mem": 4}, {V2: '{"0":{"1":4}}'}),
        ({"mem": 4}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}),
        ({"whole": 1}, {"topology.kubernetes.io/gpu-group": "1", "topology.kubernetes.io/gpu-visible": "1,0"}),
    ],
    ids=["V2", "V1", "whole GPUs"],
)
def test_annotations_of_another_pod_place_no_pod(asks, annotations):
    def read(uid):
        found = pod_json("a", annotations=annotations | {"gpuagent.io/decided": uid}, **asks)
        found["metadata"]["uid"] = "uid-a"
        return read_pod(found)

    own, copied = read("uid-a"), read("uid-b")
    assert own.places
    assert (own.faults, copied.places, copied.sources, copied.visible) == ((), {}, {}, ())
    assert "gpuagent.io/decided names the pod with UID 'uid-b': it was copied" in why(copied)


def test_a_refused_pod_holds_nothing_and_gives_the_agents_text():
    text = (
        "Pod was rejected: Allocate failed due to rpc error: aliyun.com/gpu-mem: pod default/a asks for 4, 2 are free"
    )
    found = with_status(phase="Failed", reason="UnexpectedAdmissionError", message=text)
    shown = report([node("n1", gpus=2, mem=30)], [found])
    assert shown.nodes[0].amounts["aliyun.com/gpu-mem"].allocated == 0
    assert shown.waiting[0].why == f"refused, UnexpectedAdmissionError: {text}"


def test_a_pod_that_is_not_scheduled_gives_the_schedulers_text():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert why(with_status(at="", conditions=[condition])) == "not scheduled, Unschedulable: 0/3 nodes"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_is_no_pod(phase):
    assert read_pod(pod_json("a", mem=4, phase=phase)) is None


def test_a_pod_without_gpus_is_none_of_ours():
    assert read_pod(pod_json("a")) is None


def test_limits_count_as_kubelet_counts_them():
    found = pod_json("a", mem=4)
    limits = {"resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}
    found["spec"]["initContainers"] = [{"name": "s", "restartPolicy": "Always", **limits}, {"name": "i", **limits}]
    found["spec"]["containers"].append({"name": "b", **limits})
    assert read_pod(found).asks == {"aliyun.com/gpu-mem": 10}
    found["metadata"]["annotations"] = {V2: '{"0":{"0":4},"1":{"0":3}}'}
    assert "annotation gives it 7" in read_pod(found).faults[0]


def test_an_annotation_leaves_init_containers_out_and_that_is_no_fault():
    found = pod_json("a", annotations={V2: '{"0":{"0":4}}'}, mem=4)
    found["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"aliyun.com/gpu-mem": "9"}}}]
    assert (read_pod(found).asks, read_pod(found).faults) == ({"aliyun.com/gpu-mem": 9}, ())


def test_a_malformed_annotation_is_the_reason():
    assert "annotation scheduler.framework.gpushare.allocation is no JSON object" in why(
        pod("a", annotations={V2: "{"}, mem=4)
    )


def test_a_gpu_that_the_node_has_not_is_the_reason():
    assert why(on("a", 7, 4)) == "its annotation names GPU 7, and the node has 0, 1"


def test_half_of_an_answer_leaves_the_other_half_pending():
    found = report(
        [node("n1", "core_mem", gpus=1, mem=15, core=100)],
        [pod("a", annotations={V2: '{"0":{"0":4}}'}, mem=4, core=20)],
    )
    assert found.nodes[0].pending == {"aliyun.com/gpu-core.percentage": 20}
    found = report(
        [node("n1", "core_mem", gpus=1, mem=15, core=100)],
        [pod("a", annotations={V2: '{"0":{"0":4}}', V2_CORE: '{"0":{"0":20}}'}, mem=4, core=20)],
    )
    assert found.nodes[0].pending == {}


def test_v2_goes_before_v1():
    v1 = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}
    assert pod("a", annotations={**v1, V2: '{"0":{"0":4}}'}, mem=4).places == {"aliyun.com/gpu-mem": {0: 4}}
    assert pod("a", annotations=v1, mem=4).places == {"aliyun.com/gpu-mem": {1: 4}}


def agent(places):
    gpus = {n: SeenGpu(n, "T4", 15360, True, "", {"aliyun.com/gpu-mem": 15}) for n in range(2)}
    return {"n1": AgentView(MemoryUnit(1024), gpus, places)}


def test_kubelets_allocations_go_before_an_annotation_and_a_difference_is_reported():
    views = agent({PodName("default", "a"): {"aliyun.com/gpu-mem": {1: 4}}})
    found = report([node("n1", gpus=2, mem=30)], [on("a", 0, 4), pod("b", mem=3)], views=views)
    first, second = found.nodes[0].pods
    assert (first.places, first.sources) == ({"aliyun.com/gpu-mem": {1: 4}}, {"aliyun.com/gpu-mem": "agent"})
    assert first.differs == "its annotation gives it 4 of GPU 0, and kubelet gave it 4 of GPU 1"
    assert second.why == "not annotated by a scheduler; the node's agent has given it none yet"


def test_an_agent_that_could_not_be_asked_is_reported():
    assert why(pod("a", mem=3), unseen={"n1": "no answer"}).endswith("the node's agent could not be asked")


def test_the_page_of_an_agent_is_read():
    page = """{"memory_unit": "256MiB", "gpus": [{"minor": 2, "model": "A10", "memory_mib": 23028, "health": "Unhealthy",
      "cause": "XID 79", "units": {"aliyun.com/gpu-mem": 89}, "containers": [
      {"container": "ml/a[one]", "resource": "aliyun.com/gpu-mem", "units": 3},
      {"container": "ml/a[two]", "resource": "aliyun.com/gpu-mem", "units": 4},
      {"container": "ml/b[]", "resource": "nvidia.com/gpu", "units": 1}]}]}"""
    view = read_page(page)
    assert str(view.unit) == "256MiB"
    assert view.gpus[2] == SeenGpu(2, "A10", 23028, False, "XID 79", {"aliyun.com/gpu-mem": 89})
    assert view.places == {PodName("ml", "a"): {"aliyun.com/gpu-mem": {2: 7}}}


def test_what_containers_use_is_summed_for_the_pod():
    labels = 'UUID="GPU-a",gpu="{}",namespace="ml",pod="a",container="{}"'
    lines = [
        "# TYPE gpuagent_container_gpu_memory_used_bytes gauge",
        *(f"gpuagent_container_gpu_memory_used_bytes{{{labels.format(n, c)}}} 100" for n, c in ((0, "x"), (1, "y"))),
        "# TYPE gpuagent_container_gpu_memory_limit_bytes gauge",
        f"gpuagent_container_gpu_memory_limit_bytes{{{labels.format(0, 'x')}}} 1e3",
        "",
    ]
    assert read_usage("\n".join(lines)) == {PodName("ml", "a"): Usage(200, 1000)}
    assert read_usage("# TYPE up gauge\nup 1\n") is None


def test_an_agent_without_a_driver_costs_nothing_but_its_word():
    """It shows no GPUs then: those of labels and annotations stand, in its unit."""
    views = {"n1": AgentView(MemoryUnit(256), {})}
    found = report(
        [node("n1", gpus=2, mem=30), node("n2", gpus=2, mem=30)], [on("a", 0, 4), pod("b", mem=3)], views=views
    )
    first, second = found.nodes
    assert [str(gpu.amounts["aliyun.com/gpu-mem"]) for gpu in first.gpus] == ["4/15", "0/15"]
    assert (first.unit, second.unit) == ("256MiB", "GiB")
    assert first.pods[1].why == "not annotated by a scheduler; the node's agent sees no GPUs"
    assert any(note.startswith("the agent of node n1 sees no GPUs") for note in notes(found))


def test_a_page_that_cannot_be_shown_costs_its_node_alone():
    found = report(
        [node("n1", gpus=2, mem=30), node("n2", gpus=2, mem=30)],
        [on("a", 0, 4)],
        views={"n1": AgentView(MemoryUnit(1024), {0: None})},
    )
    assert [str(gpu.amounts["aliyun.com/gpu-mem"]) for gpu in found.nodes[0].gpus] == ["4/15", "0/15"]
    assert "cannot be shown (AttributeError" in found.nodes[0].unseen
    assert found.nodes[1].unseen == ""


def test_amounts_that_no_gpu_has_are_not_believed():
    page = '{"memory_unit": "GiB", "gpus": [{"minor": 0, "memory_mib": 9%s, "units": {"aliyun.com/gpu-mem": 9%s}}]}'
    assert read_page(page % ("9" * 4000, "9" * 4000)).gpus[0] == SeenGpu(0, "", 0, False, "", {})


@pytest.mark.parametrize(
    ("annotations", "asks"),
    [
        ({V2: '{"0":{"0":2147483647}}'}, {"mem": 4}),
        ({V2: '{"0":{"1":1}}'}, {"mem": 4}),
        ({"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "0"}, {"mem": 4}),
        ({"topology.kubernetes.io/gpu-group": "0,1"}, {"whole": 1}),
    ],
)
def test_an_annotation_of_another_amount_than_is_asked_for_counts_for_nothing(annotations, asks):
    found = pod("a", annotations=annotations, **asks)
    assert (found.places, found.sources) == ({}, {})
    shown = report([node("n1", gpus=2, mem=30, whole=2)], [found]).nodes[0]
    assert list(shown.pending.values()) == list(asks.values())
    assert shown.pods[0].why.startswith("its annotation gives it ")


def test_the_agent_of_a_pod_whose_annotation_is_of_another_amount_is_asked():
    views = agent({PodName("default", "a"): {"aliyun.com/gpu-mem": {1: 4}}})
    found = pod("a", annotations={V2: '{"0":{"0":1}}'}, mem=4)
    assert agents_wanted([node("n1", gpus=2, mem=30)], [found]) == {"n1"}
    shown = report([node("n1", gpus=2, mem=30)], [found], views=views).nodes[0].pods[0]
    assert (shown.places, shown.pending) == ({"aliyun.com/gpu-mem": {1: 4}}, {})
    assert "its annotation gives it 1" in shown.why


def test_what_an_agent_reported_before_the_pod_changed_is_no_reason():
    found = report([node("n1", gpus=2, mem=30)], [pod("a", mem=3)], views=agent({}), newer={PodName("default", "a")})
    assert found.nodes[0].pods[0].why.endswith("the node's agent is asked again soon: it was before the pod changed")
