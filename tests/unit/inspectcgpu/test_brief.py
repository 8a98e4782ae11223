"""A line for each node: what it has, what is held and free, and its worst problem."""

import json

import pytest

from gpuagent.domain.sharing.mode import GPU_MEM
from inspectcgpu.flags import HEALTH_COLUMNS, NODE_COLUMNS, WASTE_COLUMNS
from inspectcgpu.read.configmaps import GpuConfigMap
from inspectcgpu.show import health, waste
from inspectcgpu.show.brief import brief
from inspectcgpu.summaries import COLUMNS, sorted_by, summary_of
from tests.unit.inspectcgpu.sample_cluster import add_node, add_pod, node, on, pod, report
from tests.unit.inspectcgpu.test_command import on_terminal

LONG = "cn-shanghai.192.0.2.109"
ILL = "mode core_mem, 4 GPUs; IsolationMissing (blocking): no isolation; GPUFenced (info): GPU 0 is fenced by file"


def condition(message, status="True"):
    return [{"type": "GPUAgentReady", "status": status, "reason": "Ready", "message": message}]


@pytest.fixture
def fleet():
    nodes = [
        node("gpu-1", mem=56, conditions=condition("mode share, 4 GPUs")),
        node("gpu-2", "core_mem", mem=56, core=400, conditions=condition(ILL, "False")),
        node("gpu-3", "topology", whole=8, gpus=8, labels={"aliyun.accelerator/nvidia_name": "NVIDIA-H200"}),
        node("gpu-4", mem=14 * 1024, gpus=1, mib=14 * 1024, labels={"aliyun.accelerator/nvidia_name": "NVIDIA A10"}),
    ]
    pods = [
        on("a", 1, 9, at="gpu-1"),
        on("b", 0, 14, at="gpu-1"),
        pod("c", "gpu-1", mem=3),
        pod("d", "gpu-3", {"topology.kubernetes.io/gpu-group": "0,1,2"}, whole=3),
        on("e", 0, 512, at="gpu-4"),
    ]
    return report(nodes, pods)


def cells(lines):
    return [line.split() for line in lines]


def test_a_line_has_mode_model_amounts_in_gib_and_the_worst_problem(fleet):
    lines = brief(fleet, None, colour=False)
    assert cells(lines[:5]) == [
        ["NODE", "MODE", "MODEL", "GPUS", "HELD(GiB)", "FREE(GiB)", "PODS", "WAIT", "PROBLEMS"],
        ["gpu-1", "share", "T4", "4", "23/56", "14", "3", "1", "-"],
        ["gpu-2", "core_mem", "T4", "0/4", "0/56", "0/400%", "0", "0", "0", "IsolationMissing", "+1"],
        ["gpu-3", "topology", "H200", "8", "3/8", "GPU", "5", "GPU", "1", "0", "-"],
        ["gpu-4", "share", "A10", "1", "0.5/14", "13.5", "1", "0", "-"],
    ]
    assert "Allocated/Total GPUs In Cluster: 3/8 (37%)" in lines
    assert "- default/c on gpu-1, asks 3 gpu-mem: not annotated by a scheduler" in lines


def test_without_headers_there_is_nothing_but_a_line_for_each_node(fleet):
    assert [line.split()[0] for line in brief(fleet, None, colour=False, heads=False)] == [
        f"gpu-{n}" for n in (1, 2, 3, 4)
    ]
    assert brief(report([]), 80, colour=False, heads=False) == []


@pytest.mark.parametrize(("key", "names"), [
    ("name", "1 2 3 4"),
    ("mode", "2 1 4 3"),
    ("model", "4 3 1 2"),
    ("gpus", "3 1 2 4"),
    ("held", "1 3 4 2"),
    ("free", "3 1 4 2"),
    ("pods", "1 3 4 2"),
    ("waiting", "1 2 3 4"),
    ("problems", "2 1 3 4"),
])  # fmt: skip
def test_nodes_are_sorted_numbers_from_the_largest(fleet, key, names):
    assert [one.node.name for one in sorted_by(fleet, COLUMNS[key]).nodes] == [f"gpu-{n}" for n in names.split()]


def test_every_column_that_the_command_line_takes_can_be_sorted_by():
    assert tuple(COLUMNS) == NODE_COLUMNS
    assert tuple(health.COLUMNS) == HEALTH_COLUMNS
    assert tuple(waste.POD_COLUMNS) == WASTE_COLUMNS


@pytest.mark.parametrize("columns", [60, 70, 80, 100, 120])
def test_lines_fit_a_terminal_and_say_less_where_it_is_narrow(fleet, columns):
    lines = brief(fleet, columns, colour=False)
    assert max(map(len, lines[:5])) <= max(columns, 68)
    assert [line.split()[0] for line in lines[1:5]] == [f"gpu-{n}" for n in (1, 2, 3, 4)]


def test_long_names_leave_the_number_of_problems():
    ill = node(LONG, "core_mem", mem=56, core=400, conditions=condition(ILL, "False"))
    head, line, *_ = brief(report([ill]), 80, colour=False)
    assert head.split()[-1] == "!"
    assert line.split() == [LONG, "core_mem", "0/4", "0/56", "0/400%", "0", "0", "0", "2"]
    assert len(line) <= 80


def test_amounts_of_unknown_size_are_shown_in_units(fleet):
    odd = report([node("n1", mem=57)], [on("a", 0, 3)])
    (line,) = brief(odd, None, colour=False, heads=False)
    assert "3/57 ?" in line


def test_problems_that_the_agent_reports_now_are_there_once(fleet):
    (shown,) = report([node("n1", mem=56, conditions=condition("mode share, 4 GPUs; GPUFenced (info): x"))]).nodes
    assert [problem.reason for problem in summary_of(shown).problems] == ["GPUFenced"]


def test_pods_of_other_namespaces_keep_their_gpus(server, call):
    add_node(server, "n1", "topology", whole=4)
    server.create_pod(
        "p", {"aliyun.com/gpu": "3"}, node="n1", annotations={"topology.kubernetes.io/gpu-group": "0,1,2"}
    )
    for flags in ((), ("-n", "other")):
        _, out, _ = call("-o", "brief", "--no-headers", *flags)
        assert out.split()[4:8] == ["3/4", "GPU", "1", "GPU"]


def test_a_terminal_too_narrow_for_the_tables_gets_a_line_for_each_node(server, config):
    for n in range(1, 4):
        add_node(server, f"n{n}", gpus=8, mem=120)
    shown = on_terminal(config, columns=80, environ={"NO_COLOR": "1"})
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["NODE", "n1", "n2", "n3"]
    one = on_terminal(config, "n1", columns=80, environ={"NO_COLOR": "1"})
    assert "GPU7 0/15 GiB" in one, "a single node has room for its GPUs"


def test_the_documented_table_can_be_sorted_and_be_without_headers(server, call):
    for name, held in (("n1", 3), ("n2", 9)):
        add_node(server, name, gpus=1, mem=15)
        add_pod(server, f"on-{name}", name, held, 0)
    _, out, _ = call("--sort-by", "held", "--no-headers")
    assert out == "n2  10.0.0.1  9/15  9/15\nn1  10.0.0.1  3/15  3/15\n"
    nodes = json.loads(call("--sort-by=free", "-o", "json")[1])["nodes"]
    assert [one["name"] for one in nodes] == ["n1", "n2"]
    assert call("--sort-by", ".metadata.name", "-o", "name")[1] == "node/n1\nnode/n2\n"
    assert call("--health", "--no-headers", "--no-agents")[1].splitlines()[0].split()[0] == "n1"


@pytest.mark.parametrize(("arguments", "text"), [
    (["--sort-by", ".status.capacity.cpu"], "is a JSONPath expression, and this sorts by a column: name, mode"),
    (["--sort-by", "fre"], "did you mean free?"),
    (["-d", "--no-headers"], "leave out --no-headers"),
])  # fmt: skip
def test_what_cannot_be_sorted_says_why(call, arguments, text):
    code, _, err = call(*arguments)
    assert (code, text in err) == (2, True), err


def test_an_unhealthy_gpu_is_a_problem_without_any_agent():
    configmaps = {"n1": GpuConfigMap("n1", {2: "Unhealthy"})}
    ill = report([node("n1", mem=56, gpus=4, allocatable={GPU_MEM: 42})], configmaps=configmaps)
    summary = summary_of(ill.nodes[0])
    assert [problem.reason for problem in summary.problems] == ["GPUUnhealthy"]
    assert (summary.gpus, summary.usable) == (4, 3)
