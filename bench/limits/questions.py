"""The questions about the driver's memory limits, each tried on a GPU, and what the agent assumes of the answer."""

import enum
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.limits import few_rights
from bench.limits.checked_gpu import ENDING_S, MIB, CheckedGpu
from bench.limits.own_cgroups import OwnCgroups
from gpuagent.limits_helper.probe import MISC

SHARE_MIB = 2048
"""The limit that is tried. A CUDA context of some hundred MiB counts against it."""
EARLY_MIB = 512
_SLACK_MIB = 64
"""Programs allocate in such steps."""
_ROUNDS = 8
_AT_ONCE = 8
"""Cgroups that are made and removed, to see whether later ones inherit their limits."""


class Verdict(enum.StrEnum):
    """What an answer means for the agent."""

    ASSUMED = "as assumed"
    BETTER = "better"
    """The agent takes precautions that are not needed."""
    WORSE = "WORSE"
    """The agent relies on something that is not so."""
    NOT_ASKED = "not asked"
    FAILED = "FAILED"
    """It could not be tried."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of the table; `measured` goes into the JSON."""

    question: str
    answer: str
    verdict: Verdict
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a question works with."""

    gpu: CheckedGpu
    cgroups: OwnCgroups
    change_persistence: bool = False


def promise(trial: Trial) -> Answer:
    """Two programs in one container share its pod's limit."""
    pod = trial.cgroups.pod("promise")
    leaf = trial.cgroups.leaf(pod)
    trial.gpu.limit(pod, SHARE_MIB)
    with trial.gpu.program(leaf) as first, trial.gpu.program(leaf) as second:
        first.take(EARLY_MIB)
        both = EARLY_MIB + second.fill()
        first_again = first.fill()
    taken = both + first_again
    holds = 0 < taken <= SHARE_MIB
    return Answer(
        "does a pod's limit hold for two programs together?",
        f"{'yes' if holds else 'no'}: they got {taken} of {SHARE_MIB} MiB",
        Verdict.ASSUMED if holds else Verdict.WORSE,
        {"limit_mib": SHARE_MIB, "taken_mib": taken},
    )


def managed(trial: Trial) -> Answer:
    """Unified memory beyond the limit."""
    pod = trial.cgroups.pod("managed")
    leaf = trial.cgroups.leaf(pod)
    trial.gpu.limit(pod, SHARE_MIB)
    with trial.gpu.program(leaf) as program:
        taken = program.take_managed(2 * SHARE_MIB)
    return Answer(
        "does unified memory (cudaMallocManaged) count?",
        "no: a program got twice its limit" if taken else "yes: it was refused beyond the limit",
        Verdict.ASSUMED if taken else Verdict.BETTER,
        {"limit_mib": SHARE_MIB, "taken_mib": taken},
    )


def rights(trial: Trial) -> Answer:
    """Question 1: which capability a process needs."""
    pod = trial.cgroups.pod("rights")
    gpu = trial.gpu
    simulate = gpu.machine.simulate
    alone = few_rights.try_to_set(gpu.uuid, pod, SHARE_MIB * MIB, sys_admin=True, simulate=simulate)
    none = few_rights.try_to_set(gpu.uuid, pod, (SHARE_MIB + 1) * MIB, sys_admin=False, simulate=simulate)
    measured = {"sys_admin": alone or "set", "without": none or "set"}
    question = "is SYS_ADMIN alone enough to set a limit?"
    if alone:
        return Answer(question, f"no: {alone}", Verdict.WORSE, measured)
    if none:
        return Answer(question, f"yes, and it is needed: {none}", Verdict.ASSUMED, measured)
    return Answer(question, "yes, and root needs no capability at all", Verdict.BETTER, measured)


def total(trial: Trial) -> Answer:
    """Question 2: what a program sees if only its pod has a limit, and whether the limit holds."""
    pod = trial.cgroups.pod("total")
    leaf = trial.cgroups.leaf(pod)
    trial.gpu.limit(pod, SHARE_MIB)
    with trial.gpu.program(leaf) as program:
        seen = program.size_mib()
        taken = program.fill()
    sees_limit = seen <= SHARE_MIB
    # On backend dmem the agent sets a limit for each container as well, because of this.
    expects_limit = trial.gpu.backend == MISC
    verdict = Verdict.ASSUMED if sees_limit is expects_limit else Verdict.BETTER
    if taken > SHARE_MIB or (expects_limit and not sees_limit):
        verdict = Verdict.WORSE
    shown = "its limit" if sees_limit else "the whole GPU"
    return Answer(
        "what does a program see if only its pod is limited?",
        f"{shown} ({seen} MiB), and it got {taken} of {SHARE_MIB} MiB",
        verdict,
        {"limit_mib": SHARE_MIB, "seen_mib": seen, "taken_mib": taken},
    )


def inherited(trial: Trial) -> Answer:
    """Question 3: whether new cgroups have the limits of removed ones."""
    born = 0
    made = 0
    for number in range(_ROUNDS):
        pods = [trial.cgroups.pod(f"round-{number}-{index}") for index in range(_AT_ONCE)]
        for pod in pods:
            made += 1
            born += trial.gpu.limit_of(pod) is not None
            # All of the GPU: whoever inherits it outside of this check is not kept from anything.
            trial.gpu.limit(pod, trial.gpu.memory // MIB)
        for pod in pods:
            trial.cgroups.remove(pod)
        # Only then can its address be another one's.
        time.sleep(trial.gpu.machine.removed_s)
    expects = trial.gpu.backend == MISC
    verdict = Verdict.ASSUMED if bool(born) is expects else Verdict.BETTER
    if born and not expects:
        verdict = Verdict.WORSE
    return Answer(
        "do new cgroups inherit limits of removed ones?",
        f"{born} of {made} had a limit that was not set for them",
        verdict,
        {"inherited": born, "made": made},
    )


def _after_closed(gpu: CheckedGpu, pod: Path) -> int | None:
    """The limit in MiB after no process had the GPU open. It takes the driver a while to see that a program ended."""
    until = time.monotonic() + ENDING_S
    while True:
        with gpu.closed():
            pass
        limit_mib = gpu.limit_of(pod)
        if limit_mib != SHARE_MIB or time.monotonic() > until:
            return limit_mib


def persistence(trial: Trial) -> Answer:
    """Question 4: whether limits outlive the last user of the GPU without persistence mode."""
    gpu = trial.gpu
    question = "without persistence mode, are limits lost with the last user?"
    was_on = gpu.machine.persistence(gpu.uuid)
    if was_on and not trial.change_persistence:
        text = "persistence mode is on: --change-persistence switches it off for a moment"
        return Answer(question, text, Verdict.NOT_ASKED)
    pod = trial.cgroups.pod("persistence")
    leaf = trial.cgroups.leaf(pod)
    gpu.machine.set_persistence(gpu.uuid, enabled=False)
    try:
        gpu.limit(pod, SHARE_MIB)
        with gpu.program(leaf) as program:
            program.take(EARLY_MIB)
        gpu.wait_unused(pod)
        open_mib = gpu.limit_of(pod)
        closed_mib = _after_closed(gpu, pod)
    finally:
        gpu.machine.set_persistence(gpu.uuid, enabled=was_on)
    measured = {"while_open_mib": open_mib, "after_closed_mib": closed_mib}
    if open_mib != SHARE_MIB:
        return Answer(question, "yes, even while NVML has the GPU open", Verdict.WORSE, measured)
    if closed_mib == SHARE_MIB:
        return Answer(question, "no: they were there after everybody had closed it", Verdict.BETTER, measured)
    return Answer(question, "yes, but not while NVML has the GPU open", Verdict.ASSUMED, measured)


def late(trial: Trial) -> Answer:
    """Question 5: what a limit of a container does that comes after it has memory."""
    pod = trial.cgroups.pod("late")
    leaf = trial.cgroups.leaf(pod)
    trial.gpu.limit(pod, SHARE_MIB)
    with trial.gpu.program(leaf) as program:
        early = program.take(EARLY_MIB)
        trial.gpu.limit(leaf, SHARE_MIB)
        taken = early + program.fill()
        used = {"pod_used_mib": trial.gpu.used_by(pod), "leaf_used_mib": trial.gpu.used_by(leaf)}
    adds = taken > SHARE_MIB - _SLACK_MIB + EARLY_MIB // 2
    expects = trial.gpu.backend == MISC
    verdict = Verdict.ASSUMED if adds is expects else Verdict.BETTER
    if adds and not expects:
        verdict = Verdict.WORSE
    text = "it adds to the pod's" if adds else "the pod's limit holds"
    return Answer(
        "what does a limit do that a container gets late?",
        f"{text}: the program got {taken} MiB with limits of {SHARE_MIB} MiB",
        verdict,
        {"limit_mib": SHARE_MIB, "taken_mib": taken, **used},
    )


QUESTIONS: Mapping[str, Callable[[Trial], Answer]] = {
    "promise": promise,
    "managed": managed,
    "rights": rights,
    "total": total,
    "late": late,
    "inherited": inherited,
    # Last, because it clears what the others have left in the driver.
    "persistence": persistence,
}
