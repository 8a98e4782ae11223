"""What the mps driver makes of what it sees of its daemon: values alone, without a process and a clock."""

from pathlib import Path

import pytest

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.daemon_state import NOT_LOOKED, NOT_WANTED, STARTS_SOON, Demand, MpsPolicy, MpsState, Phase

POLICY = MpsPolicy(every_s=5.0, steady_s=60.0, owner_s=40.0)
FOREIGN = MpsPolicy(starts=False, every_s=5.0)
BEGUN = MpsState.begun(100.0)
SERVING = BEGUN.started(100.0, POLICY)
GPU = Gpu(uuid="GPU-0", index=0, minor=0, pci_bus_id="", model="", memory_mib=1024)

SERVES = Need(serves=True)
IN_USE = Need(in_use=True)
NOTHING = Need()


def test_at_first_nothing_is_known_and_a_daemon_may_start_at_once():
    assert (BEGUN.phase, BEGUN.problem, BEGUN.has_daemon) == (Phase.NOT_LOOKED, NOT_LOOKED, False)
    assert BEGUN.on_standby
    assert BEGUN.start_in_s(100.0) <= 0


def test_a_started_daemon_serves():
    assert (SERVING.phase, SERVING.problem, SERVING.has_daemon, SERVING.pause_s) == (Phase.SERVING, None, True, 5.0)
    assert not SERVING.on_standby


def test_a_daemon_is_steady_after_its_time_without_a_failure():
    assert not SERVING.is_steady(159.0, POLICY)
    assert SERVING.is_steady(160.0, POLICY)
    silent = SERVING.silent("it did not answer", 7, 150.0, POLICY)
    assert not silent.serving(POLICY).is_steady(209.0, POLICY)
    assert silent.serving(POLICY).is_steady(210.0, POLICY)


@pytest.mark.parametrize(("pid", "words"), [(7, "end process 7"), (None, "end process of the daemon")])
def test_a_silent_daemon_stays_found(pid, words):
    silent = SERVING.silent("it did not answer", pid, 150.0, POLICY)
    assert silent.problem == f"it did not answer; if this stays, look at its log and {words}"
    assert (silent.phase, silent.has_daemon) == (Phase.SILENT, True)


def test_a_lost_daemon_of_our_own_is_started_again_after_the_delay():
    lost = SERVING.lost("it died", 200.0, 2.0, POLICY, adopted=False)
    assert (lost.phase, lost.problem, lost.has_daemon) == (Phase.LOST, "it died; it is started again", False)
    assert (lost.pause_s, lost.start_in_s(200.0)) == (2.0, 2.0)


def test_a_lost_daemon_of_another_program_is_its_owners_for_a_while():
    lost = SERVING.lost("it died", 200.0, 2.0, POLICY, adopted=True)
    assert lost.problem == "it died; its owner has 40 s to bring it back, then the agent starts its own"
    assert (lost.pause_s, lost.start_in_s(200.0)) == (2.0, 40.0)


def test_without_the_right_to_start_one_a_lost_daemon_is_waited_for():
    lost = SERVING.lost("it died", 200.0, 9.0, FOREIGN, adopted=True)
    assert lost.problem == "it died; who runs it has to bring it back"
    assert (lost.pause_s, lost.start_after) == (5.0, SERVING.start_after)
    missing = lost.missing([Path("/a"), Path("/b")], FOREIGN)
    assert (missing.phase, missing.pause_s) == (Phase.MISSING, 5.0)
    assert "run one at /a or /b" in missing.problem


def test_until_the_next_start_the_reason_of_the_last_end_stays():
    lost = SERVING.lost("it died", 200.0, 9.0, POLICY, adopted=False)
    awaited = lost.start_awaited(201.0, POLICY)
    assert (awaited.phase, awaited.problem, awaited.pause_s) == (Phase.LOST, lost.problem, 5.0)
    assert awaited.start_awaited(208.0, POLICY).pause_s == 1.0
    assert SERVING.released(runs=False).start_awaited(90.0, POLICY).problem == STARTS_SOON


def test_a_start_that_failed_is_tried_again_after_the_delay():
    failed = BEGUN.start_failed("no GPU", 200.0, 3.0, POLICY)
    assert (failed.phase, failed.problem) == (Phase.NOT_STARTED, "MPS cannot be started: no GPU")
    assert (failed.pause_s, failed.start_in_s(201.0)) == (3.0, 2.0)


def test_what_is_known_of_the_daemon_outlives_other_troubles_and_times_without_need():
    for state in (SERVING.unable("the driver is gone", POLICY), SERVING.not_needed(1.0, POLICY)):
        assert state.has_daemon
    assert not SERVING.not_needed(1.0, POLICY).released(runs=False).has_daemon


def test_a_daemon_that_is_not_needed_is_no_trouble():
    state = SERVING.not_needed(9.0, POLICY)
    assert (state.phase, state.problem, state.pause_s) == (Phase.NOT_NEEDED, NOT_WANTED, 5.0)
    assert state.on_standby
    assert state.not_needed(2.0, POLICY).pause_s == 2.0
    assert not state.unable("none", POLICY).on_standby


def test_the_time_without_need_begins_when_the_last_need_ends():
    demand = Demand(NOTHING, 10.0)
    assert not demand.is_wanted
    demand = demand.changed(Need(gpus=(GPU,)), 15.0)
    assert demand.unneeded_since == 10.0, "another need that needs no daemon"
    demand = demand.changed(SERVES, 20.0).changed(IN_USE, 30.0)
    assert demand.is_wanted
    demand = demand.changed(NOTHING, 40.0)
    assert (demand.is_wanted, demand.unneeded_since) == (False, 40.0)
