"""What the Node says of its GPUs and of the agent: labels, an amount that kubelet does not manage, a condition."""

import re

from gpuagent.domain.fleet.node_problems import CONDITION_TYPE, NodeProblem, condition_message
from gpuagent.domain.sharing.mode import GPU_COUNT
from gpuagent.domain.state import State
from gpuagent.domain.status.problems import problems
from gpuagent.domain.usable_gpus import serves_gpus, usable_gpus

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]")


def node_labels(state: State) -> dict[str, str | None]:
    """The desired labels `aliyun.accelerator/nvidia_*` (None: absent); empty until the driver has answered."""
    gpus = state.gpus.by_index
    if gpus:
        first = gpus[0]
        allowed = _NOT_IN_LABELS.sub("-", first.model)
        # A label's value has 63 characters at most, and begins and ends with a letter or digit.
        name = allowed[:63].strip("-_.")
        memory = f"{first.memory_mib}MiB" if first.memory_mib else None
    elif _has_no_gpus(state):
        name = None
        memory = None
    else:
        # What is not known is not 0: the labels of an earlier run stay until the driver has answered.
        return {}
    return {
        "aliyun.accelerator/nvidia_name": name,
        "aliyun.accelerator/nvidia_mem": memory,
        "aliyun.accelerator/nvidia_count": str(len(gpus)),
    }


def node_capacity(state: State) -> dict[str, str]:
    """Node status amounts that kubelet does not manage: `aliyun.com/gpu-count`. Empty until the driver has answered."""
    gpus = state.gpus.by_uuid
    if not gpus and not _has_no_gpus(state):
        return {}
    count = len(gpus)
    return {GPU_COUNT: str(count)}


def _has_no_gpus(state: State) -> bool:
    """Whether the driver has answered that there is no GPU."""
    gpus = state.gpus
    has_answered = gpus.driver_problem is None
    return has_answered and not gpus.by_uuid and not gpus.unreadable


def node_condition(state: State) -> dict[str, str]:
    """The node condition: type, status, reason, message. The writer adds the times."""
    every = problems(state)
    blocking = [problem for problem in every if problem.blocking]
    lasting = [problem for problem in every if problem.blocking or not problem.passing]
    reported = [NodeProblem(problem.severity, problem.reason, problem.message) for problem in lasting]
    status = "False" if blocking else "True"
    reason: str = blocking[0].reason if blocking else "Ready"
    # Until the mode is known, there is none to name.
    summary = f"mode {state.node.mode}, {_gpus_words(state)}" if state.node.mode_known else ""
    return {
        "type": CONDITION_TYPE,
        "status": status,
        "reason": reason,
        "message": condition_message(summary, reported),
    }


def _gpus_words(state: State) -> str:
    count = len(state.gpus.by_uuid)
    usable = len(usable_gpus(state))
    if usable == count or not serves_gpus(state):
        return f"{count} GPUs"
    return f"{usable} of {count} GPUs can be used"
