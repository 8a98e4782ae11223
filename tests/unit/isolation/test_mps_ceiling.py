"""The ceiling of MPS's servers: no program of a GPU has more than the largest share of a container there."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.sharing.gpu_share import NO_SHARE, GpuShare
from gpuagent.domain.sharing.mode import Kind
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host.mps_client import Control, MpsError, ServerLimit
from gpuagent.isolation.interface import IsolationError, Need, Starting
from gpuagent.isolation.mps import ceiling_keeper, share
from gpuagent.isolation.mps.ceiling import RECENT_S, Held, LimitInForce, RecentStarts, ceiling
from gpuagent.isolation.mps.share import MEMORY_VARIABLE
from standin.mps.client import effective_caps, server_limit, server_percentage
from standin.waiting import PATIENCE_S
from tests.unit.isolation.mps_under_test import OWNER, MpsUnderTest, gpu, memory, wait_for

GPU = gpu()
UUID = GPU.uuid
WHOLE = GpuShare(GPU.memory_mib, 100)

shares = st.builds(GpuShare, st.integers(1, 1000), st.integers(1, 100))


class Clock:
    now = 1000.0


def share_of(units: int) -> GpuShare:
    """The share of a container with so many of the GPU's 22 units, which have 1 GiB each."""
    return GpuShare(GPU.memory_mib * units // 22, 100)


def need(*held: GpuShare, known: bool = True) -> Need:
    """The need of a node on which containers have these shares."""
    largest = NO_SHARE
    for of_container in held:
        largest = largest.or_more(of_container)
    by_gpu = {UUID: largest} if held else {}
    return Need(
        gpus=(GPU,),
        serves=True,
        in_use=bool(held),
        held=frozenset([UUID]) if held else frozenset(),
        largest=by_gpu if known else None,
    )


def start(agent: MpsUnderTest, units: int) -> None:
    agent.driver.verify(agent.driver.prepare(memory(GPU, units=units)), Starting())


def program_gets(agent: MpsUnderTest, limit: str | None = None) -> int | None:
    """MiB that a program gets with that limit in its environment, or with none; None for all."""
    env = {} if limit is None else {MEMORY_VARIABLE: limit}
    of_server = server_limit(agent.host.pipes)
    return effective_caps(env, [UUID], {} if of_server is None else {UUID: of_server})[UUID]


def default_mib(agent: MpsUnderTest) -> int | None:
    """What servers that begin now limit programs to."""
    return Control(agent.host.control, agent.host.pipes, deadline_s=PATIENCE_S).limit(ServerLimit.MEMORY)


def shown_mib(units: int) -> int:
    """A share as the daemon shows it, in whole GiB."""
    return share_of(units).memory_mib // 1024 * 1024


@pytest.fixture
def commands(monkeypatch) -> Counter[str]:
    """How often each command was sent."""
    sent: Counter[str] = Counter()
    ask = Control.ask

    def counted(control: Control, command: str, **options: float | None) -> str:
        sent[command.split(maxsplit=1)[0]] += 1
        return ask(control, command, **options)

    monkeypatch.setattr(Control, "ask", counted)
    return sent


# -- the decision ------------------------------------------------------------------------------------------------------


@given(st.lists(shares, min_size=1), shares, shares)
def test_every_container_has_room_for_its_share(held, recent, in_force):
    most = NO_SHARE
    for of_container in held:
        most = most.or_more(of_container)
    decided = ceiling(Held(WHOLE, most), recent, in_force)
    for of_container in [*held, recent]:
        assert decided.or_more(of_container) == decided
    assert decided.memory_mib in {of_container.memory_mib for of_container in [*held, recent]}, "and no more"
    assert decided.percent in {of_container.percent for of_container in [*held, recent]}


@given(shares, shares)
def test_where_what_containers_have_is_not_known_nothing_is_lowered(recent, in_force):
    assert ceiling(Held(WHOLE, None), recent, in_force) == in_force.or_more(recent)


@given(shares)
def test_without_containers_the_ceiling_stays(in_force):
    assert ceiling(Held(WHOLE, NO_SHARE), NO_SHARE, in_force) == in_force


def test_a_start_counts_until_kubelets_allocations_show_it():
    starts = RecentStarts().started(share_of(8), 0.0)
    assert starts.at(RECENT_S - 1) == share_of(8)
    assert starts.at(RECENT_S) == NO_SHARE
    later = starts.started(share_of(4), RECENT_S - 1)
    assert later.at(2 * RECENT_S - 2) == share_of(8), "the largest of those that follow one another"
    assert starts.started(share_of(4), RECENT_S).at(RECENT_S) == share_of(4)


def test_a_limit_that_is_shown_in_whole_gib_is_no_refusal():
    limit = LimitInForce(23028, 1023, 23028).asked_for(4186, 4096)
    assert not limit.is_below(4186)
    assert limit.asked_for(8373, 4096).is_below(8373)


# -- what a program gets -----------------------------------------------------------------------------------------------


def test_where_all_shares_are_equal_a_program_without_its_caps_has_one_share(agent):
    one = agent().start(need(share_of(4)))
    one.well()
    start(one, 4)
    assert program_gets(one) == share_of(4).memory_mib
    assert program_gets(one, "0=60G") == share_of(4).memory_mib
    assert program_gets(one, "0=2G") == 2048
    assert program_gets(one, "9=1G") is None, "a finding on a GPU, which no ceiling stops"
    env = one.driver.prepare(memory(GPU, units=4)).env
    assert effective_caps(env, [UUID], {UUID: share_of(4).memory_mib}) == {UUID: share_of(4).memory_mib}


def test_a_larger_share_raises_the_ceiling_before_its_container_starts(agent, host):
    one = agent().start(need(share_of(4)))
    one.well()
    start(one, 4)
    assert program_gets(one) == share_of(4).memory_mib  # a server runs now
    host.run(host.pipes, asked="start_server -uid 1000\n")
    start(one, 8)
    control = Control(host.control, host.pipes, deadline_s=PATIENCE_S)
    limits = [control.limit(ServerLimit.MEMORY, server) for server in control.servers()]
    assert limits == [shown_mib(8)] * 2
    assert default_mib(one) == shown_mib(8)


def test_the_ceiling_follows_when_the_largest_share_has_gone(agent):
    clock = Clock()
    one = agent(clock=lambda: clock.now, every_s=0.05).start(need(share_of(4), share_of(8)))
    one.well()
    start(one, 8)
    assert program_gets(one) == share_of(8).memory_mib
    one.driver.desire(need(share_of(4)))
    start(one, 4)
    assert program_gets(one) == share_of(8).memory_mib, "it has just started, and may not be in the list yet"
    clock.now += RECENT_S
    wait_for(lambda: program_gets(one) == share_of(4).memory_mib)
    assert default_mib(one) == shown_mib(4)


def test_a_server_that_begins_later_has_the_ceiling(agent, host):
    one = agent(every_s=0.05).start(need(share_of(4)))
    one.well()
    start(one, 4)
    host.run(host.pipes, asked="start_server -uid 1000\n")
    assert program_gets(one) == share_of(4).memory_mib


def test_a_server_that_somebody_else_has_freed_gets_the_ceiling(agent, host):
    """A daemon that was there before: one server has begun before the default was set, unseen."""
    one = agent(every_s=0.05).start(need())
    one.well()
    host.run(host.pipes, asked="start_server -uid 0\n")
    assert program_gets(one) is None
    one.driver.desire(need(share_of(4)))
    wait_for(lambda: program_gets(one) == share_of(4).memory_mib)


def test_a_new_daemon_has_the_ceiling_before_its_first_program(agent, host):
    one = agent().start(need(share_of(4)))
    one.well()
    start(one, 4)
    first = host.pid(host.pipes)
    host.kill(host.pipes)
    one.problem("it died")
    one.well()
    assert host.pid(host.pipes) != first
    assert default_mib(one) == shown_mib(4)


def test_the_next_agent_raises_what_the_former_one_has_set(agent):
    former = agent().start(need(share_of(4)))
    former.well()
    start(former, 4)
    assert program_gets(former) == share_of(4).memory_mib
    former.driver.stop()
    one = agent().start(need(known=False))
    one.well()
    start(one, 2)
    assert share_of(4).memory_mib <= program_gets(one) <= shown_mib(5), "a container with that share may run"
    start(one, 8)
    assert program_gets(one) == share_of(8).memory_mib


def test_compute_has_a_ceiling_where_every_container_has_a_percentage(agent):
    one = agent().start(need(GpuShare(share_of(4).memory_mib, 40)))
    one.well()
    grant = memory(GPU, kind=Kind.MEMORY_CORE_MEM)
    one.driver.verify(grant, Starting(shares={UUID: GpuShare(share_of(4).memory_mib, 30)}))
    assert server_percentage(one.host.pipes) == 40
    one.driver.verify(grant, Starting(shares={UUID: GpuShare(share_of(4).memory_mib, 60)}))
    assert server_percentage(one.host.pipes) == 60
    assert program_gets(one) == share_of(4).memory_mib


@pytest.mark.parametrize(
    ("kind", "units", "expected"),
    [
        (Kind.MEMORY_MPS, 4, share_of(4)),
        (Kind.MEMORY_CORE_MEM, 4, share_of(4)),
        (Kind.CORE_CORE_MEM, 30, GpuShare(GPU.memory_mib, 30)),
    ],
)
def test_a_container_that_kubelet_does_not_show_may_have_all_that_its_grant_is_not_about(kind, units, expected):
    assert share.share_of(memory(GPU, kind=kind, units=units), MemoryUnit()) == expected


# -- what it costs, and what goes wrong --------------------------------------------------------------------------------


def test_a_start_with_an_unchanged_ceiling_costs_no_command(agent, commands):
    one = agent().start(need(share_of(4)))
    one.well()
    start(one, 4)
    assert commands["set_default_device_pinned_mem_limit"] == 1
    commands.clear()
    start(one, 4)
    assert commands == {"get_default_active_thread_percentage": 1}, "the round trip before each start"


def test_a_look_with_an_unchanged_ceiling_asks_a_server_once(agent, host, commands):
    one = agent(every_s=0.05).start(need(share_of(4)))
    one.well()
    host.steer(host.pipes, clients=[4711])
    wait_for(lambda: commands["get_client_list"] >= 5)
    assert commands["set_device_pinned_mem_limit"] <= 1
    assert commands["set_default_device_pinned_mem_limit"] == 1
    assert commands["set_active_thread_percentage"] == 0, "nobody limits compute"


def caveats(one: MpsUnderTest, has: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    return one.until(lambda layer: layer.problem is None and has(layer.caveats)).caveats


def test_a_daemon_that_does_not_know_the_command_is_a_caveat_and_no_failure(agent, host, commands):
    host.steer(host.pipes, limits="unknown")
    one = agent(every_s=0.05).start(need())
    assert share.CEILING in one.well().caveats
    start(one, 4)
    start(one, 8)
    one.driver.desire(need(share_of(8)))
    without = caveats(one, lambda texts: share.NO_CEILING in texts)
    assert share.CEILING not in without
    commands.clear()
    wait_for(lambda: commands["get_default_active_thread_percentage"] >= 3)
    assert commands["set_default_device_pinned_mem_limit"] == 0, "it is not asked again and again"


def test_a_container_waits_while_the_daemon_does_not_raise_the_ceiling(agent, host):
    one = agent(every_s=0.05).start(need(share_of(4)))
    one.well()
    start(one, 4)
    host.steer(host.pipes, limits="stuck")
    with pytest.raises(
        IsolationError, match=r"default/train\[main\] has to wait: MPS lets a program have 4096 MiB of the GPU"
    ):
        one.driver.verify(one.driver.prepare(memory(GPU, units=8)), OWNER)
    with pytest.raises(IsolationError, match=r"does not raise that to 8373: if this stays, end the daemon at"):
        start(one, 8)
    start(one, 4)  # one that does not need more than there is
    host.steer(host.pipes)
    start(one, 8)
    assert program_gets(one) == share_of(8).memory_mib


def test_a_container_waits_for_each_server_of_the_daemon(agent, host, monkeypatch):
    """One for each user: a program of another user than those before would have too little."""
    one = agent(every_s=0.05).start(need(share_of(4)))
    one.well()
    start(one, 4)
    host.run(host.pipes, asked="start_server -uid 0\nstart_server -uid 1000\n")
    last = Control(host.control, host.pipes, deadline_s=PATIENCE_S).servers()[-1]
    set_limit = Control.set_limit
    cover = ceiling_keeper.CeilingKeeper.cover

    def listed_too_early(keeper: ceiling_keeper.CeilingKeeper, servers: tuple[int, ...]) -> None:
        cover(keeper, tuple(server for server in servers if server != last))

    def only_others(
        control: Control, limit: ServerLimit, amount: int, server: int | None = None, **options: Any
    ) -> str:
        return "" if server == last else set_limit(control, limit, amount, server, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Control, "set_limit", only_others)
        patched.setattr(ceiling_keeper.CeilingKeeper, "cover", listed_too_early)
        host.steer(host.pipes, clients=[4711])  # so that each look reads the servers
        for _ in range(3):
            with pytest.raises(IsolationError, match="does not raise that to 8373"):
                start(one, 8)
            time.sleep(0.1)
    start(one, 8)


def test_no_container_waits_for_a_ceiling_that_is_not_lowered(agent, host):
    clock = Clock()
    one = agent(clock=lambda: clock.now).start(need(share_of(8)))
    one.well()
    start(one, 8)
    host.steer(host.pipes, limits="stuck")
    clock.now += RECENT_S
    one.driver.desire(need(share_of(4)))
    start(one, 4)
    assert program_gets(one) == share_of(8).memory_mib


def test_a_container_waits_while_the_daemon_does_not_answer(agent, host, monkeypatch):
    one = agent().start(need(share_of(4)))
    one.well()
    start(one, 4)

    def hangs(*_: object, **__: object) -> str:
        raise MpsError("no answer")

    # Not `monkeypatch.undo`, which would take this file's patience with busy machines away, too.
    with monkeypatch.context() as broken:
        broken.setattr(Control, "set_limit", hangs)
        with pytest.raises(
            IsolationError, match="has to wait: MPS did not set a limit for all programs of the GPU: no answer"
        ):
            start(one, 8)
    start(one, 8)
    assert program_gets(one) == share_of(8).memory_mib


def test_another_programs_daemon_for_all_gpus_is_left_alone(agent, host, commands):
    host.run(host.ack, "-d")
    one = agent().start(need(share_of(4)))
    layer = one.well()
    assert share.NO_CEILING in layer.caveats
    assert share.CEILING not in layer.caveats
    start(one, 8)
    assert not [command for command in commands if command.startswith("set_")]


def test_both_sentences_go_where_another_driver_limits_memory():
    assert {share.CEILING, share.NO_CEILING, share.VOIDED} <= set(share.MEMORY_CAVEATS)
