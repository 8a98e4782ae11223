"""The memory of the last handouts."""

from dataclasses import replace

from gpuagent.domain.ledger import PAIR_S, REMEMBER_S, Handout, Ledger
from gpuagent.domain.mode import Kind
from tests.unit.domain.builders import CORE, MEM, owner, unit_ids, uuid


def handout(*numbers: int, at: float = 0.0, resource: str = MEM, who: str = "") -> Handout:
    ids = unit_ids(0, Kind.MEMORY_CORE_MEM, *numbers)
    return Handout(resource, ids, (uuid(0),), at, owner(who) if who else None)


def test_handouts_are_remembered_for_two_minutes():
    ledger = Ledger().recorded(handout(1), opens=False)
    assert list(ledger.recent(REMEMBER_S - 0.1)) == [handout(1)]
    assert list(ledger.recent(REMEMBER_S)) == []


def test_recording_forgets_what_is_old_and_what_was_given_again():
    ledger = Ledger()
    for given in (handout(1), handout(2, at=60), handout(3, 4, at=61)):
        ledger = ledger.recorded(given, opens=False)
    ledger = ledger.recorded(handout(4, at=REMEMBER_S + 1), opens=False)
    assert [h.ids for h in ledger.handouts if h.at == 60] == [handout(2).ids]
    assert ledger.handouts[-1] == handout(4, at=REMEMBER_S + 1)
    assert all(not h.ids & handout(1).ids for h in ledger.handouts)


def test_recording_keeps_the_rest_of_a_handout_of_which_part_is_given_again():
    """What an init container had and the next one did not take is still the pod's."""
    ledger = Ledger().recorded(handout(3, 4, 5, who="a"), opens=False).recorded(handout(4, at=1, who="a"), opens=False)
    remembered = [device_id for h in ledger.handouts for device_id in sorted(h.ids)]
    assert sorted(remembered) == sorted(handout(3, 4, 5).ids)


def test_units_whose_id_was_given_for_others_are_nobodys():
    """Where ids are counts: kubelet has taken the id back, and picked it for somebody else."""
    before = replace(handout(3, 4), exchanged={"x": "1", "y": "2"}, ids=frozenset({"1", "2"}))
    after = replace(handout(5, at=1), exchanged={"y": "9"}, ids=frozenset({"9"}))
    ledger = Ledger().recorded(before, opens=False).recorded(after, opens=False)
    assert [h.ids for h in ledger.handouts] == [{"1"}, {"9"}]


def test_only_another_resource_asked_soon_after_is_a_partner():
    ledger = Ledger().recorded(handout(1), opens=True)
    assert ledger.awaiting_partner(CORE, 0.1) == handout(1)
    assert ledger.awaiting_partner(CORE, PAIR_S) is None
    assert ledger.awaiting_partner(MEM, 0.1) is None
    assert Ledger().recorded(handout(1), opens=False).awaiting_partner(CORE, 0.1) is None


def test_a_second_handout_answers_the_open_one():
    ledger = Ledger().recorded(handout(1), opens=True).recorded(handout(2, resource=CORE), opens=False)
    assert ledger.awaiting_partner(CORE, 0.1) is None
    assert ledger.awaiting_partner(MEM, 0.1) is None


def test_an_identified_owner_replaces_the_guess_for_exactly_these_ids():
    ledger = Ledger().recorded(handout(1, who="guess"), opens=False).recorded(handout(2, who="other"), opens=False)
    ledger = ledger.believed(handout(1).ids, owner("sure"), "uid-sure", decided=False)
    assert [(h.owner, h.uid) for h in ledger.handouts] == [(owner("sure"), "uid-sure"), (owner("other"), None)]
