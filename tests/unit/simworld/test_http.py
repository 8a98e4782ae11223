"""The ways between API clients and the API server."""

import gc
import weakref

import pytest

from simworld.runtime.http import Pipe
from simworld.runtime.kernel import Process, begin


@pytest.fixture
def machine():
    return begin(1)


def test_a_process_keeps_no_pipe_that_has_ended(machine):
    """An agent sends thousands of requests in its life."""
    agent = Process("agent")
    pipe = Pipe(agent)
    pipe.write(b"an answer that the agent does not read")
    pipe.end()
    kept = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert kept() is None


def test_a_killed_process_breaks_its_pipes_and_keeps_none(machine):
    agent = Process("agent")
    pipes = [Pipe(agent), Pipe(agent)]
    machine.end(agent)
    for pipe in pipes:
        with pytest.raises(BrokenPipeError):
            pipe.write(b"x")
    kept = [weakref.ref(pipe) for pipe in pipes]
    del pipe, pipes
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
