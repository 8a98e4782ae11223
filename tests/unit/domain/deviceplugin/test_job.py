"""The topology family of annotations, resolved to this node's GPUs."""

from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.job import named_gpus, visible_gpus_of
from gpuagent.domain.deviceplugin.occupancy import Occupancy
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, VISIBLE_ANNOTATION, Mode
from tests.unit.domain import hostile
from tests.unit.domain.builders import WHOLE, box, in_force, pod_json, uuid

NODE = in_force(Mode.TOPOLOGY, box(4), trust_visible=True).snap
OCCUPANCY = Occupancy(NODE, AdmissionTracker())
LONGEST = 1000
"""Characters of a message, whatever stands in the annotation."""


@given(hostile.names | hostile.anything, st.integers(1, 3))
@example("0," * 100_000, 1)
@example("x" * 100_000, 1)
def test_gpus_that_a_scheduler_named_are_this_nodes_and_as_many_as_asked_for_or_refused(value, size):
    pod = parse_pod(pod_json("a", {WHOLE: size}, annotations={GROUP_ANNOTATION: value, VISIBLE_ANNOTATION: value}))
    named = isinstance(value, str) and value
    for read in (
        lambda: named_gpus(pod, WHOLE, NODE),
        lambda: visible_gpus_of(pod, {uuid(0)}, OCCUPANCY),
    ):
        try:
            found = read()
        except Refusal as refusal:
            assert named
            assert refusal.reason is Reason.GPU_GROUP
            assert len(refusal.message) < LONGEST
            continue
        assert NODE.gpus.keys() >= set(found or ())
        if isinstance(found, tuple):
            assert uuid(0) not in found
        else:
            assert (found is not None) == bool(named)
            assert found is None or len(found) == size
