"""The annotation `gpuagent.io/gpus`: what the agent writes is read back, and any other text is malformed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.pods.annotations import Malformed
from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus, node_gpus_text

amounts = st.integers(0, 10_000)
gpus = st.builds(NodeGpu, st.integers(0, 63), amounts, amounts, st.booleans(), st.booleans())
nodes = st.builds(
    NodeGpus,
    st.lists(gpus, unique_by=lambda gpu: gpu.minor, max_size=16).map(
        lambda found: tuple(sorted(found, key=lambda gpu: gpu.minor))
    ),
    st.integers(1, 10_000),
    amounts,
    st.integers(1, 100),
    st.booleans(),
    st.text(max_size=20),
)


@given(nodes)
def test_it_is_read_as_it_was_written(found):
    assert node_gpus({NODE_GPUS_ANNOTATION: node_gpus_text(found)}) == found


def test_the_text_for_16_gpus_has_at_most_640_bytes():
    largest = tuple(NodeGpu(2**31 - n, 2**31 - 1, 100, whole=True) for n in range(16, 0, -1))
    found = NodeGpus(largest, 2**31 - 1, 2**31 - 1, 100, both=False, links="f" * 16)
    assert node_gpus({NODE_GPUS_ANNOTATION: node_gpus_text(found)}) == found
    assert len(node_gpus_text(found).encode()) <= 640


def test_an_absent_annotation_is_none():
    assert node_gpus({}) is None


VALID = json.loads(node_gpus_text(NodeGpus((NodeGpu(0, 80),))))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        json.dumps(VALID | {"v": 2}),
        json.dumps(VALID | {"unit": -1}),
        json.dumps(VALID | {"links": None}),
        json.dumps(VALID | {"gpus": [[0, 1]]}),
        json.dumps(VALID | {"gpus": [[0, 1, 1, 0, True]]}),
        json.dumps(VALID | {"gpus": [[0, 80, 0, 0, 1]] * 2}),
        json.dumps(VALID | {"gpus": [[n, 80, 0, 0, 1] for n in range(100)]}),
    ],
)
def test_any_other_text_is_malformed(text):
    assert isinstance(node_gpus({NODE_GPUS_ANNOTATION: text}), Malformed)
