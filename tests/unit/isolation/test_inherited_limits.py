"""Containers that are born with the limit of a dead one, or come in an order that misleads, on backend misc."""

import pytest

from gpuagent.host.limits_client import NO_LIMIT, HelperGoneError
from gpuagent.isolation.limits.plan import NO_SHARE_BYTES, Backend
from tests.unit.isolation.node_lives import GPUS, UNIT, Dangers, Life, Watches

GPU = GPUS[0].uuid
DEAD = 50 * UNIT


@pytest.fixture
def life(tmp_path, watches) -> Life:
    return Life(tmp_path, watches, Backend.MISC, 0, Dangers())


def limit_at(life: Life, path) -> int | None:
    return life.driver.limit_of(GPU, path)


def hear(life: Life, watches: Watches, pod, leaf, *, agent_first: bool) -> None:
    """The guard began before the agent."""
    order = reversed(watches.every) if agent_first else watches.every
    for watch in list(order):
        watch.appeared(pod.uid, leaf.name)


@pytest.mark.parametrize("agent_first", [True, False])
@pytest.mark.parametrize("inherited", [None, 1, 4, 8, 50])
def test_a_new_container_gets_its_own_limit_whoever_looks_first(life, watches, inherited, agent_first):
    """Also one that is born with just its own limit: the helper must not replace it by that of the pod."""
    pod = life.add(GPU, {"main": 8 * UNIT, "side": 4 * UNIT})
    life.keeper.limit(pod.uid, pod.shares, "main")
    main = life.run(pod, "main")
    if inherited is not None:
        life.model.set_limits(GPU, str(main.path), 0, inherited * UNIT)
    hear(life, watches, pod, main.path, agent_first=agent_first)
    assert limit_at(life, main.path) == 8 * UNIT


@pytest.mark.parametrize("agent_first", [True, False])
@pytest.mark.parametrize("inherited", [None, DEAD, NO_LIMIT])
@pytest.mark.parametrize("pod_inherits", [False, True])
def test_a_pod_without_a_share_has_no_limit_whoever_looks_first(life, watches, inherited, agent_first, pod_inherits):
    pod = life.add(GPU, {}, ["whole"])
    if pod_inherits:
        life.model.set_limits(GPU, str(pod.path), 0, DEAD)
    whole = life.run(pod, "whole")
    if inherited is not None:
        life.model.set_limits(GPU, str(whole.path), 0, inherited)
    hear(life, watches, pod, whole.path, agent_first=agent_first)
    assert limit_at(life, whole.path) is None


def test_a_container_that_restarts_in_a_pod_older_than_the_agent_has_no_limit(life, watches):
    pod = life.add(GPU, {}, ["whole"])
    life.restart_agent()
    whole = life.run(pod, "whole")
    life.model.set_limits(GPU, str(whole.path), 0, DEAD)
    hear(life, watches, pod, whole.path, agent_first=True)
    assert limit_at(life, whole.path) is None


def test_a_pod_that_another_agent_has_limited_keeps_its_limit(life, watches):
    pod = life.add(GPU, {}, ["whole"])
    life.model.set_limits(GPU, str(pod.path), 0, 8 * UNIT)
    life.restart_agent()
    whole = life.run(pod, "whole")
    hear(life, watches, pod, whole.path, agent_first=True)
    assert limit_at(life, whole.path) == 8 * UNIT


def test_a_container_that_came_while_the_helper_was_away_is_freed_later(life, watches, monkeypatch):
    def gone(*_: object) -> None:
        raise HelperGoneError("no helper answers")

    pod = life.add(GPU, {}, ["whole"])
    whole = life.run(pod, "whole")
    life.model.set_limits(GPU, str(whole.path), 0, DEAD)
    with monkeypatch.context() as away:
        away.setattr(life.driver, "get_many", gone)
        watches.every[-1].appeared(pod.uid, whole.path.name)
        life.keeper.distrust()
    other = life.run(pod, "other")
    life.model.set_limits(GPU, str(other.path), 0, DEAD)
    watches.every[-1].appeared(pod.uid, other.path.name)
    life.keeper.look()
    assert limit_at(life, whole.path) is None
    assert limit_at(life, other.path) is None


def test_a_container_that_fails_before_it_has_a_cgroup_passes_its_share_to_no_other(life, watches):
    """Kubelet asks about it, and the next cgroup is that of another container, which takes what it gets."""
    pod = life.add(GPU, {"main": 8 * UNIT, "side": 4 * UNIT}, ["proxy"])
    life.keeper.limit(pod.uid, pod.shares, "main")
    proxy = life.run(pod, "proxy")
    hear(life, watches, pod, proxy.path, agent_first=True)
    _, outcome = life.keeper.limit(pod.uid, pod.shares, "main")
    assert outcome.is_in_force
    assert limit_at(life, proxy.path) == NO_SHARE_BYTES


def test_main_waits_while_another_container_has_its_share(life, watches):
    pod = life.add(GPU, {"main": 8 * UNIT, "side": 4 * UNIT}, ["proxy"])
    life.keeper.limit(pod.uid, pod.shares, "main")
    proxy = life.run(pod, "proxy")
    hear(life, watches, pod, proxy.path, agent_first=True)
    assert life.take(pod, proxy, 6)
    _, outcome = life.keeper.limit(pod.uid, pod.shares, "main")
    assert "more GPU memory than its limit" in outcome.unlimited[GPU]


@pytest.mark.parametrize("backend", list(Backend))
def test_a_pod_is_limited_before_kubelet_asks_about_it(tmp_path, watches, backend):
    """A proxy may start before the container with the share."""
    life = Life(tmp_path, watches, backend, 0, Dangers())
    pod = life.add(GPU, {"main": 8 * UNIT}, ["proxy"])
    assert limit_at(life, pod.path) == 8 * UNIT


def test_a_container_that_starts_before_kubelet_asks_gets_nothing(life, watches):
    pod = life.add(GPU, {"main": 8 * UNIT}, ["proxy"])
    proxy = life.run(pod, "proxy")
    hear(life, watches, pod, proxy.path, agent_first=True)
    assert not life.take(pod, proxy, 1)


def test_a_container_that_was_not_asked_about_gets_its_share_when_its_name_is_known(life, watches):
    """After a restart of kubelet, containers may start without a question."""
    pod = life.add(GPU, {"main": 8 * UNIT, "side": 4 * UNIT})
    life.keeper.limit(pod.uid, pod.shares, "main")
    hear(life, watches, pod, life.run(pod, "main").path, agent_first=True)
    side = life.run(pod, "side")
    hear(life, watches, pod, side.path, agent_first=True)
    assert limit_at(life, side.path) == NO_SHARE_BYTES
    life.keeper.look()
    side.is_shown = True
    life.tell_need()
    # At once, not at the next audit: its program fails meanwhile.
    life.keeper.look()
    assert limit_at(life, side.path) == 4 * UNIT


@pytest.mark.parametrize("inherited", [None, 4, 8, 50])
@pytest.mark.parametrize("agent_first", [True, False])
def test_what_others_took_of_a_claim_is_not_there_twice(life, watches, inherited, agent_first):
    """Kubelet names no container of a claim, so a proxy counts as one that may use it until the pod shows its name."""
    pod = life.add(GPU, {"main": 8 * UNIT}, ["proxy"], of_claims=True)
    proxy = life.run(pod, "proxy")
    hear(life, watches, pod, proxy.path, agent_first=agent_first)
    assert life.take(pod, proxy, 3)
    main = life.run(pod, "main")
    if inherited is not None:
        life.model.set_limits(GPU, str(main.path), 0, inherited * UNIT)
    hear(life, watches, pod, main.path, agent_first=agent_first)
    assert not life.take(pod, main, 6)
    assert life.take(pod, main, 5)
    life.end(pod, proxy)
    main.is_shown = True
    life.tell_need()
    life.now += 6
    life.keeper.look()
    assert life.take(pod, main, 3)
