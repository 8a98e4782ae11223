"""A container that fails with its GPU memory full is reported, and no other."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.domain.announcement import Announcement
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import ContainerRef, FailedRun, Pod, PodName
from gpuagent.domain.usage.exhausted import AGAIN_S, MOST_AT_ONCE, RECENT_S, ExhaustedContainers
from gpuagent.domain.usage.over_time import HeldUse, NodeUsage
from tests.unit.domain.builders import gpu, uuid

GIB = 1 << 30
FULL = HeldUse("uid-a", 8 * GIB, round(7.9 * GIB), 1.0, limited=True)


def pod(name: str = "a", run: int = 1, code: int = 1, **changes: Any) -> Pod:
    runs = (FailedRun("main", f"containerd://{name}{run}", code),) if code else ()
    return replace(Pod(PodName("ml", name), f"uid-{name}", "", {}, (), failed_runs=runs), **changes)


def used(reading: HeldUse, at: float = 100.0, *names: str) -> NodeUsage:
    keys = [(uuid(0), ContainerRef(PodName("ml", name), "main")) for name in names or ("a",)]
    return NodeUsage().next(dict.fromkeys(keys, reading), at)


def told(usage: NodeUsage, *pods: Pod, at: float = 105.0) -> tuple[Announcement, ...]:
    """What is said about pods that ran at the first look."""
    before, _ = ExhaustedContainers().next([], usage, {}, 100.0)
    _, announcements = before.next(pods, usage, {uuid(0): gpu(0)}, at)
    return announcements


def test_the_event_names_what_the_container_had_and_used() -> None:
    (announcement,) = told(used(FULL), pod())
    assert (announcement.reason, announcement.warning) == ("GPUMemoryExhausted", True)
    assert announcement.pods == (PodName("ml", "a"),)
    assert announcement.message.startswith(
        f"container main exited with code 1 after it had used 7.9 GiB of the 8.0 GiB that it has of GPU 0 ({uuid(0)})"
    )


@pytest.mark.parametrize(
    "reading",
    [
        replace(FULL, used_bytes=7 * GIB),
        replace(FULL, used_bytes=None),
        replace(FULL, held_bytes=None),
        replace(FULL, limited=False),
    ],
    ids=["not full", "not known", "of another plugin", "nothing limits it"],
)
def test_nothing_is_said_of_others(reading: HeldUse) -> None:
    assert told(used(reading), pod()) == ()


def test_nothing_is_said_of_what_was_used_long_ago_or_of_a_pod_that_is_deleted_or_succeeds() -> None:
    assert told(used(FULL), pod(), at=101.0 + RECENT_S) == ()
    assert told(used(FULL), pod(deleting=True)) == ()
    assert told(used(FULL), pod(code=0)) == ()


def test_what_failed_before_the_agent_started_is_not_reported() -> None:
    before, announcements = ExhaustedContainers().next([pod()], used(FULL), {}, 100.0)
    assert announcements == ()
    assert before.next([pod()], used(FULL), {}, 105.0)[1] == ()
    assert len(before.next([pod(run=2)], used(FULL), {}, 105.0)[1]) == 1


def test_a_reading_of_the_next_run_does_not_hide_the_one_before_the_failure() -> None:
    usage = used(FULL).next({(uuid(0), ContainerRef(PodName("ml", "a"), "main")): replace(FULL, used_bytes=GIB)}, 110.0)
    assert len(told(usage, pod(), at=110.0)) == 1


def test_an_ended_pod_is_reported_too() -> None:
    """A pod that never restarts has ended when its failure is seen."""
    usage = used(FULL).next({}, 110.0)
    assert len(told(usage, pod(ended=True), at=110.0)) == 1


def test_a_crash_loop_is_reported_every_ten_minutes() -> None:
    state, _ = ExhaustedContainers().next([], used(FULL), {}, 0.0)
    reports = []
    for n in range(8):
        at = 100.0 + n * AGAIN_S / 4
        state, announcements = state.next([pod(run=n)], used(FULL, at), {}, at)
        reports.append(len(announcements))
    assert reports == [1, 0, 0, 0, 1, 0, 0, 0]


def test_a_node_on_which_everything_fails_says_it_for_some() -> None:
    names = [f"p{n}" for n in range(3 * MOST_AT_ONCE)]
    assert len(told(used(FULL, 100.0, *names), *map(pod, names))) == MOST_AT_ONCE


def test_failed_runs_are_read_from_the_state_or_from_the_one_before() -> None:
    ended = {"terminated": {"exitCode": 137, "containerID": "containerd://x"}}
    status = {
        "containerStatuses": [
            {"name": "now", "state": ended},
            {"name": "before", "state": {"running": {}}, "lastState": ended},
            {"name": "well", "state": {"terminated": {"exitCode": 0, "containerID": "containerd://y"}}},
            {"name": "odd", "state": {"terminated": {"exitCode": "1", "containerID": 7}}},
            {"name": "never", "state": {"waiting": {}}},
        ]
    }
    assert parse_pod({"status": status}).failed_runs == (
        FailedRun("now", "containerd://x", 137),
        FailedRun("before", "containerd://x", 137),
    )
