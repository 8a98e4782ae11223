"""What schedulers write, as the inspector reads it."""

from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.pods import annotations as an
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from inspectcgpu.read.gpu_pod import read_pod
from tests.unit.domain import hostile

LONGEST = 1000
"""Characters of a note, whatever stands in the annotation."""
written = st.dictionaries(st.sampled_from(an.KEYS), hostile.tables | hostile.names | hostile.anything, max_size=3)
asks = st.sampled_from(
    [{GPU_MEM: "4"}, {GPU_MEM: "4", GPU_CORE: "30"}, {GPU_WHOLE: "2"}, {GPU_MEM: "1"}, {GPU_WHOLE: "1"}]
)


@given(written, asks)
@example(
    {an.MEMORY_ANNOTATION: '{"0":{"1":3,"2":1}}', an.CORE_ANNOTATION: '{"0":{"1":30}}'}, {GPU_MEM: "4", GPU_CORE: "30"}
)
@example({an.GROUP_ANNOTATION: "0," * 100_000}, {GPU_WHOLE: "2"})
def test_a_pod_has_what_it_asks_for_or_nothing_and_no_note_is_endless(annotations, limits):
    found = read_pod(
        {
            "metadata": {"name": "a", "namespace": "ml", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        }
    )
    assert found.asks == {name: int(amount) for name, amount in limits.items()}
    for resource, gpus in found.places.items():
        assert sum(gpus.values()) == found.asks[resource]
        assert all(0 <= gpu <= 9999 and units >= 0 for gpu, units in gpus.items())
    assert found.places.keys() == found.sources.keys()
    assert all(len(fault) < LONGEST for fault in found.faults)
