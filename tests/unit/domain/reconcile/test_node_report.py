"""What the Node says of its GPUs and of the agent: labels, amount, condition."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.reconcile.node_report import node_capacity, node_condition, node_labels
from gpuagent.domain.sharing.mode import Mode
from tests.unit.domain.builders import NodeUnderTest, gpu, in_force, uuid


def test_the_condition_of_a_sound_node():
    assert node_condition(in_force(Mode.CGPU).state) == {
        "type": "GPUAgentReady",
        "status": "True",
        "reason": "Ready",
        "message": "mode cgpu, 2 GPUs",
    }


def test_the_condition_names_the_worst_and_lists_all():
    node = in_force(Mode.CGPU, isolates=frozenset()).label("nonsense").send(ev.XidRaised(uuid(0), 79, 1.0))
    condition = node_condition(node.state)
    assert (condition["status"], condition["reason"]) == ("False", "IsolationMissing")
    for part in ("XID 79", "'nonsense' is not a mode", "no isolation driver isolates"):
        assert part in condition["message"]


def test_node_labels_and_capacity():
    node = in_force(Mode.SHARE, (gpu(0, model="Tesla V100-SXM2-32GB", memory_mib=32510), gpu(1, 80)))
    assert node_labels(node.state) == {
        "aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB",
        "aliyun.accelerator/nvidia_mem": "32510MiB",
        "aliyun.accelerator/nvidia_count": "2",
    }
    assert node_capacity(node.state) == {"aliyun.com/gpu-count": "2"}
    assert node_labels(NodeUnderTest(Mode.SHARE).state) == {}
    assert node_capacity(NodeUnderTest(Mode.SHARE).state) == {}


@given(
    st.text(max_size=80)
    | st.sampled_from(["NVIDIA GeForce RTX 3080 (Laptop)", "NVIDIA RTX™ A6000", " T4 ", "X" * 62 + " Y", ""])
)
def test_node_labels_are_valid_whatever_the_model_is_called(model):
    for value in node_labels(in_force(Mode.SHARE, (gpu(0, model=model),)).state).values():
        assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", value), value
        assert len(value) <= 63
