"""This project's labels: `gpu-topology` names a job, and `gpu-topology-replica` says how many pods it has."""

from collections.abc import Mapping

from gpuagent.domain.pods.pod import count_of
from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs.gang import Gang, GangSource


def gang_of_labels(labels: Mapping[str, str]) -> Gang | None:
    """The gang that a pod's labels name; None if they name none."""
    name = labels.get(JOB_LABEL)
    if not name:
        return None
    pods = count_of(labels.get(REPLICAS_LABEL))
    return Gang(GangSource.LABELS, name, pods)
