"""docs/autoscaling.md and its examples: the amounts make gpuscheduler see the GPUs of a node that does not exist yet."""

import pytest
import yaml

from gpuagent.domain.sharing.mode import GPU_COUNT, MODE_LABEL, Mode
from gpuscheduler.core.calls import FilterAnswer
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.single_pods.carried_nodes import CarriedNodes
from tests.unit.docs.test_docs import ROOT
from tests.unit.gpuscheduler.core.api_objects import pod

PAGE = (ROOT / "docs/autoscaling.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples/autoscaling"
TEMPLATE = "k8s.io/cluster-autoscaler/node-template/"
OBJECTS = list(yaml.safe_load_all((EXAMPLES / "karpenter.yaml").read_text(encoding="utf-8")))
OVERLAYS = {one["metadata"]["name"]: one["spec"] for one in OBJECTS if one["kind"] == "NodeOverlay"}
TAGS = yaml.safe_load((EXAMPLES / "cluster-autoscaler-aws-tags.yaml").read_text(encoding="utf-8"))["Tags"]
FITTING = {
    "gpu-shares-g5-12xlarge": ({"mem": 22}, {"mem": 23}),
    "gpu-compute-g5-12xlarge": ({"mem": 22, "core": 100}, {"mem": 23, "core": 10}),
    "gpu-whole-p4d-24xlarge": ({"whole": 8}, {"whole": 9}),
}


def of_tags(kind):
    prefix = f"{TEMPLATE}{kind}/"
    return {tag["Key"].removeprefix(prefix): tag["Value"] for tag in TAGS if tag["Key"].startswith(prefix)}


def answer(amounts, **asked) -> FilterAnswer:
    """About a node that an autoscaler makes up from these amounts."""
    quantities = {"cpu": "48"} | {name: str(amount) for name, amount in amounts.items()}
    template = {"metadata": {"name": "template"}, "status": {"capacity": quantities, "allocatable": quantities}}
    nodes = CarriedNodes(pod(**asked), {})
    nodes.add("template", node_facts(template))
    return nodes.answer()


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_pod_of_one_gpu_fits_on_a_node_of_the_overlay_and_a_larger_one_does_not(name):
    fits, too_large = FITTING[name]
    capacity = OVERLAYS[name]["capacity"]
    assert answer(capacity, **fits).nodes == ("template",)
    assert answer(capacity, **too_large).nodes == ()


def test_the_tags_of_aws_say_the_same_as_the_overlay():
    resources = of_tags("resources")
    capacity = OVERLAYS["gpu-shares-g5-12xlarge"]["capacity"]
    assert resources == {name: str(amount) for name, amount in capacity.items()}
    assert Mode(of_tags("label")[MODE_LABEL]) is Mode.CGPU
    assert {tag["ResourceType"] for tag in TAGS} == {"auto-scaling-group"}


def test_each_overlay_is_for_one_pool():
    for spec in OVERLAYS.values():
        pools = [rule["values"] for rule in spec["requirements"] if rule["key"] == "karpenter.sh/nodepool"]
        assert [len(names) for names in pools] == [1]


def test_the_pool_removes_empty_nodes_only():
    """Karpenter would move a pod to a node that has its units only on several GPUs together."""
    (pool,) = (one["spec"] for one in OBJECTS if one["kind"] == "NodePool")
    assert pool["disruption"]["consolidationPolicy"] == "WhenEmpty"


def test_every_amount_comes_with_the_number_of_gpus():
    for spec in OVERLAYS.values():
        assert spec["capacity"][GPU_COUNT] > 0
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    amounts = [row for row in rows if "aliyun.com/gpu" in row and ": " in row]
    assert amounts
    assert all("`aliyun.com/gpu-count: 4`" in row for row in amounts)


def test_the_keys_of_the_page_are_those_of_the_example():
    assert f"`{TEMPLATE}resources/aliyun.com/gpu-mem`" in PAGE
    assert "aliyun.com/gpu-mem" in of_tags("resources")
