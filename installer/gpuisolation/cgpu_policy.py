"""cGPU's policy, max_inst and weights: shown, and set where the documents allow it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import CgpuGpu, CgpuState, Version
from gpuisolation import layer
from gpuisolation.change.steps import set_number
from gpuisolation.errors import InstallerError, RefusedError, UsageError
from gpuisolation.host.files import Files
from gpuisolation.host.root import Host
from gpuisolation.layer import RECORD
from gpuisolation.show import align, known

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The settings to change; None and empty leave a value as it is.

    Attributes:
        gpus: indices; empty for every GPU.
        weights: instance (its 12 characters, or the container's whole id) to weight.
    """

    gpus: Sequence[int] = ()
    policy: int | None = None
    max_inst: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.policy is not None or self.max_inst is not None or bool(self.weights)


Write = tuple[str, int, int | None]
"""Name below /proc/cgpu_km, value to write, value that is there."""


def parse(text: str) -> int:
    """A policy by number or name; the text of a ValueError lists the policies."""
    for policy in cgpu_proc.POLICIES.values():
        if text in {str(policy.number), policy.name}:
            return policy.number
    names = ", ".join(f"{policy.number} ({policy.name})" for policy in cgpu_proc.POLICIES.values())
    raise ValueError(f"{text!r} is none of the policies: {names}")


def writes(state: CgpuState, wish: Wish) -> tuple[Write, ...]:
    """The writes that fulfill the wish. Pure.

    Raises:
        UsageError: it names a GPU, an instance or a number that does not exist.
        RefusedError: the documents forbid it in the node's present state.
    """
    if problem := cgpu_proc.problem(state):
        raise RefusedError(problem)
    assert state.version is not None
    by_index = {gpu.index: gpu for gpu in state.gpus}
    if unknown := [str(index) for index in wish.gpus if index not in by_index]:
        raise UsageError(f"--gpu {', '.join(unknown)}: cGPU has GPUs {', '.join(map(str, by_index))}")
    chosen = [by_index[index] for index in wish.gpus or by_index]
    todo: list[Write] = []
    if wish.policy is not None:
        if state.version < cgpu_proc.POLICY_SINCE:
            raise RefusedError(
                f"cGPU {state.version} keeps its policy; {cgpu_proc.POLICY_SINCE} or later can change it"
            )
        changed = [gpu for gpu in chosen if gpu.policy != wish.policy]
        _idle(changed, "the policy")
        todo += [(f"{gpu.index}/policy", wish.policy, gpu.policy) for gpu in changed]
    if wish.max_inst is not None:
        most = cgpu_proc.MAX_INSTANCES if state.version >= Version(1, 0, 0) else cgpu_proc.MAX_INSTANCES_08
        if not 1 <= wish.max_inst <= most:
            raise UsageError(f"--max-inst {wish.max_inst}: cGPU {state.version} takes 1 to {most}")
        changed = [gpu for gpu in chosen if gpu.max_inst != wish.max_inst]
        _idle(changed, "max_inst")
        todo += [(f"{gpu.index}/max_inst", wish.max_inst, gpu.max_inst) for gpu in changed]
    for name, weight in wish.weights.items():
        todo += _weight(chosen, name, weight)
    return tuple(todo)


def _idle(gpus: Sequence[CgpuGpu], what: str) -> None:
    busy = [f"  GPU {gpu.index}: container {instance.name}" for gpu in gpus for instance in gpu.instances]
    if busy:
        lines = "\n".join(busy)
        raise RefusedError(f"{what} must not change while containers use the GPU:\n{lines}\nDrain the node first")


def _weight(gpus: Sequence[CgpuGpu], name: str, weight: int) -> list[Write]:
    if not 1 <= weight <= cgpu_proc.MAX_WEIGHT:
        raise UsageError(f"--weight {name}={weight}: wanted 1 to {cgpu_proc.MAX_WEIGHT}")
    found = [(gpu, inst) for gpu in gpus for inst in gpu.instances if inst.name == name[:12] and len(name) >= 12]
    if not found:
        there = ", ".join(inst.name for gpu in gpus for inst in gpu.instances) or "none"
        raise UsageError(f"--weight {name}: no such instance (12 characters of a container's id); there are: {there}")
    for gpu, instance in found:
        more = weight - (instance.weight or 0)
        if gpu.free_weight is not None and more > gpu.free_weight:
            raise RefusedError(
                f"GPU {gpu.index} has {gpu.free_weight} of its weight left, {name[:12]} would need {more} more: "
                "lower another instance's weight first"
            )
    return [(f"{gpu.index}/{instance.name}/weight", weight, instance.weight) for gpu, instance in found]


def apply(host: Host, files: Files, todo: Sequence[Write]) -> None:
    """Write all values, or restore those that were written.

    Raises:
        InstallerError: the module does not take one of the values.
    """
    done: list[Write] = []
    for name, value, before in todo:
        log.info("Set module value", extra={"file": f"{cgpu_proc.CGPU_PROC}/{name}", "value": value, "before": before})
        try:
            set_number(host, files, name, value)
        except InstallerError:
            for former, _, old in reversed(done):
                if old is not None:
                    log.warning(
                        "Restored module value", extra={"file": f"{cgpu_proc.CGPU_PROC}/{former}", "value": old}
                    )
                    set_number(host, files, former, old)
            raise
        done.append((name, value, before))


def change(host: Host, files: Files, wish: Wish, *, dry_run: bool) -> str:
    """Change the settings and record them; returns a report for people.

    Raises:
        InstallerError: as `writes` and `apply` do; cGPU is not loaded.
    """
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    if state is None:
        raise InstallerError(cgpu_proc.problem(state) or "")
    todo = writes(state, wish)
    lines = [f"{cgpu_proc.CGPU_PROC}/{name}: {known(before)} -> {value}" for name, value, before in todo]
    if dry_run:
        return "\n".join(["would write:", *(lines or ["nothing"])])
    apply(host, files, todo)
    remember(host, files, wish)
    if wish.policy is not None:
        lines.append("all shared nodes of a cluster must have the same policy")
    return "\n".join(lines or ["nothing to change"])


def page(state: CgpuState) -> list[dict[str, Any]]:
    """The GPUs as JSON has them."""
    return [asdict(gpu) for gpu in state.gpus]


def remember(host: Host, files: Files, wish: Wish) -> None:
    """Store the settings in the record, so that they apply again when the module is reloaded."""
    record = layer.recorded(host)
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    if record is None or state is None or (wish.policy is None and wish.max_inst is None):
        return
    settings = {gpu: dict(values) for gpu, values in record.settings.items()}
    for index in wish.gpus or [gpu.index for gpu in state.gpus]:
        values = settings.setdefault(str(index), {})
        values |= {"policy": wish.policy} if wish.policy is not None else {}
        values |= {"max_inst": wish.max_inst} if wish.max_inst is not None else {}
    files.write(RECORD, replace(record, settings=settings).to_json())


def table(state: CgpuState) -> str:
    """The policies in force, GPU by GPU."""
    rows = [["GPU", "POLICY", "NAME", "MAX_INST", "FREE_WEIGHT", "INSTANCES"]]
    for gpu in state.gpus:
        policy = cgpu_proc.POLICIES.get(gpu.policy) if gpu.policy is not None else None
        instances = ", ".join(f"{i.name} (weight {known(i.weight)})" for i in gpu.instances) or "-"
        name = policy.name if policy else "?"
        rows.append([str(gpu.index), known(gpu.policy), name, known(gpu.max_inst), known(gpu.free_weight), instances])
    return align(rows)
