"""Decides which failed pods to delete, and when: at once when the node serves again, then with growing delays.

Kubelet never retries a pod that failed admission. If its controller replaces it, the core deletes the pod as soon as
its resources are advertised again. If the replacements keep failing, the delay between deletions grows.
"""

from collections.abc import Iterator
from dataclasses import replace

from gpuagent.domain.pods.failed_pod import ControllerKey, FailedPod, Failure, Round, failed_pod
from gpuagent.domain.state import State

FIRST_DELAY_S, MOST_DELAY_S = 10.0, 300.0
"""Delay between two rounds of one controller; doubles with each."""
REFUSED_S = 60.0
"""Seconds before the deletion of a pod that the agent refused, so that people can read the reason in its status."""
FORGET_S = 1800.0
"""After this time without a failed pod, a controller's delays start over."""


def rounds(state: State, at: float) -> State:
    """Start the rounds that are due at this moment."""
    if not state.policy.clean_failed_pods or not state.pods.watched:
        return state
    failed = _by_controller(state)
    now = {key: found for key, found in state.cleanup.rounds.items() if key in failed or at - found.at < FORGET_S}
    for key, pods in failed.items():
        found = now.get(key) or Round(0, at)
        now[key] = found = replace(
            found,
            pods=found.pods & {pod.uid for pod in pods},
            seen={pod.uid: found.seen.get(pod.uid, at) for pod in pods},
        )
        ripe = {pod.uid for pod in pods if at >= _ripe_at(found, pod)}
        if not ripe <= found.pods and at >= _not_before(found):
            now[key] = replace(found, count=found.count + 1, at=at, pods=found.pods | ripe)
    return state if now == state.cleanup.rounds else replace(state, cleanup=replace(state.cleanup, rounds=now))


def to_delete(state: State) -> tuple[FailedPod, ...]:
    """Pods of started rounds that still exist."""
    begun = ((pod, state.cleanup.rounds.get(_key(pod))) for pod in _failed(state)) if state.cleanup.rounds else ()
    return tuple(pod for pod, found in begun if found and pod.uid in found.pods)


def deadline(state: State) -> float | None:
    """When the next round is due; None while no failed pod waits for one."""
    waiting = ((pod, state.cleanup.rounds.get(_key(pod))) for pod in _failed(state)) if state.cleanup.rounds else ()
    return min(
        (
            max(_not_before(found), _ripe_at(found, pod))
            for pod, found in waiting
            if found and pod.uid in found.seen and pod.uid not in found.pods
        ),
        default=None,
    )


def _not_before(found: Round) -> float:
    return found.at + (min(FIRST_DELAY_S * 2 ** (found.count - 1), MOST_DELAY_S) if found.count else 0.0)


def _ripe_at(found: Round, pod: FailedPod) -> float:
    return found.seen[pod.uid] + (REFUSED_S if pod.failure is Failure.REFUSED else 0.0)


def _key(pod: FailedPod) -> ControllerKey:
    """The API server doesn't check that an owner exists: any namespace may name any UID."""
    return pod.name.namespace, pod.controller.uid


def _by_controller(state: State) -> dict[ControllerKey, list[FailedPod]]:
    found: dict[ControllerKey, list[FailedPod]] = {}
    for pod in _failed(state):
        found.setdefault(_key(pod), []).append(pod)
    return found


def _failed(state: State) -> Iterator[FailedPod]:
    """Failed pods whose replacement may succeed."""
    if not state.policy.clean_failed_pods or not state.pods.watched:
        return
    ours = state.policy.resources.names
    served = {name for name in ours if _is_served(state, name)}
    for pod in state.pods.seen:
        if pod.rejected is not None and (found := failed_pod(pod, ours)):
            asked = {name for container in pod.containers for name in ours if container.asks(name)}
            if asked <= served:
                yield found


def _is_served(state: State, resource: str) -> bool:
    """Whether kubelet follows its list and has a healthy device on it.

    Also true if the mode does not advertise the resource: the replacement then goes to another node.
    """
    if resource not in state.advertised.connected or not state.node.mode_known:
        return False
    resource_kinds = resource in state.resource_kinds
    return not resource_kinds or any(block.healthy for block in state.advertised.lists.get(resource, ()))
