"""The simulated machine: tasks, time and chance."""

import pytest

from simworld.runtime import threads
from simworld.runtime.kernel import Process, StuckError, begin


@pytest.fixture
def machine():
    return begin(1)


def run(machine, *bodies, most_s=60.0):
    """Run tasks to their ends; what each returned."""
    answers = {}
    for number, body in enumerate(bodies):
        machine.spawn(lambda number=number, body=body: answers.setdefault(number, body()), f"task {number}")
    assert machine.run(lambda: len(answers) == len(bodies), most_s), answers
    assert not machine.failed
    return [answers[number] for number in range(len(bodies))]


def test_time_passes_only_when_no_task_is_ready(machine):
    began = machine.now
    run(machine, lambda: machine.sleep(50.0))
    assert 50.0 <= machine.now - began < 50.1


def test_a_condition_is_notified_or_times_out(machine):
    changed = threads.Condition()
    values = []

    def wait():
        with changed:
            return changed.wait_for(lambda: values, 5.0), changed.wait_for(lambda: len(values) > 1, 5.0)

    def put():
        machine.sleep(1.0)
        with changed:
            values.append(1)
            changed.notify_all()

    began = machine.now
    assert run(machine, wait, put)[0] == ([1], False)
    assert 6.0 <= machine.now - began < 6.5


def test_a_lock_is_held_by_one_task_at_a_time(machine):
    lock = threads.Lock()
    inside = []

    def enter():
        for _ in range(50):
            with lock:
                inside.append(1)
                machine.give_way()
                assert len(inside) == 1
                inside.pop()

    run(machine, enter, enter, enter)


def test_a_lock_with_a_timeout_loses_no_release(machine):
    lock = threads.Lock()

    def hold():
        with lock:
            machine.sleep(2.0)

    def impatient():
        machine.sleep(0.1)
        return lock.acquire(timeout=0.5)

    def patient():
        machine.sleep(0.2)
        return lock.acquire()

    assert run(machine, hold, impatient, patient)[1:] == [False, True]


def test_a_queue_gives_each_item_once(machine):
    queue = threads.SimpleQueue()
    taken = []

    def take():
        for _ in range(10):
            taken.append(queue.get())

    def put():
        for number in range(20):
            queue.put(number)
            machine.sleep(0.01)

    run(machine, take, take, put)
    assert sorted(taken) == list(range(20))


def test_a_killed_process_never_goes_on_and_runs_no_finally_block(machine):
    ran = []
    process = Process("victim")

    def work():
        try:
            machine.sleep(10.0)
            ran.append("went on")
        finally:
            ran.append("cleaned up")

    machine.spawn(work, "work", process)
    run(machine, lambda: machine.sleep(1.0))
    machine.end(process)
    run(machine, lambda: machine.sleep(20.0))
    assert not ran


def test_threads_of_a_process_belong_to_it(machine):
    process = Process("victim")
    seen = []

    def child():
        machine.sleep(5.0)
        seen.append("child")

    machine.spawn(lambda: threads.Thread(target=child).start(), "parent", process)
    run(machine, lambda: machine.sleep(1.0))
    machine.end(process)
    run(machine, lambda: machine.sleep(10.0))
    assert not seen


def test_tasks_that_all_wait_are_noticed(machine):
    machine.spawn(lambda: threads.Event().wait(), "waits for ever")
    with pytest.raises(StuckError, match="every task waits"):
        machine.run(lambda: False, 10.0)


def test_one_seed_gives_one_order():
    def order(seed):
        machine = begin(seed)
        done = []

        def work(name):
            for _ in range(5):
                machine.give_way()
                done.append(name)

        for name in "abc":
            machine.spawn(lambda name=name: work(name), name)
        machine.run(lambda: len(done) == 15, 10.0)
        return done

    assert order(1) == order(1)
    assert order(1) != order(2)
