"""Kueue's groups of plain pods: a label names the group, and an annotation says how many pods it has.

Kueue also writes them on the pods of serving workloads, such as StatefulSets, whose pods are created one after another
and are of use alone: the annotations `pod-group-serving` and `pod-group-fast-admission` mark these, and they are no
gang.
"""

from collections.abc import Mapping
from typing import Any

from gpuagent.domain.pods.json_values import text
from gpuagent.domain.pods.pod import count_of
from gpuscheduler.core.gangs.gang import Gang, GangSource

GROUP = "kueue.x-k8s.io/pod-group-name"
COUNT = "kueue.x-k8s.io/pod-group-total-count"
ONE_BY_ONE = ("kueue.x-k8s.io/pod-group-serving", "kueue.x-k8s.io/pod-group-fast-admission")


def kueue_gang(labels: Mapping[str, str], annotations: Mapping[str, Any]) -> Gang | None:
    """The gang of a pod; None if it is of none."""
    name = labels.get(GROUP)
    if not name or any(mark in annotations for mark in ONE_BY_ONE):
        return None
    pods = count_of(text(annotations.get(COUNT)))
    return Gang(GangSource.KUEUE, name, pods)
