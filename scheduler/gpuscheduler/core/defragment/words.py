"""What people read about a plan: Events of the pods that it concerns."""

from gpuscheduler.core.calls import Report
from gpuscheduler.core.defragment.course import Course, Outcome
from gpuscheduler.core.defragment.move_plan import Move, MovePlan
from gpuscheduler.core.single_pods.fragmentation import named

_WHY = {
    Outcome.REFUSED: "the API server refused an eviction, for example because of a PodDisruptionBudget",
    Outcome.CHANGED: "the cluster has changed",
    Outcome.LATE: "a pod has not started in time",
}


def begun(plan: MovePlan) -> Report:
    """That pods are moved for the waiting one."""
    pods = named(plan.evicted, plan.pod.name.namespace)
    text = f"To make room on node {plan.node}, these pods are evicted, because they fit elsewhere: {pods}"
    return Report(plan.pod.name, plan.pod.uid, "Defragmenting", text)


def evicted(move: Move, plan: MovePlan) -> Report:
    """That a pod was evicted, and for which one."""
    waiting = named([plan.pod], move.pod.name.namespace)
    text = f"Evicted so that another pod has room on one GPU: {waiting}. A new pod fits on node {move.node} now"
    return Report(move.pod.name, move.pod.uid, "EvictedToDefragment", text)


def gave_up(course: Course, outcome: Outcome) -> Report:
    """That a plan was given up. Why in detail may name what tenants of another namespace must not know."""
    plan = course.plan
    done = f"{course.evicted} of {len(plan.moves)} pods were evicted"
    text = f"The plan to make room on node {plan.node} was given up: {_WHY[outcome]}; {done}"
    return Report(plan.pod.name, plan.pod.uid, "DefragmentationGaveUp", text)
