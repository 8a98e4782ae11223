"""The GPU of a share: the preferred one, else the fullest that has room, or on a node that spreads the emptiest."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.sharing.mode import Placement
from gpuscheduler.core.choose_gpus import fit
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.node_usage import NodeUsage
from tests.unit.gpuscheduler.core.api_objects import pod, shared_node

MEMORY = 10

amounts = st.integers(0, MEMORY)


@given(st.lists(amounts, min_size=1, max_size=18), st.integers(1, MEMORY), st.integers(0, 20), st.booleans())
def test_a_share_of_one_gpu_gets_the_first_gpu_in_order(used, asked, preferred, spread):
    facts = shared_node(gpus=len(used), memory=MEMORY)
    node = NodeUsage(replace(facts, placement=Placement.SPREAD if spread else Placement.BINPACK))
    for minor, units in enumerate(used):
        if units:
            node.use(f"u{minor}", ((minor, Amounts(units)),))
    free = {minor: MEMORY - units for minor, units in enumerate(used)}
    roomy = [minor for minor in free if free[minor] >= asked]

    choice = fit(pod(mem=asked).request, node, [preferred])

    if not roomy:
        assert choice is None
        return
    if spread:
        expected = max(roomy, key=lambda minor: (free[minor], -minor))
    elif preferred in roomy:
        expected = preferred
    else:
        expected = min(roomy, key=lambda minor: (free[minor], minor))
    assert choice.used == ((expected, Amounts(asked)),)
    assert choice.containers == {0: {expected: Amounts(asked)}}
