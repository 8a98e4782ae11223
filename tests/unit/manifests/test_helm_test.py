"""What `helm test` says of a release: a line for each node with an agent, and whether all is well."""

import runpy
from typing import Any

import pytest

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from kubectl.inspectcgpu.fetch.agents import LABEL
from manifests.render import CHART

PROGRAM = runpy.run_path(str(CHART / "test" / "nodes.py"))
verdict = PROGRAM["verdict"]


def agent(node: str | None, *, ready: bool = True) -> dict[str, Any]:
    spec = {} if node is None else {"nodeName": node}
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": {"name": f"gpuagent-{node}"}, "spec": spec, "status": status}


def node_with(ready: str | None, message: str = "", mode: str = "share", **amounts: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    if ready is not None:
        conditions.append({"type": "GPUAgentReady", "status": ready, "message": message})
    allocatable = {GPU_MEM: "0", "cpu": "8"} | {
        f"aliyun.com/{key.replace('_', '-')}": value for key, value in amounts.items()
    }
    labels = {"ack.node.gpu.schedule": mode}
    return {"metadata": {"labels": labels}, "status": {"conditions": conditions, "allocatable": allocatable}}


def said(agents: list[dict[str, Any]], **nodes: dict[str, Any]) -> tuple[list[str], bool]:
    def get(path: str) -> dict[str, Any]:
        if path.startswith("/api/v1/namespaces/gpu/pods?"):
            return {"items": agents}
        return {"items": [nodes[path.removeprefix("/api/v1/nodes?fieldSelector=metadata.name%3D")]]}

    lines, all_well = verdict(get, "gpu")
    return lines, all_well


def test_a_ready_node_says_what_it_offers():
    found = said(
        [agent("b"), agent("a")], a=node_with("True", gpu_mem="640"), b=node_with("True", mode="topology", gpu="8")
    )
    assert found == (
        ["a: ready, mode share, aliyun.com/gpu-mem 640", "b: ready, mode topology, aliyun.com/gpu 8"],
        True,
    )


@pytest.mark.parametrize(
    ("pod", "node", "line"),
    [
        (agent("a"), node_with("False", "no GPU is there"), "a: no GPU is there"),
        (agent("a"), node_with(None), "a: the agent has not reported its condition yet"),
        (agent("a", ready=False), node_with("True"), "a: the agent's pod gpuagent-a is not ready. Describe it"),
        (agent(None), node_with("True"), "gpuagent-None: not scheduled"),
    ],
)
def test_a_node_that_lacks_something_fails_the_test_and_says_what(pod, node, line):
    assert said([pod], a=node) == ([line], False)


def test_a_node_in_mode_dra_is_well_without_amounts():
    assert said([agent("a")], a=node_with("True", mode="dra")) == (["a: ready, mode dra, nothing in limits"], True)


def test_no_agent_at_all_fails_the_test():
    lines, all_well = said([])
    assert not all_well
    assert "kubectl label node NODE ack.node.gpu.schedule=share" in lines[0]


def test_it_knows_the_names_of_the_code():
    assert PROGRAM["RESOURCES"] == (GPU_MEM, GPU_CORE, GPU_WHOLE)
    assert PROGRAM["AGENTS"] == LABEL.replace("/", "%2F").replace("=", "%3D").replace(",", "%2C")
