"""Whatever stands in nodes, pods, pages and ConfigMaps: nothing raises, and nothing steers a terminal."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from gpuagent.pages.cells import Cell, Style, align, width
from gpuagent.system import yaml_text
from inspectcgpu.assemble.cluster_facts import ClusterFacts
from inspectcgpu.assemble.cluster_report import build
from inspectcgpu.read.agent_page import AgentView, read_page
from inspectcgpu.read.configmaps import GpuConfigMap, read_config_map
from inspectcgpu.read.gpu_node import GpuNode, read_node
from inspectcgpu.read.gpu_pod import GpuPod, read_pod
from inspectcgpu.read.usage import read_usage
from inspectcgpu.show import documents
from inspectcgpu.show.details import details
from inspectcgpu.show.summary import summary

RESOURCES = [GPU_MEM, GPU_CORE, GPU_WHOLE, "aliyun.com/gpu-count", "nvidia.com/gpu"]
KEYS = ["metadata", "spec", "status", "name", "namespace", "labels", "annotations", "containers", "initContainers"]
KEYS += [
    "resources",
    "limits",
    "capacity",
    "allocatable",
    "addresses",
    "conditions",
    "phase",
    "type",
    "nodeName",
    "data",
]
KEYS += ["gpus", "devices", "linkType", "minor", "units", "container", "memory_unit", "containerStatuses", "state"]
words = st.sampled_from(
    [
        "n1",
        "",
        "Always",
        "Pending",
        "Failed",
        "OutOfpods",
        "InternalIP",
        "GPUAgentReady",
        "4",
        "-1",
        "1e9",
        "0,1",
        "x\x1b[31m\n",
    ]
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 10**12) | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS + RESOURCES + list(an.KEYS)), inner, max_size=4)
    ),
    max_leaves=20,
)
objects = st.dictionaries(st.sampled_from(KEYS), junk, max_size=6)
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(["0", "1", "7", "60", "640", "99999999", "x"]))
nodes = st.builds(
    lambda name, labels, capacity, allocatable, status: {
        "metadata": {"name": name, "labels": labels},
        "status": {**status, "capacity": capacity, "allocatable": allocatable},
    },
    st.sampled_from(["n1", "n2", "Knoten-ß", "节点"]),
    st.dictionaries(
        st.sampled_from(["ack.node.gpu.schedule", "aliyun.accelerator/nvidia_mem", "aliyun.accelerator/nvidia_count"]),
        st.sampled_from(["share", "topology", "80MiB", "81920MiB", "0", "4", "999999", "x\x1b]0;y\x07"]),
    ),
    amounts,
    amounts,
    objects,
)
texts = st.sampled_from(["0", "1", "7", "-1", "0,1", '{"0":{"0":4}}', '{"0":{"9":4}}', '{"0":', "GPU-x", "²", ""])
pods = st.builds(
    lambda name, annotations, limits, init, status, at: {
        "metadata": {"name": name, "namespace": "d\x1b[2J", "annotations": annotations},
        "spec": {
            **({"nodeName": at} if at else {}),
            "containers": [{"name": "c", "resources": {"limits": limits}}],
            "initContainers": [{"name": "i", "resources": {"limits": init}}],
        },
        "status": status,
    },
    st.sampled_from(["a", "b", "pod\nwith a break", "\u202e", "\x9b31m\x7f\x85\u2028", "節😀\U000e0001"]),
    st.dictionaries(st.sampled_from(an.KEYS), texts),
    amounts,
    amounts,
    objects | st.builds(lambda phase: {"phase": phase}, st.sampled_from(["Running", "Pending", "Failed"])),
    st.sampled_from(["n1", "n2", ""]),
)


@given(junk.filter(lambda found: isinstance(found, dict)))
def test_no_reader_raises(found):
    assert isinstance(read_node(found), GpuNode | None)
    assert isinstance(read_pod(found), GpuPod | None)
    assert isinstance(read_config_map(found), GpuConfigMap | None)
    assert isinstance(read_page(json.dumps(found)), AgentView | None)


@given(st.text())
@example("[" * 100_000)
@example('{"gpus": 1, "memory_unit": []}')
@example('gpuagent_container_gpu_memory_used_bytes{pod="a" 1e999')
@example("gpuagent_container_gpu_memory_used_bytes NaN\n")
@example('gpuagent_container_gpu_memory_used_bytes{namespace="n",pod="p"} +Inf\n')
@example('gpuagent_container_gpu_memory_used_bytes{namespace="n",pod="p"} NaN\n')
def test_no_page_raises(page):
    assert isinstance(read_page(page), AgentView | None)
    assert isinstance(read_usage(page), dict | None)


@settings(max_examples=30, deadline=None)  # each is shown in five ways
@given(st.lists(nodes, max_size=3), st.lists(pods, max_size=4))
def test_a_report_of_anything_can_be_shown(node_list, pod_list):
    found = build(
        ClusterFacts(
            nodes=[node for one in node_list if (node := read_node(one))],
            pods=[pod for one in pod_list if (pod := read_pod(one))],
            unseen={"n1": "said \x1b[1m\n"},
            usage_problem="node n1: \x1b]0;y\x07\x9b31m\n5/5 (100%)",
            problems=("x\r\n\x07",),
        )
    )
    for lines in (summary(found), summary(found, wide=True), details(found, wide=True)):
        assert all(line.isprintable() for line in lines)
    as_json = list(documents.json_lines(found))
    assert all(line.isprintable() for line in as_json)
    assert json.loads("\n".join(as_json)) == documents.document(found)
    text = "\n".join(documents.yaml_lines(found, yaml_text.dump))
    assert text.replace("\n", "").isprintable()
    assert yaml_text.load(text) == documents.document(found)


@given(st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=3), min_size=1, max_size=5))
def test_columns_stand_below_each_other_in_whatever_script(rows):
    lines = align([[*(Cell(text) for text in row), Cell("|")] for row in rows], colour=False)
    assert len({width(line) for line in lines}) == 1


def test_colour_moves_no_column():
    rows = [[Cell("a", Style.ILL), Cell("节点", Style.HEAD), Cell("x")], [Cell("bb"), Cell(""), Cell("y")]]
    assert align(rows, colour=True) == ["\x1b[31ma\x1b[0m   \x1b[1m节点\x1b[0m  x", "bb        y"]
    assert align(rows, colour=False) == ["a   节点  x", "bb        y"]


def test_what_cannot_be_shown_is_escaped_in_json_and_letters_are_not():
    text = documents.json_text("Größe 節😀\x7f\x9b\u202e\u2028\U000e0001")
    assert text == r'"Größe 節😀\u007f\u009b\u202e\u2028\udb40\udc01"'
    assert json.loads(text) == "Größe 節😀\x7f\x9b\u202e\u2028\U000e0001"
