"""What is made of the clients of a daemon, and which of them are ended before kubelet does: values alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.host.cuda_probe import Probed, Verdict
from gpuagent.isolation.mps.clients.client_state import ClientState, Cure, WedgePolicy
from gpuagent.isolation.mps.clients.drain import LEAD_S, OVER_S, clients_to_end, due_pods, next_due_s

POLICY = WedgePolicy(fresh_s=60.0, again_s=30.0, quiet_s=30.0)
SERVED = Probed(Verdict.SERVED, "cuDevicePrimaryCtxRelease 0")
HANGS = Probed(Verdict.HANGS, "a new program gets no answer within 10 s")
UNKNOWN = Probed(Verdict.UNKNOWN, "no libcuda.so.1")

BEGUN = ClientState()
USED = BEGUN.read([1, 2], ["ACTIVE"]).probed(SERVED, 100.0)


def test_a_client_that_has_gone_makes_the_server_suspect_until_it_is_probed():
    assert not USED.needs_probe(100.0, POLICY)
    gone = USED.read([1], ["ACTIVE"])
    assert gone.needs_probe(100.0, POLICY)
    assert gone.needs_probe_before_start(100.0, POLICY)
    assert gone.read([1, 3], ["ACTIVE"]).needs_probe(101.0, POLICY), "another one does not show that the server works"
    assert not gone.probed(SERVED, 101.0).needs_probe(101.0, POLICY)


def test_before_a_start_a_server_without_clients_is_probed_once_a_minute():
    assert BEGUN.needs_probe_before_start(0.0, POLICY)
    probed = BEGUN.probed(SERVED, 100.0)
    assert not probed.needs_probe_before_start(159.0, POLICY)
    assert probed.needs_probe_before_start(160.0, POLICY)
    assert not probed.read([1], ["ACTIVE"]).needs_probe_before_start(999.0, POLICY), "a client lives"


def test_a_server_that_hangs_with_clients_names_their_pods():
    hangs = USED.read([1], ["ACTIVE"]).probed(HANGS, 101.0)
    problem = hangs.problem("GPU 0", ["ml/b", "ml/a"], restarts=True)
    assert problem == "MPS hangs on GPU 0: pods ml/a, ml/b must end (a new program gets no answer within 10 s)"
    assert hangs.cure(9999.0, POLICY) is Cure.NONE, "programs may still compute"
    killing = WedgePolicy(kill_s=600.0)
    assert hangs.cure(700.0, killing) is Cure.NONE
    assert hangs.cure(701.0, killing) is Cure.KILL


def test_a_server_that_hangs_is_probed_again_and_may_recover():
    hangs = USED.probed(HANGS, 101.0)
    assert not hangs.needs_probe(130.0, POLICY)
    assert hangs.needs_probe(131.0, POLICY)
    again = hangs.probed(HANGS, 131.0)
    assert again.hangs_since == 101.0
    assert again.probed(SERVED, 161.0).problem("GPU 0", [], restarts=True) is None


def test_a_daemon_without_clients_is_started_again_once_no_program_may_be_connecting():
    """A client that is just making its context is in no list."""
    hangs = BEGUN.started(100.0).probed(HANGS, 110.0)
    assert "is about to be started again" in hangs.problem("GPU 0", [], restarts=True)
    assert "end its daemon" in hangs.problem("GPU 0", [], restarts=False)
    assert hangs.cure(129.0, POLICY) is Cure.NONE
    assert hangs.cure(130.0, POLICY) is Cure.RESTART
    assert hangs.restarted() == ClientState(started_at=100.0, is_new=True)


def test_a_probe_that_a_new_daemon_does_not_serve_either_is_not_believed_until_it_succeeds():
    """The agent may be unable to be a client where containers are. Then no restart would help."""
    doubted = BEGUN.probed(HANGS, 110.0).restarted().probed(HANGS, 120.0)
    assert not doubted.hangs
    assert doubted.unprobed == "a new program gets no answer within 10 s, also from a new daemon"
    assert doubted.cure(999.0, POLICY) is Cure.NONE
    gone = doubted.read([1], ["ACTIVE"]).read([], ["ACTIVE"])
    assert not gone.probed(HANGS, 200.0).hangs
    trusted = gone.probed(SERVED, 200.0)
    assert trusted.probed(HANGS, 300.0).hangs


def test_a_fatal_fault_names_the_pods_that_must_end():
    faulty = USED.read([1, 2], ["FAULT"])
    assert faulty.problem("GPU 0", ["ml/a"], restarts=True) == (
        "MPS takes no new programs on GPU 0 after a fatal fault: pods ml/a must end"
    )
    alone = faulty.read([], ["FAULT"]).probed(SERVED, 101.0)
    assert alone.problem("GPU 0", [], restarts=True) is None
    assert alone.needs_probe(131.0, POLICY), "the fault should have gone with its clients"


def test_what_is_known_of_a_daemon_ends_with_it():
    hangs = USED.started(100.0).probed(HANGS, 101.0)
    assert hangs.ended() == ClientState(started_at=100.0)
    assert hangs.restarted().ended().is_new


def test_a_probe_that_does_not_work_shows_nothing():
    unknown = USED.read([1], ["ACTIVE"]).probed(UNKNOWN, 101.0)
    assert (unknown.hangs, unknown.unprobed) == (False, "no libcuda.so.1")
    assert not unknown.needs_probe(102.0, POLICY)
    assert USED.probed(HANGS, 101.0).probed(UNKNOWN, 131.0).hangs, "what was seen before stays"


# -- which clients are ended ---------------------------------------------------------------------------------------


def test_the_clients_of_a_pod_are_ended_just_before_kubelet_kills_them():
    ending = {"a": 100.0, "b": 130.0}
    assert due_pods(ending, 96.9) == frozenset()
    assert next_due_s(ending, 96.0) == 1.0
    assert due_pods(ending, 97.0) == {"a"}
    assert next_due_s(ending, 97.0) == 30.0
    assert next_due_s(ending, 127.0) is None


def test_only_clients_of_these_pods_are_ended():
    assert clients_to_end({"a"}, {7: "a", 5: "a", 6: "b", 4: None}) == (5, 7)


@given(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6)), st.floats(0, 1e6))
def test_every_pod_is_due_or_waited_for(ending, now):
    due = due_pods(ending, now)
    for uid, kill_at in ending.items():
        assert (uid in due) == (kill_at - LEAD_S <= now < kill_at + OVER_S)
    awaited = [kill_at for kill_at in ending.values() if kill_at - LEAD_S > now]
    assert (next_due_s(ending, now) is None) == (not awaited)


def test_a_pod_that_stays_long_after_its_end_is_left():
    """Its finalizers may keep it for hours, and its processes have gone."""
    assert due_pods({"a": 100.0}, 110.0) == frozenset()


@pytest.mark.parametrize("kill_at", [98.0, 101.0])
def test_a_pod_with_a_short_grace_period_is_due_at_once(kill_at):
    assert due_pods({"a": kill_at}, 99.0) == {"a"}
