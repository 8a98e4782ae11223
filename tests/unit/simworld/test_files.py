"""What a simulated process has of the real kernel."""

import errno
import os

import pytest

from gpuagent.system.inotify import IN_CREATE, Inotify
from simworld.runtime.files import ProcessInotify, process_pipe
from simworld.runtime.kernel import MachineError, Process, begin


@pytest.fixture
def machine():
    return begin(1)


def test_a_killed_process_gives_its_inotify_instances_back(machine, tmp_path):
    """Another file soon gets its number, and no task may be woken for that file."""
    process = Process("victim")
    watches = []
    woken = []

    def follow():
        watch = ProcessInotify()
        watch.add(tmp_path, IN_CREATE)
        watches.append(watch)
        machine.wait_for_files([watch.descriptor], None)
        woken.append(watch)

    machine.spawn(follow, "directory-watch", process)
    machine.spawn(lambda: machine.sleep(100.0), "keeps the world going")
    machine.run(lambda: bool(watches), 10.0)
    machine.end(process)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(watches[0].descriptor)
    read, write = os.pipe()
    os.write(write, b"x")
    machine.run(lambda: False, 10.0)
    assert not woken
    os.close(read)
    os.close(write)


def test_an_instance_that_its_process_has_closed_is_not_closed_again(machine):
    process = Process("agent")

    def open_and_close():
        ProcessInotify().close()

    task = machine.spawn(open_and_close, "directory-watch", process)
    machine.spawn(lambda: machine.sleep(100.0), "keeps the world going")
    machine.run(lambda: task.body is not None and task.body.dead, 10.0)
    read, write = os.pipe()
    machine.end(process)
    assert os.fstat(read)
    os.close(read)
    os.close(write)


def test_a_killed_process_closes_both_ends_of_its_pipes(machine):
    ends = []
    agent = Process("agent")
    machine.spawn(lambda: ends.extend(process_pipe()), "directory-watch", agent)
    machine.spawn(lambda: machine.sleep(100.0), "keeps the world going")
    machine.run(lambda: bool(ends), 10.0)
    machine.end(agent)
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_a_file_with_the_number_of_a_closed_pipe_stays_open(machine):
    """The product closes its pipes itself, and another file gets the number."""
    ends = []
    agent = Process("agent")

    def open_and_close():
        made = process_pipe()
        for end in made:
            os.close(end)
        ends.extend(made)

    machine.spawn(open_and_close, "directory-watch", agent)
    machine.spawn(lambda: machine.sleep(100.0), "keeps the world going")
    machine.run(lambda: bool(ends), 10.0)
    others = os.pipe()
    assert set(others) == set(ends)
    machine.end(agent)
    for other in others:
        os.close(other)


def test_a_machine_without_inotify_instances_ends_the_run(machine, monkeypatch):
    """The product would poll instead, so the run would differ from others of its seed."""

    def none_left(_self):
        raise OSError(errno.EMFILE, "inotify_init1 failed")

    monkeypatch.setattr(Inotify, "__init__", none_left)
    machine.spawn(ProcessInotify, "directory-watch", Process("agent"))
    with pytest.raises(MachineError, match=r"fs\.inotify\.max_user_instances"):
        machine.run(lambda: False, 10.0)
