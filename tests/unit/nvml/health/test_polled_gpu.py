"""What is known of a polled GPU, without a thread and a driver: what each answer or failure changes, and what is posted."""

import pytest

from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.nvml.health.poll_requests import PollRequests
from gpuagent.nvml.health.polled_gpu import PolledGpu

UUID = "GPU-1"
WELL = HealthReading(action=0)
ILL = HealthReading(action=1)


def known(**changes):
    return PolledGpu(**{"uuid": UUID, "reading": WELL, "has_answered": True, **changes})


def answer(gpu, reading=WELL, uuid=UUID, *, awaited=False):
    return gpu.answers(uuid, reading, awaited=awaited)


def test_an_answer_is_posted_if_it_differs_from_the_last_one():
    assert not answer(known()).is_posted
    assert answer(known(), ILL).is_posted
    assert answer(known(reading=ILL)).is_posted


def test_the_first_answer_is_posted_only_if_something_is_wrong():
    assert not answer(PolledGpu(uuid=UUID)).is_posted
    assert answer(PolledGpu(uuid=UUID), ILL).is_posted


def test_an_xid_posts_the_answer_that_it_waits_for_itself():
    assert not answer(known(), ILL, awaited=True).is_posted


@pytest.mark.parametrize("owed", ["owes_reading", "lost", "away"])
def test_an_answer_that_is_owed_is_posted_once_whatever_it_is(owed):
    first = answer(known(**{owed: True}))
    assert first.is_posted
    assert not answer(first.gpu).is_posted


def test_a_late_first_answer_is_posted_when_it_is_complete():
    partial = answer(known(owes_first=True), HealthReading(action=0, partial=True))
    assert not partial.is_posted
    assert answer(partial.gpu).is_posted


def test_only_a_gpu_that_was_away_returns_from_a_reset():
    assert not answer(known().is_lost("it does not answer", away=False)).is_return
    assert answer(known().is_lost("it fell off the bus", away=True)).is_return
    assert answer(known().without_driver()).is_return


def test_a_gpu_that_is_back_or_moved_or_switched_mig_has_all_gpus_read_again():
    assert not answer(known()).needs_rescan
    assert answer(known(lost=True)).needs_rescan
    assert answer(known(), uuid="GPU-2").needs_rescan
    assert answer(known(mig=False), HealthReading(action=0, mig=True)).needs_rescan
    assert not answer(known(mig=None), HealthReading(action=0, mig=True)).needs_rescan


def test_a_gpu_whose_memory_changes_has_all_gpus_read_again():
    larger = HealthReading(action=0, memory_mib=2048)
    assert answer(known(memory_mib=1024), larger).needs_rescan
    assert not answer(known(memory_mib=2048), larger).needs_rescan
    assert not answer(known(memory_mib=None), larger).needs_rescan
    assert answer(known(memory_mib=1024)).gpu.memory_mib == 1024, "if it is not reported, it is what it was"


def test_mig_mode_that_is_not_reported_is_what_it_was():
    assert answer(known(mig=True)).gpu.mig


def test_only_a_complete_reading_without_a_fault_is_fine():
    assert known().is_fine
    for gpu in (known(reading=None), known(reading=ILL), known(failed=True)):
        assert not gpu.is_fine
    assert not known(reading=HealthReading(action=0, partial=True)).is_fine
    assert not known(reading=HealthReading(action=0, silent_on=frozenset({"action"}))).is_fine


def test_a_loss_keeps_its_first_reason():
    gpu = known().is_lost("first", away=False).is_lost("second", away=True)
    assert (gpu.error, gpu.away) == ("first", True)


def test_a_poll_serves_the_requests_that_came_before_it_began():
    requests = PollRequests().another().begin().another().end()
    assert requests.is_open
    assert not requests.begin().end().is_open


def test_an_answer_from_before_a_loss_is_outdated():
    requests = PollRequests().another().begin().another_after_loss()
    assert requests.is_outdated
    assert not requests.begin().is_outdated


def test_an_xid_waits_for_a_poll_that_begins_after_it():
    requests = PollRequests().another().begin().another_awaited()
    assert not requests.is_awaited
    assert requests.begin().is_awaited
    assert not requests.begin().no_more_awaited().is_awaited
