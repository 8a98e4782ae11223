"""A few nodes that count as a cluster of more than a hundred, where kube-scheduler looks at a part of the nodes.

gpuscheduler nominates pods for their nodes there. A hundred real nodes would take too long to simulate, so the numbers
from which it does so are replaced. Nothing that decides is.
"""

from gpuscheduler.core.jobs.places import plan
from gpuscheduler.core.jobs.planning import named_nodes, nominations
from gpuscheduler.core.waiting import wake_ups


def count_as_large() -> None:
    """Have gpuscheduler count each cluster of two nodes or more as large, in this process."""
    for module in (named_nodes, nominations, plan, wake_ups):
        if not hasattr(module, "ALL_NAMED"):
            raise AttributeError(f"{module} has no ALL_NAMED: the number has to be replaced in another place")
        setattr(module, "ALL_NAMED", 1)  # noqa: B010 (mypy knows no such attribute of a module)
