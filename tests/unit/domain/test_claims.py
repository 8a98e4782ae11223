"""Who has a claim on which units: the book, and what was handed out since."""

from gpuagent.domain.annotations import MEMORY_ANNOTATION
from gpuagent.domain.claims import Claims
from gpuagent.domain.ledger import Handout, Ledger
from gpuagent.domain.mode import Kind, Mode
from tests.unit.domain.builders import CORE, MEM, holding, in_force, owner, pod_json, unit_ids, uuid


def mem(index, *numbers):
    return unit_ids(index, Kind.MEMORY_CORE_MEM, *numbers)


def core(index, *numbers):
    return unit_ids(index, Kind.CORE_CORE_MEM, *numbers)


def handed(*handouts) -> Ledger:
    ledger = Ledger()
    for who, resource, ids in handouts:
        made = Handout(resource, ids, (uuid(0),), 0.0, owner(who) if who else None)
        ledger = ledger.recorded(made, opens=False)
    return ledger


def claims(node, ledger=None, offered=(), now=1.0) -> Claims:
    return Claims(node.snap, ledger or Ledger(), frozenset(offered), now)


def test_a_handout_that_the_book_shows_is_one_claim():
    node = in_force(Mode.CORE_MEM).holdings(holding("a", mem(0, 0)))
    ledger = handed(("a", MEM, mem(0, 0)), ("b", MEM, mem(0, 1)))
    assert [claim.ids for claim in claims(node, ledger).all] == [mem(0, 0), mem(0, 1)]
    assert [claim.ids for claim in claims(node, ledger, now=500).all] == [mem(0, 0)]


def test_a_claim_of_which_anything_is_offered_again_does_not_stand():
    node = in_force(Mode.CORE_MEM).holdings(holding("a", mem(0, 0, 1)))
    assert claims(node, offered=mem(0, 1)).standing == ()
    assert len(claims(node, offered=mem(0, 2)).standing) == 1


def test_ids_given_before_are_found_also_in_part():
    node = in_force(Mode.CORE_MEM).holdings(holding("a", mem(0, 0, 1)))
    ledger = handed(("b", CORE, core(0, 5)))
    assert claims(node, ledger).given(MEM, mem(0, 1)) == holding("a", mem(0, 0, 1))
    assert claims(node, ledger).given(CORE, core(0, 5)).owner == owner("b")
    assert claims(node, ledger).given(MEM, mem(0, 1, 2)) is None
    assert claims(node, ledger).given(CORE, mem(0, 1)) is None


def test_a_holding_that_was_handed_on_since_the_book_was_read_counts_no_more():
    node = in_force(Mode.CORE_MEM).holdings(holding("old", mem(0, 0, 1)))
    assert [claim.owner for claim in claims(node, handed(("new", MEM, mem(0, 1)))).all] == [owner("new")]


def test_a_gpu_is_full_with_as_many_pods_as_allowed_but_not_for_those_on_it():
    node = in_force(Mode.CORE_MEM, max_pods_per_gpu=2)
    node.holdings(holding("a", mem(0, 0)), holding("a", core(0, 0), CORE), holding("b", mem(0, 1)))
    assert claims(node).full_gpus(owner("c")) == {uuid(0)}
    assert claims(node).full_gpus(None) == {uuid(0)}
    assert claims(node).full_gpus(owner("a", "other")) == set()
    assert claims(node, offered=mem(0, 1)).full_gpus(owner("c")) == set()


def test_pods_that_have_gone_fill_no_gpu():
    """Their compute was handed out a minute ago; kubelet's book and the API server know them no more."""
    node = in_force(Mode.CORE_MEM, max_pods_per_gpu=1).pods(pod_json("new", {MEM: 1, CORE: 1}))
    ledger = handed(("old", MEM, mem(0, 0)), ("old", CORE, core(0, 0)))
    free = {*mem(0, *range(16)), *mem(1, *range(16))}
    assert claims(node, ledger, offered=free, now=60).full_gpus(owner("new")) == set()


def test_compute_of_pods_that_have_gone_does_not_make_a_gpu_short():
    node = in_force(Mode.CORE_MEM).pods(pod_json("new", {MEM: 1, CORE: 80}))
    ledger = handed(("old", MEM, mem(0, 0)), ("old", CORE, core(0, *range(80))))
    free = {*mem(0, *range(16)), *mem(1, *range(16))}
    assert claims(node, ledger, offered=free, now=60).short_gpus(MEM, 80) == set()


def test_a_container_given_both_while_its_pod_is_unknown_is_one_pod():
    node = in_force(Mode.CORE_MEM, max_pods_per_gpu=2)
    ledger = handed(("", MEM, mem(0, 0)), ("", CORE, core(0, 0)))
    assert claims(node, ledger).full_gpus(None) == set()


def test_a_gpu_is_short_when_less_of_the_other_resource_is_left():
    node = in_force(Mode.CORE_MEM).holdings(holding("a", core(0, *range(71)), CORE))
    assert claims(node).short_gpus(MEM, 29) == set()
    assert claims(node).short_gpus(MEM, 30) == {uuid(0)}
    assert claims(node).short_gpus(CORE, 16) == set()
    assert claims(node, handed(("b", CORE, core(0, *range(71, 100))))).short_gpus(MEM, 0) == {uuid(0)}


def test_modes_with_one_resource_are_never_short():
    assert claims(in_force(Mode.SHARE)).short_gpus(MEM, 1000) == set()


def test_what_a_decided_pod_was_given_is_not_reserved_for_it_once_more():
    """Kubelet has lost its units and offers them: whether the pod holds them, kubelet is asked."""
    decided = pod_json("a", {MEM: 10}, annotations={MEMORY_ANNOTATION: '{"0":{"0":10}}'})
    node = in_force(Mode.SHARE).pods(decided)
    free = {*unit_ids(0, Kind.MEMORY_SHARE, *range(16)), *unit_ids(1, Kind.MEMORY_SHARE, *range(16))}
    assert claims(node, offered=free).promised(MEM, None) == {uuid(0): 10}
    ledger = handed(("a", MEM, unit_ids(0, Kind.MEMORY_SHARE, *range(10))))
    assert claims(node, ledger, free).promised(MEM, None) == {}


def test_units_offered_again_are_doubted_while_their_pod_lives():
    node = in_force(Mode.CORE_MEM).holdings(holding("a", mem(0, 0)))
    ledger = handed(("", MEM, mem(0, 1)))
    both = mem(0, 0, 1)
    assert {i for c in claims(node, ledger, both).doubted for i in c.ids} == both, "pods are not known"
    node.pods(pod_json("a", {MEM: 1}))
    assert {i for c in claims(node, ledger, both).doubted for i in c.ids} == both
    node.pods()
    assert {i for c in claims(node, ledger, both).doubted for i in c.ids} == mem(0, 1), (
        "a is gone; the other is nobody's"
    )
    assert claims(node, ledger, mem(0, 2)).doubted == ()
