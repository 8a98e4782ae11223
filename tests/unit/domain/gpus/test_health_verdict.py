"""A GPU's health: unhealthy at once, healthy after a delay that grows with each relapse."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.deviceplugin.advertise import deadline
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Inventory, UnreadableGpu
from gpuagent.domain.gpus.health_verdict import (
    ACTION,
    APPLICATION_XIDS,
    FIRST_ANSWER_S,
    MOST_REPORTED,
    MOST_SETTLE_S,
    NOTE_S,
    PASSING_XIDS,
    RELAPSE_S,
    REST,
    GpuHealth,
    HealthReading,
)
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.status.problems import problems
from tests.unit.domain.builders import MEM, NodeUnderTest, box, gpu, holding, in_force, owner, unit_ids, uuid

WELL, RESET = HealthReading(action=0), HealthReading(action=1)
SETTLE_S = 60.0
STUCK_XID, PASSING_XID = 79, 94


def xid(node, code, reading=None, n=0):
    return node.send(ev.XidRaised(uuid(n), code, node.now, reading))


def reports(node, reading, n=0, *, returned=False):
    return node.send(ev.HealthRead(uuid(n), reading, node.now, returned))


def is_offered(node, n=0):
    return n in node.offer(MEM)


def cause(node, n=0):
    return node.state.health.faults.get(uuid(n))


@pytest.fixture
def node():
    return in_force(Mode.SHARE)


# -- the first answer -----------------------------------------------------------------------------------------------


def starts(*unasked):
    """Two GPUs are read for the first time; of these the driver has not said yet how they are."""
    node = NodeUnderTest(Mode.SHARE)
    seen = Inventory(box(), driver_version="580.1", unasked=frozenset(uuid(n) for n in unasked))
    return node.send(ev.InventoryRead(seen, node.now)).holdings()


def test_a_gpu_is_not_offered_until_it_has_reported_its_health():
    node = starts(0)
    assert (is_offered(node), is_offered(node, 1)) == (False, True)
    assert [is_ill for _, is_ill in sorted(node.state.unhealthy.items())] == [
        "it was not asked yet: the driver takes its time"
    ]
    assert reports(node, HealthReading(action=0, partial=True)).offer(MEM).keys() == {1}
    node.announced()
    assert is_offered(reports(node, WELL))
    assert node.announced() == [], "nothing happened to it"


def test_a_gpu_that_says_at_last_that_it_needs_a_reset_is_never_offered():
    node = starts(0)
    assert not is_offered(reports(node, RESET))
    assert cause(node) == "the driver asks to reset the GPU"


def test_a_gpu_that_says_nothing_is_offered_after_a_while():
    node = starts(0)
    assert deadline(node.state) == node.now + FIRST_ANSWER_S
    assert not is_offered(node.wait(FIRST_ANSWER_S - 0.1))
    assert is_offered(node.wait(0.1))
    seen = Inventory(box(), driver_version="580.2", unasked=frozenset({uuid(0)}))
    assert is_offered(node.send(ev.InventoryRead(seen, node.now))), "it is waited for once"


def test_an_answer_that_came_before_the_gpu_was_read_counts():
    node = reports(NodeUnderTest(Mode.SHARE), WELL)
    seen = Inventory(box(), driver_version="580.1", unasked=frozenset({uuid(0)}))
    assert is_offered(node.send(ev.InventoryRead(seen, node.now)).holdings())


def test_what_was_not_asked_yet_stays_as_it_was_reported(node):
    reports(node, HealthReading(action=0, remap_failed=True))
    reports(node, HealthReading(action=0, partial=True))
    assert not is_offered(node)
    assert node.state.health.by_uuid[uuid(0)].healthy_since is None


# -- drivers that know recovery actions ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [STUCK_XID, PASSING_XID, 31, 48])
def test_an_xid_after_which_the_driver_asks_for_nothing_costs_nothing(node, code):
    xid(node, code, WELL)
    assert is_offered(node)
    assert node.announced() == ["ApplicationXID" if code in APPLICATION_XIDS else "HarmlessXID"]
    xid(node, code, HealthReading(action=5))
    assert is_offered(node)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (1, "the driver asks to reset the GPU"),
        (2, "the driver asks to reboot the node"),
        (4, "the driver asks to end the GPU's work and reset it"),
        (99, "the driver asks for recovery action 99"),
    ],
)
def test_a_driver_that_asks_for_an_action_has_the_gpu_taken_out_until_it_does_not(node, action, words):
    reports(node, HealthReading(action=action))
    assert cause(node) == words
    assert node.announced() == ["GPUUnhealthy"]
    assert is_offered(node, 1), "its neighbour serves"
    assert not is_offered(node.wait(10 * RELAPSE_S)), "however long that takes"
    reports(node, WELL)
    assert deadline(node.state) == node.now + SETTLE_S
    assert not is_offered(node.wait(SETTLE_S - 0.001))
    assert is_offered(node.wait(0.001))
    assert node.announced() == ["GPURecovered"]
    assert deadline(node.state) is None


def test_an_xid_and_the_action_after_it_are_one_illness(node):
    xid(node, 95, RESET)
    xid(node, 48, RESET)
    reports(node, RESET)
    assert cause(node) == "XID 95, XID 48; the driver asks to reset the GPU"


def test_an_applications_xid_is_not_blamed_for_what_stood_before_it(node):
    reports(node, RESET)
    node.announced()
    xid(node, 31, RESET)
    assert cause(node) == "the driver asks to reset the GPU"
    assert node.announced() == []
    xid(node, 31, HealthReading(action=2))
    assert cause(node) == "XID 31; the driver asks to reboot the node"


def test_an_applications_xid_costs_the_gpu_if_the_driver_asks_for_an_action(node):
    xid(node, 31, RESET)
    assert not is_offered(node)
    assert node.announced() == ["GPUUnhealthy"]


def test_an_xid_that_the_driver_is_silent_on_costs_the_gpu_until_it_says_that_nothing_is_needed(node):
    xid(node, STUCK_XID)
    assert not is_offered(node.wait(SETTLE_S))
    reports(node, WELL)
    assert is_offered(node.wait(SETTLE_S))


# -- drivers that do not ------------------------------------------------------------------------------------------


def test_an_xid_that_needs_a_reset_stands_until_the_gpu_was_away(node):
    xid(node, STUCK_XID)
    reports(node, HealthReading())
    assert not is_offered(node.wait(10 * RELAPSE_S))
    node.send(ev.GpuLost(uuid(0), "being reset", node.now))
    assert cause(node) == "XID 79; being reset"
    reports(node, HealthReading(), returned=True)
    assert not is_offered(node.wait(SETTLE_S - 1))
    assert is_offered(node.wait(1))


@pytest.mark.parametrize("code", sorted(PASSING_XIDS))
def test_an_xid_that_needs_no_reset_costs_the_settle_time(node, code):
    xid(node, code)
    assert cause(node) == f"XID {code}"
    assert not is_offered(node.wait(SETTLE_S - 1))
    xid(node, code)
    assert not is_offered(node.wait(SETTLE_S - 1)), "another one restarts it"
    assert is_offered(node.wait(1))


def test_an_administrators_lists_decide_what_an_xid_costs():
    node = in_force(Mode.SHARE, harmless_xids=APPLICATION_XIDS - {31} | {STUCK_XID})
    assert is_offered(xid(node, STUCK_XID))
    assert node.announced() == ["HarmlessXID"]
    assert not is_offered(xid(node, 31))
    assert is_offered(node.wait(SETTLE_S)), "no reset is needed after it"


def test_few_of_many_xids_are_reported(node):
    for code in range(200, 220):
        xid(node, code)
    assert cause(node) == ", ".join(f"XID {code}" for code in range(200, 200 + MOST_REPORTED))
    assert node.state.health.by_uuid[uuid(0)].last_xid == (219, 0.0)


# -- GPUs that go away ---------------------------------------------------------------------------------------------


def test_a_lost_gpu_comes_back_by_itself(node):
    node.send(ev.GpuLost(uuid(0), "GPU is lost", node.now))
    assert cause(node) == "GPU is lost"
    assert not is_offered(node.wait(RELAPSE_S))
    reports(node, WELL, returned=True)
    assert is_offered(node.wait(SETTLE_S))
    assert node.announced() == ["GPUUnhealthy", "GPURecovered"]


def test_a_gpu_that_the_driver_lists_again_comes_back_too(node):
    node.inventory(gpu(1))
    assert cause(node) == "the driver does not list it any more"
    assert not is_offered(node.wait(RELAPSE_S))
    node.inventory(*box())
    assert is_offered(node.wait(SETTLE_S))


@pytest.mark.parametrize("silence", ["hangs", "driver"])
def test_a_gpu_that_cannot_be_asked_does_not_get_well(node, silence):
    reports(reports(node, RESET), WELL)
    if silence == "hangs":
        node.inventory(*box(), unreadable=(UnreadableGpu(0, "a call has not returned"),))
    else:
        node.send(ev.DriverUnavailable("not loaded", node.now))
    assert deadline(node.state) is None
    assert not is_offered(node.wait(RELAPSE_S))
    node.inventory(*box())
    assert not is_offered(node.wait(SETTLE_S - 1))
    assert is_offered(node.wait(1))


# -- what else a driver says ------------------------------------------------------------------------------------------


def test_memory_that_cannot_be_replaced_costs_the_gpu(node):
    reports(node, HealthReading(action=0, remap_failed=True))
    assert cause(node) == "a broken row of its memory could not be replaced; have the GPU replaced"


@pytest.mark.parametrize("note", [{"remap_pending": True}, {"memory_errors": 2}, {"hot": True}, {"power_brake": True}])
def test_what_a_gpu_can_live_with_is_reported_and_costs_nothing(node, note):
    reports(node, HealthReading(**note))
    assert is_offered(node)
    assert node.announced() == ["GPUDegraded"]


@pytest.mark.parametrize("note", [{"hot": True}, {"power_brake": True}, {"silent_on": frozenset({ACTION})}])
def test_a_note_that_comes_and_goes_is_reported_once_until_it_stayed_away(node, note):
    for _ in range(20):
        reports(node, HealthReading(action=0, **note))
        reports(node.wait(5), WELL).wait(NOTE_S - 5)
    assert node.announced() == ["GPUDegraded"]
    assert [problem.reason for problem in problems(node.state)] == ["GPUDegraded"]
    assert deadline(node.state) == node.now + 5
    node.wait(5)
    assert problems(node.state) == []
    assert deadline(node.state) is None
    reports(node, HealthReading(action=0, **note))
    assert node.announced() == ["GPUDegraded"]


# -- a driver that is silent --------------------------------------------------------------------------------------

SILENT = HealthReading(silent_on=frozenset({ACTION}))


def test_a_lost_gpu_that_is_back_comes_back_although_the_driver_does_not_report_its_action(node):
    reports(node, RESET)
    node.send(ev.GpuLost(uuid(0), "GPU is lost", node.now))
    reports(node, SILENT, returned=True)
    assert is_offered(node.wait(SETTLE_S))


def test_an_action_stands_while_the_driver_is_silent_on_it(node):
    reports(node, RESET)
    reports(node, SILENT)
    assert not is_offered(node.wait(10 * RELAPSE_S))
    assert cause(node) == "the driver asks to reset the GPU"
    reports(node, WELL)
    assert is_offered(node.wait(SETTLE_S))


def test_an_xid_of_which_the_driver_is_silent_goes_by_its_class(node):
    reports(node, WELL)
    xid(node, 31, SILENT)
    assert is_offered(node)
    xid(node, STUCK_XID, SILENT)
    reports(node, SILENT)
    assert not is_offered(node.wait(10 * RELAPSE_S))
    reports(node, WELL)
    assert is_offered(node.wait(SETTLE_S))


def test_what_is_known_of_memory_stands_while_the_driver_is_silent_on_it(node):
    reports(node, HealthReading(action=0, remap_failed=True))
    reports(node, HealthReading(action=0, silent_on=frozenset({REST})), returned=True)
    assert not is_offered(node.wait(10 * RELAPSE_S))


# -- GPUs that cannot be read, and those that are not known yet ------------------------------------------------------


def test_a_gpu_that_could_not_be_read_is_not_called_unlisted_and_its_return_is_no_reset(node):
    xid(node, STUCK_XID)
    node.inventory(gpu(1), unreadable=(UnreadableGpu(0, "UNKNOWN"),))
    assert cause(node) == "XID 79; it cannot be read: UNKNOWN"
    node.inventory(*box())
    reports(node, HealthReading())
    assert cause(node) == "XID 79"
    assert not is_offered(node.wait(10 * RELAPSE_S))
    node.inventory(gpu(1)).inventory(*box())
    assert is_offered(node.wait(SETTLE_S)), "one that the driver did not list was away"


def test_a_gpu_that_could_not_be_read_is_known_though_its_index_moved():
    node = in_force(Mode.SHARE, box(3))
    node.inventory(gpu(1, index=0), unreadable=(UnreadableGpu(1, "UNKNOWN"),))
    assert cause(node, 0) == "the driver does not list it any more"
    node.inventory(gpu(0, index=1), gpu(1, index=0), unreadable=(UnreadableGpu(2, "UNKNOWN"),))
    assert cause(node, 2) == "it cannot be read: UNKNOWN"
    node.inventory(gpu(0, index=2), gpu(1, index=0), unreadable=(UnreadableGpu(1, "ODD"),))
    assert cause(node, 2) == "it cannot be read: ODD"


def test_what_was_reported_of_a_gpu_before_it_was_read_is_in_the_first_list():
    node = NodeUnderTest(Mode.SHARE)
    reports(node, RESET)
    xid(node, 94, HealthReading(action=0), n=1)
    node.inventory(*box()).holdings()
    assert (set(node.fenced(MEM)), set(node.offer(MEM))) == ({0}, {1})
    assert node.state.health.by_uuid[uuid(1)].counts == {94: 1}
    assert node.state.health.early == {}


# -- whom it concerns -----------------------------------------------------------------------------------------------


def test_the_pods_that_hold_the_gpu_get_the_event_and_no_others(node):
    node.holdings(
        holding("one", unit_ids(0, Kind.MEMORY_SHARE, 1, 2)),
        holding("one", unit_ids(0, Kind.MEMORY_SHARE, 3), container="side"),
        holding("other", unit_ids(1, Kind.MEMORY_SHARE, 1)),
    )
    reports(node, RESET)
    assert [(announcement.reason, announcement.warning, announcement.pods) for announcement in node.announcements] == [
        ("GPUUnhealthy", True, ()),
        ("GPUUnhealthy", True, (owner("one").pod,)),
    ]
    node.announcements.clear()
    reports(node, WELL).wait(SETTLE_S)
    assert [(announcement.reason, announcement.warning, announcement.pods) for announcement in node.announcements] == [
        ("GPURecovered", False, ()),
        ("GPURecovered", False, (owner("one").pod,)),
    ]


def test_the_pods_that_hold_a_gpu_get_one_event_for_each_new_cause(node):
    node.holdings(holding("one", unit_ids(0, Kind.MEMORY_SHARE, 1)))
    reports(node, RESET)
    node.announcements.clear()

    def messages():
        mine = [
            announcement.message.partition("unhealthy: ")[2] for announcement in node.announcements if announcement.pods
        ]
        node.announcements.clear()
        return mine

    for _ in range(3):
        node.send(ev.GpuLost(uuid(0), "GPU is lost", node.now))
        reports(node, RESET, returned=True)
    assert messages() == ["GPU is lost; the driver asks to reset the GPU"]
    reports(node, HealthReading(action=2))
    assert messages() == ["the driver asks to reboot the node"]


def test_the_pods_that_hold_a_gpu_get_events_when_it_is_fenced_and_unfenced(node):
    node.holdings(
        holding("one", unit_ids(0, Kind.MEMORY_SHARE, 1)), holding("other", unit_ids(1, Kind.MEMORY_SHARE, 1))
    )
    node.send(ev.FenceRead(Fence(indexes=frozenset({"0"})), node.now))
    node.send(ev.FenceRead(Fence(), node.now))
    assert [
        (announcement.reason, announcement.warning, announcement.pods)
        for announcement in node.announcements
        if announcement.pods
    ] == [
        ("GPUFenced", False, (owner("one").pod,)),
        ("GPUUnfenced", False, (owner("one").pod,)),
    ]


# -- damping --------------------------------------------------------------------------------------------------------


def relapse(node, after_s):
    """Seconds that it takes to be offered again, with an illness so long after the last recovery."""
    node.wait(after_s)
    reports(node, RESET)
    reports(node, WELL)
    due = deadline(node.state)
    took = due - node.now
    assert is_offered(node.wait(took))
    return took


def test_a_relapse_within_an_hour_doubles_the_settle_time_up_to_half_an_hour(node):
    assert [relapse(node, RELAPSE_S - 1) for _ in range(7)] == [60, 120, 240, 480, 960, MOST_SETTLE_S, MOST_SETTLE_S]
    assert relapse(node, RELAPSE_S) == 60, "an hour of health is a fresh start"


def test_a_longer_settle_time_than_half_an_hour_stays():
    node = in_force(Mode.SHARE, settle_s=4000.0)
    assert [relapse(node, 1) for _ in range(3)] == [4000, 4000, 4000]


def test_flapping_while_it_settles_keeps_it_out_and_is_reported_once(node):
    for _ in range(50):
        reports(node, RESET)
        node.wait(1)
        reports(node, WELL)
        assert not is_offered(node.wait(SETTLE_S - 1))
    assert node.announced() == ["GPUUnhealthy"]
    assert is_offered(node.wait(1))


# -- whatever happens -----------------------------------------------------------------------------------------------

READINGS = st.builds(
    HealthReading,
    action=st.sampled_from([None, 0, 1, 5, 9]),
    remap_failed=st.booleans(),
    hot=st.booleans(),
    silent_on=st.sampled_from([frozenset(), frozenset({ACTION}), frozenset({ACTION, REST})]),
)
CHANGES = st.one_of(
    st.tuples(st.just("xid"), st.sampled_from([31, PASSING_XID, STUCK_XID]), st.none() | READINGS),
    st.tuples(st.just("answers"), READINGS, st.booleans()),
    st.tuples(st.just("goes")),
    st.tuples(st.just("listed"), st.booleans(), st.none() | st.just("UNKNOWN")),
    st.tuples(st.just("time"), st.sampled_from([0.0, 1.0, SETTLE_S, RELAPSE_S])),
    st.tuples(st.just("known"), st.booleans()),
)


@given(st.lists(CHANGES, max_size=40))
def test_whatever_happens_no_cause_is_overlooked_and_health_comes_back(changes):
    case, at, known = GpuHealth(), 0.0, True
    for kind, *what in changes:
        before = case
        if kind == "xid":
            case = case.xid(what[0], what[1], APPLICATION_XIDS, at)
        elif kind == "answers":
            case = case.answered(what[0], returned=what[1])
        elif kind == "goes":
            case = case.went_silent("GPU is lost")
        elif kind == "listed":
            case = case.listed(*what)
        elif kind == "time":
            at += what[0]
        else:
            known = what[0]
        case = case.judged(at, SETTLE_S, known=known)
        assert case.cause is not None or not case.against
        assert case.cause is None or case.due is None or (known and not case.against and at < case.due)
        assert SETTLE_S <= case.settle_s <= MOST_SETTLE_S or case.settle_s == 0
        if before.cause is not None and case.cause is None:
            assert at >= before.due
        if before.cause is None and case.cause is not None and at - before.recovered_at < RELAPSE_S:
            assert case.settle_s >= before.settle_s
        assert case.judged(at, SETTLE_S, known=known) == case, "a verdict is final until something happens"
    case = case.listed(there=True).answered(WELL, returned=True).judged(at, SETTLE_S, known=True)
    assert case.judged(at + MOST_SETTLE_S, SETTLE_S, known=True).cause is None


def test_the_words_of_a_case_are_those_of_its_xids():
    assert replace(GpuHealth(), xids=(1, 2), stuck=True).against == ("XID 1, XID 2",)


def test_xids_are_counted_by_their_number():
    case = GpuHealth()
    for xid in (79, 31, 79, 79):
        case = case.xid(xid, None, APPLICATION_XIDS, 0.0)
    assert case.counts == {79: 3, 31: 1}


def test_an_applications_xid_does_not_end_what_needs_a_reset_while_the_driver_is_silent():
    stuck = GpuHealth().xid(79, None, APPLICATION_XIDS, 0.0)
    assert stuck.stuck
    assert stuck.xid(31, None, APPLICATION_XIDS, 1.0).stuck
    assert not stuck.xid(31, HealthReading(action=0), APPLICATION_XIDS, 1.0).stuck, (
        "the driver says that nothing is needed"
    )
