"""What is done about idle pods: what the label of their namespace says, once, and nothing that it does not say."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.usage.idle_policy import WHEN_IDLE_LABEL, IdlePod
from gpuagent.domain.usage.over_time import MOST_GAP_S
from gpuagent.kube.api.api_errors import ApiError, ApiUnreachable
from gpuagent.kube.write.idle_pods import RECHECK_S, IdlePods

HOUR_S = 3600.0


class Api:
    """Namespaces with the same label, and what an eviction is answered."""

    def __init__(self) -> None:
        self.label: str | None = "evict-after-2h"
        self.refuses: Exception | None = None
        self.unreadable: Exception | None = None
        self.evictions: list[tuple[str, Any]] = []

    def get(self, path: str, _fields: object = None) -> dict[str, Any]:
        if path == "/api/v1":
            return {"resources": [{"name": "pods/eviction", "group": "policy", "version": "v1beta1"}]}
        if self.unreadable:
            raise self.unreadable
        assert path.startswith("/api/v1/namespaces/ml")
        return {"metadata": {"labels": {WHEN_IDLE_LABEL: self.label} if self.label else {}}}

    def create(self, path: str, body: Any) -> None:
        if self.refuses:
            raise self.refuses
        self.evictions.append((path, body))


class World:
    """A pod that has been idle since 0, and time that passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.api = Api()
        self.events: list[Announcement] = []
        monkeypatch.setattr(
            "gpuagent.kube.write.idle_pods.time", SimpleNamespace(monotonic=lambda: self.now, sleep=time.sleep)
        )
        self.problems: list[str | None] = []
        self.part = IdlePods(self.api, self.events.append, self.problems.append)  # type: ignore[arg-type]
        self.pod = IdlePod(PodName("ml", "a"), "uid-a", 0.0)

    def look(self, at: float) -> None:
        self.now = at
        self.part.desire([self.pod])
        self.part.attempt(self.pod)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_pod_is_evicted_when_its_time_is_over_and_told_why(world: World) -> None:
    world.look(2 * HOUR_S - 1)
    assert (world.api.evictions, world.events) == ([], [])
    world.look(2 * HOUR_S)
    ((path, body),) = world.api.evictions
    assert path == "/api/v1/namespaces/ml/pods/a/eviction"
    assert body["apiVersion"] == "policy/v1beta1"
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-a"}}
    (event,) = world.events
    assert (event.reason, event.pods) == ("GPUIdleEvicted", (PodName("ml", "a"),))
    assert "120 minutes or longer" in event.message
    assert "gpuagent.io/when-idle=evict-after-2h" in event.message


@pytest.mark.parametrize("label", [None, "evict-after-2", "never", "evict-after-1m"])
def test_nothing_is_done_without_a_policy(world: World, label: str | None) -> None:
    world.api.label = label
    world.look(100 * HOUR_S)
    assert (world.api.evictions, world.events) == ([], [])


def test_a_report_is_an_event_once_and_no_eviction(world: World) -> None:
    world.api.label = "report-after-2h"
    for minutes in range(120, 180):
        world.look(minutes * 60.0)
    assert world.api.evictions == []
    assert world.reasons == ["GPUIdle"]


def test_a_pod_that_is_idle_again_is_reported_again(world: World) -> None:
    world.api.label = "report-after-2h"
    world.look(2 * HOUR_S)
    world.part.desire([])
    world.pod = replace(world.pod, since=2 * HOUR_S)
    world.look(3 * HOUR_S)
    assert world.reasons == ["GPUIdle"]
    world.look(4 * HOUR_S)
    assert world.reasons == ["GPUIdle", "GPUIdle"]


def test_a_static_pod_is_only_reported(world: World) -> None:
    world.pod = replace(world.pod, is_static=True)
    world.look(3 * HOUR_S)
    assert (world.api.evictions, world.reasons) == ([], ["GPUIdle"])


def test_a_budget_delays_the_eviction_and_the_pod_is_told_once(world: World) -> None:
    world.api.refuses = ApiError(429, "", "Cannot evict pod as it would violate the pod's disruption budget.")
    world.look(2 * HOUR_S)
    world.look(2 * HOUR_S + RECHECK_S)
    assert world.reasons == ["GPUIdle"]
    assert "a PodDisruptionBudget does not allow it now" in world.events[0].message
    world.api.refuses = None
    world.look(2 * HOUR_S + 2 * RECHECK_S)
    assert world.reasons == ["GPUIdle", "GPUIdleEvicted"]


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_is_gone_is_nobodys_news(world: World, status: int) -> None:
    world.api.refuses = ApiError(status, "", "gone")
    world.look(2 * HOUR_S)
    assert world.events == []


def test_a_missing_right_is_reported_on_the_pod(world: World) -> None:
    world.api.refuses = ApiError(403, "", "forbidden: may not evict")
    world.look(2 * HOUR_S)
    assert world.reasons == ["GPUIdle"]
    assert "may not evict" in world.events[0].message


def test_nothing_is_done_while_the_policy_cannot_be_read(world: World) -> None:
    world.api.unreadable = ApiUnreachable("no answer")
    with pytest.raises(ApiUnreachable):
        world.look(9 * HOUR_S)
    assert (world.api.evictions, world.events) == ([], [])


def test_a_label_that_is_taken_off_ends_the_policy_within_a_minute(world: World) -> None:
    world.look(HOUR_S)
    world.api.label = None
    world.look(2 * HOUR_S)
    assert world.api.evictions == []


def test_idleness_that_is_not_confirmed_any_more_does_not_count(world: World) -> None:
    """The readings have stopped, for example because the thread of the usage waits for the driver."""
    world.now = 2 * HOUR_S
    world.part.desire([world.pod])
    world.now += MOST_GAP_S + 1
    world.part.attempt(world.pod)
    assert world.api.evictions == []


# -- a label that is no policy --------------------------------------------------------------------------------------


def test_a_mistyped_label_is_a_problem_that_names_namespace_value_and_cure(world: World) -> None:
    world.api.label = "evict-after-8hours"
    world.look(HOUR_S)
    world.look(HOUR_S + 10)
    world.look(HOUR_S + RECHECK_S)
    (problem,) = world.problems
    assert problem is not None
    assert "namespace ml (evict-after-8hours)" in problem
    assert "nothing is done about their idle pods" in problem
    assert "evict-after-8h" in problem
    assert world.events == []


@pytest.mark.parametrize("label", [None, "evict-after-8h"])
def test_the_problem_ends_within_a_minute_when_the_label_is_corrected(world: World, label: str | None) -> None:
    world.api.label = "evict-after-8hours"
    world.look(HOUR_S)
    world.look(HOUR_S + 10)
    world.api.label = label
    world.look(HOUR_S + 10 + RECHECK_S)
    world.look(HOUR_S + 20 + RECHECK_S)
    assert [problem is None for problem in world.problems] == [False, True]


def test_the_problem_ends_when_the_namespace_has_no_idle_pod_here(world: World) -> None:
    world.api.label = "evict-after-8hours"
    world.look(HOUR_S)
    world.part.desire([world.pod])
    world.part.desire([])
    assert [problem is None for problem in world.problems] == [False, True]


def test_many_mistyped_labels_are_one_short_problem(world: World) -> None:
    """Some clusters let tenants label their namespaces."""
    world.api.label = "x" * 63
    pods = [IdlePod(PodName(f"ml-{number:03}", "a"), f"uid-{number}", 0.0) for number in range(300)]
    world.part.desire(pods)
    for pod in pods:
        world.part.attempt(pod)
    world.part.desire(pods)
    (problem,) = world.problems
    assert problem is not None
    assert "and 297 more" in problem
    assert len(problem) < 1000
