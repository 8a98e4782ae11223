"""This project's labels: `gpu-topology` names a job, and `gpu-topology-replica` says how many pods it has.

They stand in a template, which may serve several workloads, or several groups of one. Then each gets a gang of its own:
labels that other controllers write tell them apart.
"""

from collections.abc import Mapping
from dataclasses import replace

from gpuagent.domain.pods.pod import count_of
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs.gang import Gang, GangSource

WORKLOAD_LABELS = ("training.kubeflow.org/job-name", "ray.io/cluster", "spark-app-selector")
"""Written by the controllers of PyTorchJob, MPIJob and the like, and of RayCluster, and by Spark.

One template may make many. The name of a plain Job is not among them: pods of several Jobs may be one gang.
"""


def gang_of_labels(labels: Mapping[str, str]) -> Gang | None:
    """The gang that a pod's labels name; None if they name none."""
    name = labels.get(JOB_LABEL)
    if not name:
        return None
    pods = count_of(labels.get(REPLICAS_LABEL))
    return of_workload(Gang(GangSource.LABELS, name, pods), labels)


def of_workload(gang: Gang, labels: Mapping[str, str]) -> Gang:
    """The gang that labels of a template name, apart from those of other workloads that are made from the template."""
    for label in WORKLOAD_LABELS:
        workload = labels.get(label)
        # A label that names the workload itself, as people are told to choose it, needs no second name.
        if workload and workload != gang.name:
            return part_of(gang, workload)
    return gang


def part_of(gang: Gang, part: str) -> Gang:
    """The gang of one of several parts that have the name in common. No label has a slash in its value."""
    return replace(gang, name=f"{gang.name}/{part}", has_no_namesake=True)
