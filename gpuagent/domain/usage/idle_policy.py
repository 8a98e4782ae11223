"""What a namespace wants done about pods that hold GPUs without using them, and which pods those are."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.domain.usage.over_time import NodeUsage

WHEN_IDLE_LABEL = "gpuagent.io/when-idle"
"""Label of a namespace: ``report-after-4h`` or ``evict-after-2d``. Whoever may label namespaces decides, no tenant."""
LEAST_S = 600.0
"""The shortest time. Programs that load data or compile leave a GPU idle for minutes."""

_POLICY = re.compile(r"(report|evict)-after-([1-9][0-9]{0,3})([mhd])")
_UNIT_S = {"m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """The policy of a namespace.

    Attributes:
        action: ``report`` is an Event on the pod; ``evict`` is an eviction, and an Event that says why.
        after_s: for how long no GPU of the pod has worked for it.
        label: the value of the label.
    """

    action: Literal["report", "evict"]
    after_s: float
    label: str


@dataclass(frozen=True, slots=True)
class IdlePod:
    """A pod that holds GPUs of which none works for it.

    Attributes:
        since: when one last did, in monotonic seconds.
        is_static: kubelet takes it from a file, so it cannot be evicted.
    """

    name: PodName
    uid: str
    since: float
    is_static: bool = False


def parse_policy(label: str | None) -> IdlePolicy | None:
    """The policy that a label stands for; None for none, and for a value that cannot be read or is shorter than ten
    minutes: nothing is done to a pod because of a typing error.
    """
    match = _POLICY.fullmatch(label or "")
    if match is None:
        return None
    action, number, unit = match.groups()
    after_s = int(number) * _UNIT_S[unit]
    if after_s < LEAST_S:
        return None
    return IdlePolicy("evict" if action == "evict" else "report", after_s, match[0])


def idle_pods(usage: NodeUsage, pods: Iterable[Pod], at: float) -> Iterator[IdlePod]:
    """The pods that have been idle for `LEAST_S` or longer.

    A pod counts only if it is known of each of its containers and GPUs that it is idle, and if the readings are
    certainly of this pod and not of a former one of its name.
    """
    since_by_pod: dict[tuple[PodName, str], list[float | None]] = {}
    for (_, owner), of_gpu in usage.by_container.items():
        if of_gpu.ended is not None:
            continue
        is_known = of_gpu.idle_for(at) is not None
        since = of_gpu.idle_since if is_known else None
        since_by_pod.setdefault((owner.pod, of_gpu.reading.pod_uid), []).append(since)
    for pod in pods:
        of_pod = since_by_pod.get((pod.name, pod.uid), [])
        known = [since for since in of_pod if since is not None]
        is_known = bool(known) and len(known) == len(of_pod)
        if pod.ended or pod.deleting or not is_known:
            continue
        if at - max(known) >= LEAST_S:
            yield IdlePod(pod.name, pod.uid, max(known), pod.static or pod.mirror)
