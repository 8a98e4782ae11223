"""Whether kube-scheduler's call and the watch show the same pod, which still waits."""

from dataclasses import replace

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.waiting.pod_changes import has_changed, is_elsewhere
from tests.unit.gpuscheduler.core.api_objects import pod


def member(job="j", pods="2", **given):
    return pod("p", uid="p", labels={JOB_LABEL: job, REPLICAS_LABEL: pods}, **{"mem": 1, **given})


@pytest.mark.parametrize(
    ("called", "seen", "expected"),
    [
        (member(), None, False),
        (member(), member(), False),
        (member(), member(job="other"), True),
        (member(), member(pods="3"), True),
        (member(), member(mem=2), True),
        (member(), member(on="n1"), True),
        (member(), pod("p", uid="p", mem=1), True),
        (replace(member(), deleting=True), None, True),
        (member(), replace(member(), deleting=True), True),
    ],
)
def test_a_pod_has_changed_if_the_watch_shows_another_job_request_or_node(called, seen, expected):
    assert has_changed(called, seen) is expected


def test_a_new_number_of_an_object_takes_no_pod_out_of_its_gang():
    """However, a pod that may start alone is no longer one of a gang."""
    source = next(kind for kind in GangSource if kind.is_numbered_by_object)
    two, three, one = (Gang(source, "g", pods) for pods in (2, 3, 1))
    assert not is_elsewhere(two, three)
    assert is_elsewhere(two, one)
    assert is_elsewhere(two, Gang(source, "other", 2))
    assert is_elsewhere(None, two)
    assert not is_elsewhere(None, None)
