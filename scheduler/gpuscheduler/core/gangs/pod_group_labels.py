"""The labels of the coscheduling plugin before it had PodGroups, which ACK's scheduler and Koordinator read as well.

One names the group, and the other says how many of its pods start together.
"""

from collections.abc import Mapping

from gpuagent.domain.pods.pod import count_of
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.labels import of_workload

NAME = "pod-group.scheduling.sigs.k8s.io/name"
MINIMUM = "pod-group.scheduling.sigs.k8s.io/min-available"


def pod_group_of_labels(labels: Mapping[str, str]) -> Gang | None:
    """The gang of a pod; None if it is of none. Without both labels it is of none for the plugin, either."""
    name = labels.get(NAME)
    if not name or MINIMUM not in labels:
        return None
    minimum = count_of(labels[MINIMUM])
    return of_workload(Gang(GangSource.POD_GROUP_LABELS, name, minimum, minimum), labels)
