"""The GPU of a share: the preferred one, else the fullest that has room, or on a node that spreads the emptiest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.sharing.mode import Placement
from gpuscheduler.core.choose_gpus import fit, fits, tries_without_search
from gpuscheduler.core.constraints.tries import Tries
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.node_usage import NodeUsage
from tests.unit.gpuscheduler.core.api_objects import container, pod, shared_node, whole_node

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


EASY = {
    "a share": (pod(mem=8), shared_node(gpus=16)),
    "a share of two GPUs": (pod(mem=16, gpu_count=2), shared_node(gpus=16)),
    "whole GPUs": (pod(whole=8), whole_node()),
    "containers on one GPU": (pod(None, container("a", mem=4), container("b", mem=5)), shared_node(gpus=16)),
    "containers on several GPUs": (
        pod(None, *[container(f"c{number}", mem=8) for number in range(12)]),
        shared_node(gpus=16),
    ),
}


@pytest.mark.parametrize(("asking", "facts"), EASY.values(), ids=EASY)
@pytest.mark.parametrize("look", [fit, fits])
def test_what_needs_no_search_is_found_on_any_number_of_nodes(asking, facts, look):
    node = NodeUsage(facts)
    tries = Tries(0)
    for _ in range(3000):
        tries.allow(tries_without_search(asking.request, node))
        assert look(asking.request, node, tries=tries)


def test_a_search_that_gave_up_does_not_go_on():
    tries = Tries(1)
    tries.spend(2)
    tries.allow(10)
    assert tries.gave_up
