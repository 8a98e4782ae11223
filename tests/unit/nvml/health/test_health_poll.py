"""Each GPU's health, asked for in a thread of its own: told when it changes, at once after an XID, and hung on by none."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuagent.domain.events import GpuLost, HealthRead, InventoryRead, XidRaised
from gpuagent.domain.gpus.health_verdict import ACTION, REST, HealthReading
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.bounded_query import BoundedQuery
from gpuagent.nvml.health import xid_watch
from gpuagent.nvml.health.health_poll import HealthPoll, PollSchedule
from gpuagent.simulation.driver import SimulatedGpu
from standin.waiting import PATIENCE_S
from tests.unit.nvml.conftest import wait_logged

OFTEN = {"healthy_s": 0.02, "unhealthy_s": 0.02}
SELDOM = {"healthy_s": 1000.0, "unhealthy_s": 1000.0}
WELL = HealthReading(action=0)
SILENT = HealthReading(silent_on=frozenset({ACTION, REST}))


def uuid(simulator, index):
    return simulator.gpus[index].spec.uuid


def read(index=0):
    nvml = Nvml()
    with nvml.session():
        handle = nvml.handle(index)
        return replace(nvml.condition(handle), action=nvml.recovery_action(handle))


def health_read(watched, simulator, index=0):
    event = watched.next(HealthRead)
    assert event.uuid == uuid(simulator, index)
    return event


def looks(simulator, monkeypatch):
    """Counts what is asked of the GPUs' health from now on."""
    counted = threading.Semaphore(0)
    ask = Nvml.recovery_action
    monkeypatch.setattr(Nvml, "recovery_action", lambda *args: (counted.release(), ask(*args))[1])
    return counted


# -- the facade ---------------------------------------------------------------------------------------------------


def test_what_a_driver_says_of_a_gpu(simulate):
    simulator = simulate("pcie-4x-a10")
    assert read() == WELL
    simulator.action(0, 4)
    simulator.remap(0, pending=True, failed=True)
    simulator.throttle(0, thermal=True)
    simulator.double_bit_ecc(0)
    assert read() == HealthReading(action=1, remap_failed=True, remap_pending=True, memory_errors=1, hot=True)
    simulator.throttle(0, power=True)
    assert (read().hot, read().power_brake) == (False, True)
    assert read(1) == WELL


def test_a_driver_before_r570_knows_no_recovery_action(simulate, make_box):
    simulator = simulate(replace(make_box(1, compute_capability=(7, 0)), driver_version="535.288.01"))
    simulator.action(0, 1)
    simulator.remap(0, pending=True)
    assert read() == HealthReading(action=None, remap_pending=True)


def test_an_old_driver_without_any_of_it(simulate, make_box):
    missing = {"nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrentClocksEventReasons"}
    simulator = simulate(replace(make_box(1), missing=frozenset(missing)))
    simulator.throttle(0, power=True)
    assert read() == HealthReading(power_brake=True)
    missing.add("nvmlDeviceGetCurrentClocksThrottleReasons")
    simulate(replace(make_box(1), missing=frozenset(missing)))
    assert read() == HealthReading()


def test_why_clocks_are_slow_is_no_matter_where_the_driver_does_not_say(simulate):
    simulator = simulate("pcie-4x-a10")
    simulator.action(0, 2)
    simulator.fail("nvmlDeviceGetCurrentClocksEventReasons", "UNKNOWN", 0)
    assert read() == HealthReading(action=2)


def resting(stopping: threading.Event, clock: Callable[[], float] = time.monotonic) -> PollSchedule:
    """Looks at a GPU only when woken."""
    return PollSchedule(
        post=lambda _: None,
        rescan=lambda: None,
        clock=clock,
        stopping=stopping,
        healthy_s=1000.0,
        unhealthy_s=1000.0,
        alive_s=1000.0,
    )


# -- the watch ------------------------------------------------------------------------------------------------------


def test_of_a_gpu_that_is_well_nothing_is_reported(simulate, watch, make_box, monkeypatch):
    simulator = simulate(make_box(2))
    counted = looks(simulator, monkeypatch)
    watched = watch(simulator, **OFTEN)
    watched.next(InventoryRead)
    for _ in range(20):
        assert counted.acquire(timeout=PATIENCE_S)
    assert watched.silent()


def test_what_is_wrong_with_a_gpu_is_reported_before_the_gpu_itself(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    simulator.action(1, 2)
    simulator.hang("nvmlDeviceGetPciInfo", 1)
    watched = watch(simulator, **{**SELDOM, "patience_s": 0.05})
    event = health_read(watched, simulator, 1)
    assert (event.reading, event.returned) == (HealthReading(action=2), False)
    assert [gpu.index for gpu in watched.next(InventoryRead).inventory.gpus] == [0]
    simulator.unhang()
    while {gpu.index for gpu in watched.event_named("InventoryRead").inventory.gpus} != {0, 1}:
        pass


def test_gpus_are_reported_although_their_health_is_not_and_that_when_it_is(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    simulator.hang("nvmlDeviceGetFieldValues")
    watched = watch(simulator, **SELDOM)
    inventory = watched.next(InventoryRead).inventory
    assert len(inventory.gpus) == 2
    assert inventory.unasked == {uuid(simulator, 0), uuid(simulator, 1)}
    simulator.unhang()
    readings = {event.uuid: event for event in (watched.event_named("HealthRead"), watched.event_named("HealthRead"))}
    assert readings.keys() == inventory.unasked
    assert all(event.reading == WELL and not event.reading.partial for event in readings.values())


@pytest.mark.parametrize("function", ["nvmlDeviceGetCurrentClocksEventReasons"])
def test_a_gpu_is_not_asked_until_all_was_asked(simulate, watch, make_box, function):
    simulator = simulate(make_box(2))
    simulator.hang(function, 1)
    watched = watch(simulator, **SELDOM)
    assert watched.next(InventoryRead).inventory.unasked == {uuid(simulator, 1)}
    simulator.unhang()
    assert not health_read(watched, simulator, 1).reading.partial


def test_a_gpu_does_not_get_the_fault_of_the_one_that_had_its_index(simulate, watch, make_box, monkeypatch):
    """GPU 0 goes, with a row that could not be replaced; the others move down while the driver takes its time."""
    simulator = simulate(make_box(3))
    names = [uuid(simulator, index) for index in range(3)]
    simulator.remap(0, failed=True)
    watched = watch(simulator, healthy_s=0.05, unhealthy_s=0.05)
    assert health_read(watched, simulator).reading.remap_failed
    watched.next(InventoryRead)
    watched.watching(0, 1, 2)
    asked = Nvml.condition
    hold = threading.Event()
    monkeypatch.setattr(BoundedQuery, "wait", lambda query: False)  # what is held is late
    monkeypatch.setattr(Nvml, "condition", lambda *args: (hold.wait(PATIENCE_S), asked(*args))[1])
    with simulator.changed:
        simulator.gpus = [SimulatedGpu(index, gpu.spec, gpu.mig) for index, gpu in enumerate(simulator.gpus[1:])]

    def event_named():
        """Of a GPU that is still there: the other one may have been read just before it went."""
        while (event := watched.event_named("HealthRead")).uuid == names[0]:
            pass
        return event

    readings = [event_named()]
    hold.set()
    while {event.uuid for event in readings if not event.reading.partial} != set(names[1:]):
        readings.append(event_named())
    assert not [event for event in readings if event.reading.remap_failed]


@pytest.mark.parametrize("function", ["nvmlDeviceGetCurrentClocksEventReasons"])
def test_a_query_about_clocks_that_hangs_holds_up_no_recovery_action(simulate, watch, make_box, monkeypatch, function):
    monkeypatch.setattr("gpuagent.nvml.health.health_query.SILENT_S", 0.0)
    simulator = simulate(make_box(2))
    simulator.remap(0, pending=True)
    watched = watch(simulator, **OFTEN)
    assert health_read(watched, simulator).reading.remap_pending
    watched.next(InventoryRead)
    watched.watching(0, 1)
    simulator.hang(function, 0)
    event = watched.event_named("HealthRead")
    assert (event.uuid, event.reading) == (
        uuid(simulator, 0),
        HealthReading(action=0, remap_pending=True, silent_on=frozenset({REST})),
    )
    simulator.xid(0, 95)
    event = watched.event_named("XidRaised")
    assert (event.reading.action, event.reading.remap_pending) == (1, True)
    simulator.action(0, 0)
    assert watched.event_named("HealthRead").reading.action == 0
    simulator.unhang()
    assert watched.event_named("HealthRead").reading == HealthReading(action=0, remap_pending=True)


def test_an_xid_does_not_come_with_the_health_of_another_gpu(simulate, make_box):
    simulator = simulate(make_box(2))
    stopping = threading.Event()
    schedule = resting(stopping)
    poll = HealthPoll(0, uuid(simulator, 0), schedule)
    poll.start()
    assert poll.after_xid(uuid(simulator, 0), 10.0) == WELL
    assert poll.after_xid(uuid(simulator, 1), 10.0) is None
    stopping.set()
    poll.wake()
    poll.join(PATIENCE_S)


def test_the_gpu_that_has_an_index_now_is_the_one_whose_faults_are_heard(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator, **OFTEN, reread_s=0.05)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    with simulator.changed:
        first, second = simulator.gpus
        first.spec, second.spec = second.spec, first.spec
        before = set(simulator.sets)
    simulator.lose(1)
    watched.event_named("GpuLost")
    simulator.restore(1)
    wanted = uuid(simulator, 0)

    def watched_anew() -> bool:
        return any(0 in events.registered for number, events in simulator.sets.items() if number not in before)

    with simulator.joined:
        assert simulator.joined.wait_for(watched_anew, PATIENCE_S)
    watched.watching(0, 1)
    simulator.xid(0, 95)
    assert watched.event_named("XidRaised").uuid == wanted


def test_gpus_that_get_other_indexes_while_the_driver_is_away_are_not_lost(simulate, watch, make_box):
    simulator = simulate(make_box(3))
    names = [uuid(simulator, index) for index in range(3)]
    watched = watch(simulator, healthy_s=0.05, unhealthy_s=0.05)
    watched.next(InventoryRead)
    assert watched.up()
    simulator.driver(False)
    watched.event_named("DriverUnavailable")
    with simulator.changed:
        simulator.gpus = [SimulatedGpu(index, gpu.spec, gpu.mig) for index, gpu in enumerate(simulator.gpus[1:])]
    simulator.driver(True)
    lost, back = [], set()
    while back != set(names[1:]):
        event = watched.any_event()
        lost += [event.uuid] if isinstance(event, GpuLost) else []
        back |= {event.uuid} if isinstance(event, HealthRead) else set()
    assert not {*names[1:]}.intersection(lost)


def test_an_xid_does_not_wait_for_a_query_that_hangs_already(simulate, make_box):
    simulator = simulate(make_box(1))
    simulator.hang("nvmlDeviceGetFieldValues", 0)
    now, stopping = [0.0], threading.Event()
    schedule = resting(stopping, lambda: now[0])
    poll = HealthPoll(0, uuid(simulator, 0), schedule)
    poll.start()
    until = time.monotonic() + PATIENCE_S
    while not (call := poll.nvml.pending) or call.function != "nvmlDeviceGetFieldValues":
        assert time.monotonic() < until
        threading.Event().wait(0.002)
    now[0] = 100.0
    assert poll.after_xid(uuid(simulator, 0), 50.0) is None, "for 50 s it would have waited"
    simulator.unhang()
    stopping.set()
    poll.wake()
    poll.join(PATIENCE_S)
    assert not poll.alive


def test_a_driver_that_comes_and_goes_leaves_nobody_asking_in_vain(simulate, make_box, monkeypatch):
    simulator = simulate(make_box(1))
    sessions = threading.Semaphore(0)
    session = Nvml.session
    monkeypatch.setattr(Nvml, "session", lambda nvml: (sessions.release(), session(nvml))[1])
    simulator.driver(False)
    stopping = threading.Event()
    schedule = resting(stopping)
    poll = HealthPoll(0, uuid(simulator, 0), schedule)
    poll.start()
    assert sessions.acquire(timeout=PATIENCE_S)
    poll.wake()
    assert sessions.acquire(timeout=PATIENCE_S), "it asks again when it is woken"
    assert not sessions.acquire(timeout=0.3), "and then rests"
    stopping.set()
    poll.wake()
    poll.join(PATIENCE_S)


def test_a_change_is_reported_once_and_its_end_too(simulate, watch, make_box):
    simulator = simulate(make_box(1))
    watched = watch(simulator, **OFTEN)
    watched.next(InventoryRead)
    simulator.throttle(0, thermal=True)
    assert health_read(watched, simulator).reading.hot
    simulator.throttle(0)
    assert health_read(watched, simulator).reading == WELL
    assert watched.silent()


def test_an_xid_comes_with_what_the_driver_says_right_after_it(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator, **SELDOM)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    simulator.xid(1, 95)
    assert watched.next(XidRaised).reading == HealthReading(action=1)
    simulator.xid(0, 94)
    assert watched.next(XidRaised).reading == WELL
    assert watched.silent(), "what came with an XID is not told again"


def test_an_xid_does_not_wait_for_a_query_that_hangs(simulate, watch, make_box, monkeypatch):
    simulator = simulate(make_box(2))
    watched = watch(simulator, **SELDOM)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    simulator.hang("nvmlDeviceGetFieldValues", 0)
    monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", 0.05)
    simulator.xid(0, 48)
    event = watched.next(XidRaised)
    assert (event.xid, event.reading) == (48, None)
    monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", PATIENCE_S)
    simulator.xid(1, 95)
    assert watched.next(XidRaised).reading == HealthReading(action=1), "the other GPU's are told"
    simulator.unhang()
    assert health_read(watched, simulator).reading == HealthReading(action=1)


def test_what_is_late_after_an_xid_is_reported_although_it_is_what_it_was(simulate, watch, make_box, monkeypatch):
    monkeypatch.setattr(xid_watch, "READING_PATIENCE_S", 0.05)
    simulator = simulate(make_box(1))
    watched = watch(simulator, **SELDOM)
    watched.next(InventoryRead)
    watched.watching(0)
    simulator.hang("nvmlDeviceGetFieldValues", 0)
    simulator.xid(0, 94)
    assert watched.next(XidRaised).reading is None
    simulator.unhang()
    assert health_read(watched, simulator).reading == WELL


def test_what_fails_after_an_xid_is_reported_when_it_does_not_fail_any_more(simulate, watch, make_box):
    simulator = simulate(make_box(1))
    watched = watch(simulator, healthy_s=1000.0, unhealthy_s=0.02)
    watched.next(InventoryRead)
    watched.watching(0)
    simulator.fail("nvmlDeviceGetFieldValues", "UNKNOWN", 0)
    simulator.xid(0, 94)
    reading = watched.event_named("XidRaised").reading
    assert ACTION in reading.silent_on
    simulator.fail("nvmlDeviceGetFieldValues", None, 0)
    while reading != WELL:
        assert reading.silent_on, "what is asked at the same moment may be answered a moment later"
        reading = health_read(watched, simulator).reading
    assert watched.silent()


def test_a_query_that_hangs_is_reported_as_one_about_its_gpu(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    simulator.hang("nvmlDeviceGetFieldValues", 1)
    watched = watch(simulator, stall_s=0.1, **SELDOM)
    before = watched.next(InventoryRead).inventory
    after = watched.next(InventoryRead).inventory
    assert after.gpus == before.gpus
    assert [(bad.index, bad.reason) for bad in after.unreadable] == [
        (1, "nvmlDeviceGetFieldValues on GPU 1 has not returned for 0.1 s")
    ]
    assert watched.up()
    simulator.unhang()
    assert watched.next(InventoryRead).inventory == before


def test_a_gpu_without_events_that_is_lost_is_noticed_and_so_is_its_return(simulate, watch, make_box):
    simulator = simulate(make_box(1, xid_events=False))
    watched = watch(simulator, **OFTEN)
    watched.next(InventoryRead)
    simulator.lose(0)
    assert watched.next(GpuLost).uuid == uuid(simulator, 0)
    assert watched.silent()
    simulator.restore(0)
    event = health_read(watched, simulator)
    assert (event.reading, event.returned) == (WELL, True)


def test_a_gpu_that_is_lost_without_a_word_is_noticed_by_one_cheap_call(simulate, watch, make_box, monkeypatch):
    polls: dict[int, HealthPoll] = {}
    start = HealthPoll.start
    monkeypatch.setattr(HealthPoll, "start", lambda poll: (polls.update({poll.index: poll}), start(poll))[1])
    simulator = simulate(make_box(2))
    watched = watch(simulator, **SELDOM, alive_s=0.02)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    until = time.monotonic() + PATIENCE_S
    while not all(poll.idle for poll in polls.values()):  # the looks that the start of the watch asks for
        assert time.monotonic() < until
        threading.Event().wait(0.002)
    counted, probes, probe = looks(simulator, monkeypatch), threading.Semaphore(0), Nvml.probe
    monkeypatch.setattr(Nvml, "probe", lambda *args: (probes.release(), probe(*args))[1])
    for _ in range(20):
        assert probes.acquire(timeout=PATIENCE_S)
    assert not counted.acquire(blocking=False), "no whole look"
    simulator.lose(0, silent=True)
    assert watched.next(GpuLost).uuid == uuid(simulator, 0)
    simulator.restore(0)
    polls[0].wake()
    assert health_read(watched, simulator).returned


def test_a_lost_gpu_that_is_back_is_reported_and_watched_again(simulate, watch, make_box):
    simulator = simulate(make_box(2))
    watched = watch(simulator, healthy_s=1000.0, unhealthy_s=0.02, reread_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    for _ in range(2):
        simulator.lose(0)
        assert watched.event_named("GpuLost").uuid == uuid(simulator, 0)
        watched.watching(1)
        simulator.restore(0)
        event = watched.event_named("HealthRead")  # a look that its return asked for may come between
        assert (event.uuid, event.returned) == (uuid(simulator, 0), True)
        watched.watching(0, 1)


@pytest.mark.parametrize("code", ["UNKNOWN", "TIMEOUT"])
@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"],
    ids=lambda name: name[4:],
)
def test_a_gpu_whose_call_failed_for_a_while_is_back_without_a_reset(simulate, watch, make_box, function, code):
    simulator = simulate(make_box(2))
    watched = watch(simulator, healthy_s=0.02, unhealthy_s=0.02, reread_s=1000.0)
    watched.next(InventoryRead)
    watched.watching(0, 1)
    for _ in range(2):
        simulator.fail(function, code, 0)
        assert watched.event_named("GpuLost").uuid == uuid(simulator, 0)
        simulator.fail(function, None, 0)
        event = watched.event_named("HealthRead")  # a look at the driver may come between
        assert (event.uuid, event.reading, event.returned) == (uuid(simulator, 0), WELL, False)
        watched.watching(0, 1)


def test_a_driver_that_was_away_counts_as_a_reset(simulate, watch, make_box, caplog):
    simulator = simulate(make_box(1))
    watched = watch(simulator, **OFTEN)
    watched.next(InventoryRead)
    watched.watching(0)
    simulator.driver(False)
    wait_logged(caplog, "Failed to read the health of a GPU")
    simulator.driver(True)
    assert watched.event_named("HealthRead").returned


def test_a_query_that_fails_is_asked_again_and_told_once(simulate, watch, make_box, monkeypatch):
    simulator = simulate(make_box(1))
    counted = looks(simulator, monkeypatch)
    simulator.fail("nvmlDeviceGetFieldValues", "UNKNOWN", 0)
    watched = watch(simulator, healthy_s=1000.0, unhealthy_s=0.02)
    assert health_read(watched, simulator).reading == SILENT
    watched.next(InventoryRead)
    for _ in range(5):
        assert counted.acquire(timeout=PATIENCE_S)
    assert watched.silent()
    simulator.action(0, 1)
    simulator.fail("nvmlDeviceGetFieldValues", None, 0)
    while (readings := health_read(watched, simulator).reading) != HealthReading(action=1):
        assert len(readings.silent_on) == 1, "what is asked at the same moment may be answered a moment later"


@pytest.mark.parametrize("value", [1, 9])
def test_faults_from_elsewhere(simulate, value):
    simulator = simulate("t4")
    simulator.apply({"fault": "action", "gpu": 0, "value": value})
    simulator.apply({"fault": "remap", "gpu": 0, "pending": True, "failed": False})
    simulator.apply({"fault": "throttle", "gpu": 0, "thermal": True, "power": True})
    assert read() == HealthReading(action=value, remap_pending=True, hot=True, power_brake=True)
