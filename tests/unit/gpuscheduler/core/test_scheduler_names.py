"""Which pods are placed here, by the scheduler that they name."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER
from gpuscheduler.core.waiting.scheduler_names import SchedulerNames
from tests.unit.gpuscheduler.core.api_objects import pod

OURS, ANY = SchedulerNames(["gpu-scheduler"]), SchedulerNames(())


@pytest.mark.parametrize(
    ("scheduler", "ours", "any_name"),
    [
        ("gpu-scheduler", True, True),
        ("default-scheduler", False, True),
        (PLACEHOLDER_SCHEDULER, False, False),
    ],
)
def test_pods_of_other_schedulers_are_left_out_until_they_are_on_a_node(scheduler, ours, any_name):
    waiting = pod(mem=1, scheduler=scheduler)
    assert OURS.include(scheduler) is ours
    assert OURS.leave_out(waiting) is not ours
    assert ANY.include(scheduler) is any_name
    assert ANY.leave_out(waiting) is not any_name
    assert not OURS.leave_out(pod(mem=1, scheduler=scheduler, on="n1"))


def test_a_member_without_gpus_counts_if_its_author_knows_this_scheduler():
    """Our labels say so, whatever scheduler places the pod. A pod without a job never counts."""
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    assert OURS.count_without_gpus(pod(labels=labels, scheduler="default-scheduler"))
    assert not OURS.count_without_gpus(pod(scheduler="gpu-scheduler"))
