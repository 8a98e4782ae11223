"""Ends MPS clients before kubelet kills them: which ones, and when. Decides alone, without a clock and a process.

Kubelet kills the processes of a pod when its grace period ends. If that ends an MPS client with work on the GPU, the
server can hang for all others. The daemon can end a client safely.
"""

from collections.abc import Iterable, Mapping

LEAD_S = 3.0
"""Seconds before the end of a pod's grace period at which its clients are ended."""
OVER_S = 10.0
"""Seconds after it at which kubelet has killed them. A pod may stay for hours, for its finalizers."""


def due_at(kill_at: float) -> float:
    """When to end the clients of a pod that kubelet kills at `kill_at`."""
    return kill_at - LEAD_S


def due_pods(ending: Mapping[str, float], now: float) -> frozenset[str]:
    """UIDs of the pods whose clients have to be ended now.

    Args:
        ending: UID of each pod that is being deleted to when kubelet kills it.
        now: by the same clock.
    """
    due = [uid for uid, kill_at in ending.items() if due_at(kill_at) <= now < kill_at + OVER_S]
    return frozenset(due)


def next_due_s(ending: Mapping[str, float], now: float) -> float | None:
    """Seconds until the next pod is due; None if no other pod will be."""
    waits = [due_at(kill_at) - now for kill_at in ending.values() if due_at(kill_at) > now]
    return min(waits, default=None)


def clients_to_end(due: Iterable[str], clients: Mapping[int, str | None]) -> tuple[int, ...]:
    """PIDs of the clients to end, in order.

    Args:
        due: UIDs of the pods whose clients have to be ended.
        clients: PID of each client to the UID of its pod; None for a process of no pod, or of one that is not known.
    """
    pods = frozenset(due)
    return tuple(sorted([pid for pid, uid in clients.items() if uid in pods]))
