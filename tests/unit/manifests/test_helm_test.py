"""What `helm test` says of a release: a line for each node with an agent, and whether all is well."""

import re
import runpy
from typing import Any

import pytest

from gpuagent.domain.fleet.node_problems import CONDITION_TYPE, NodeProblem, condition_message
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, Mode
from kubectl.inspectcgpu.fetch.agents import LABEL
from manifests.render import CHART

PROGRAM = runpy.run_path(str(CHART / "test" / "nodes.py"))
verdict = PROGRAM["verdict"]


def agent(node: str | None, *, ready: bool = True) -> dict[str, Any]:
    spec = {} if node is None else {"nodeName": node}
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": {"name": f"gpuagent-{node}"}, "spec": spec, "status": status}


def node_with(ready: str | None, message: str = "", label: str | None = "share", **amounts: str) -> dict[str, Any]:
    """A node. `message` is its condition's, as the agent writes it."""
    conditions = [{"type": "Ready", "status": "True"}]
    if ready is not None:
        conditions.append({"type": CONDITION_TYPE, "status": ready, "message": message})
    allocatable = {GPU_MEM: "0", "cpu": "8"} | {
        f"aliyun.com/{key.replace('_', '-')}": value for key, value in amounts.items()
    }
    labels = {} if label is None else {"ack.node.gpu.schedule": label}
    return {"metadata": {"labels": labels}, "status": {"conditions": conditions, "allocatable": allocatable}}


def in_mode(mode: Mode, *problems: NodeProblem) -> str:
    return condition_message(f"mode {mode}, 8 GPUs", problems)


def one_page(path: str, objects: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """What the API server answers of a list. `continue` is how many objects the pages before had."""
    first = int(path.partition("&continue=")[2] or 0)
    last = first + size
    following = str(last) if last < len(objects) else ""
    return {"items": objects[first:last], "metadata": {"continue": following}}


def said(
    agents: list[dict[str, Any]], *, serves_every_labeled: bool = True, **nodes: dict[str, Any]
) -> tuple[list[str], bool]:
    for name, node in nodes.items():
        node["metadata"]["name"] = name
    labeled = [node for node in nodes.values() if node["metadata"]["labels"]]

    def get(path: str) -> dict[str, Any]:
        if path.startswith("/api/v1/namespaces/gpu/pods?"):
            return one_page(path, agents, 1)
        if path.startswith("/api/v1/nodes?labelSelector=ack.node.gpu.schedule&limit="):
            return one_page(path, labeled, 1)
        return {"items": [nodes[path.removeprefix("/api/v1/nodes?fieldSelector=metadata.name%3D")]]}

    lines, all_well = verdict(get, "gpu", serves_every_labeled=serves_every_labeled)
    return lines, all_well


def test_a_ready_node_says_what_it_offers():
    a = node_with("True", in_mode(Mode.SHARE), gpu_mem="640")
    b = node_with("True", in_mode(Mode.TOPOLOGY), label="topology", gpu="8")
    assert said([agent("b"), agent("a")], a=a, b=b) == (
        ["a: ready, mode share, aliyun.com/gpu-mem 640", "b: ready, mode topology, aliyun.com/gpu 8"],
        True,
    )


@pytest.mark.parametrize(
    ("pod", "node", "line"),
    [
        (agent("a"), node_with("False", "no GPU is there"), "a: no GPU is there"),
        (agent("a"), node_with(None), "a: the agent has not reported its condition yet"),
        (agent("a", ready=False), node_with("True"), "a: the agent's pod gpuagent-a is not ready. Describe it"),
        (agent(None), node_with("True", label=None), "gpuagent-None: not scheduled"),
    ],
)
def test_a_node_that_lacks_something_fails_the_test_and_says_what(pod, node, line):
    assert said([pod], a=node) == ([line], False)


@pytest.mark.parametrize("mode", [Mode.DEFAULT, Mode.DRA])
def test_a_node_in_a_mode_without_amounts_is_well_without_them(mode):
    node = node_with("True", in_mode(mode), label=mode)
    assert said([agent("a")], a=node) == ([f"a: ready, mode {mode}, nothing in limits"], True)


@pytest.mark.parametrize("mode", sorted(set(Mode) - {Mode.DEFAULT, Mode.DRA}))
def test_a_node_without_amounts_is_not_well_in_any_other_mode(mode):
    waiting = NodeProblem("info", "ModeSwitchWaiting", "these containers have not ended: ml/train")
    (line,), is_well = said([agent("a")], a=node_with("True", in_mode(mode, waiting), label=mode))
    assert not is_well
    assert line.startswith(f"a: mode {mode}, but kubelet allocates none of aliyun.com/gpu-mem or ")
    assert line.endswith("; ModeSwitchWaiting (info): these containers have not ended: ml/train")


def test_the_mode_is_the_one_in_force_and_not_the_label():
    for label in (None, "topology"):
        node = node_with("True", in_mode(Mode.SHARE), label=label, gpu_mem="640")
        assert said([agent("a")], a=node) == (["a: ready, mode share, aliyun.com/gpu-mem 640"], True)


def test_a_label_that_names_no_mode_fails_the_test():
    wrong = NodeProblem("warning", "InvalidModeLabel", "shaer is not a mode; default stays in force")
    node = node_with("True", in_mode(Mode.DEFAULT, wrong), label="shaer")
    line = "a: mode default; InvalidModeLabel (warning): shaer is not a mode; default stays in force"
    assert said([agent("a")], a=node) == ([line], False)


def test_a_node_that_serves_shows_its_problems():
    broken = NodeProblem("warning", "GPUUnhealthy", "GPU 7: XID 79")
    node = node_with("True", in_mode(Mode.SHARE, broken), gpu_mem="560")
    line = "a: ready, mode share, aliyun.com/gpu-mem 560; GPUUnhealthy (warning): GPU 7: XID 79"
    assert said([agent("a")], a=node) == ([line], True)


def test_a_large_cluster_is_read_in_pages_and_not_a_node_at_a_time():
    """Whole lists of 5,000 nodes did not fit into the pod's memory."""
    names = [f"n{number:04}" for number in range(5000)]
    agents = [agent(name) for name in names]
    nodes = [node_with("True", in_mode(Mode.SHARE), gpu_mem="640") for _ in names]
    for name, node in zip(names, nodes, strict=True):
        node["metadata"]["name"] = name
    asked = []

    def get(path: str) -> dict[str, Any]:
        asked.append(path)
        (limit,) = re.findall(r"&limit=(\d+)", path)
        return one_page(path, agents if "/pods?" in path else nodes, int(limit))

    lines, all_well = verdict(get, "gpu")
    assert all_well
    assert lines == [f"{name}: ready, mode share, aliyun.com/gpu-mem 640" for name in names]
    assert len(asked) == 200


def test_a_node_that_lost_its_label_is_read_by_its_name():
    node = node_with("True", in_mode(Mode.SHARE), label=None, gpu_mem="640")
    labeled = node_with("True", in_mode(Mode.SHARE), gpu_mem="320")
    lines, all_well = said([agent("a"), agent("b")], a=node, b=labeled)
    assert all_well
    assert lines == ["a: ready, mode share, aliyun.com/gpu-mem 640", "b: ready, mode share, aliyun.com/gpu-mem 320"]


def test_a_labeled_node_without_an_agent_fails_the_test():
    node = node_with("True", in_mode(Mode.SHARE), gpu_mem="640")
    lines, is_well = said([agent("a")], a=node, b=node_with(None), c=node_with(None))
    assert not is_well
    missing = "has the label ack.node.gpu.schedule, and no agent's pod. Describe the agent's DaemonSet"
    assert lines[1:] == [f"b: {missing}", f"c: {missing}"]


def test_a_labeled_node_without_an_agent_is_well_where_the_charts_values_choose_nodes():
    node = node_with("True", in_mode(Mode.SHARE), gpu_mem="640")
    lines, is_well = said([agent("a")], serves_every_labeled=False, a=node, b=node_with(None))
    assert is_well
    assert lines[1].endswith("no agent's pod. The chart's values choose between labeled nodes")


def test_no_agent_at_all_fails_the_test():
    lines, all_well = said([])
    assert not all_well
    assert "kubectl label node NODE ack.node.gpu.schedule=share" in lines[0]


def test_it_knows_the_names_of_the_code():
    assert PROGRAM["RESOURCES"] == (GPU_MEM, GPU_CORE, GPU_WHOLE)
    assert PROGRAM["AGENTS"] == LABEL.replace("/", "%2F").replace("=", "%3D").replace(",", "%2C")
