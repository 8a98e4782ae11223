"""cGPU's policy, max_inst and weights: shown, and set where the documents allow it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpuagent.host import cgpu_proc
from gpuagent.host.cgpu_proc import CgpuGpu, CgpuState, Instance, Version
from gpuisolation import layer
from gpuisolation.change.steps import set_number
from gpuisolation.errors import InstallerError, RefusedError, UsageError
from gpuisolation.host.files import Files
from gpuisolation.host.root import Host
from gpuisolation.layer import RECORD
from gpuisolation.show import align, known

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSettings:
    """The settings to change; None and empty leave a value as it is.

    Attributes:
        gpus: indices; empty for every GPU.
        policy: number of a policy in `cgpu_proc.POLICIES`.
        max_inst: most containers on a GPU.
        weights: instance (its 12 characters, or the container's whole id) to weight.
    """

    gpus: Sequence[int] = ()
    policy: int | None = None
    max_inst: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.policy is not None or self.max_inst is not None or bool(self.weights)


@dataclass(frozen=True, slots=True)
class Write:
    """A number to write into the module.

    Attributes:
        name: of the file, below /proc/cgpu_km.
        former: the value that is there; None if it could not be read.
    """

    name: str
    value: int
    former: int | None

    @property
    def path(self) -> str:
        """Of the file, as the host names it."""
        return f"{cgpu_proc.CGPU_PROC}/{self.name}"

    def __str__(self) -> str:
        return f"{self.path}: {known(self.former)} -> {self.value}"


def parse(text: str) -> int:
    """A policy by number or name; the text of a ValueError lists the policies."""
    for policy in cgpu_proc.POLICIES.values():
        if text in {str(policy.number), policy.name}:
            return policy.number
    names = [f"{policy.number} ({policy.name})" for policy in cgpu_proc.POLICIES.values()]
    raise ValueError(f"{text!r} is none of the policies: {', '.join(names)}")


def writes(state: CgpuState, new: NewSettings) -> tuple[Write, ...]:
    """The writes that make the new settings those of the module. Pure.

    Raises:
        UsageError: the settings name a GPU, an instance or a number that does not exist.
        RefusedError: the documents forbid the change in the node's present state.
    """
    problem = cgpu_proc.problem(state)
    if problem:
        raise RefusedError(problem)
    assert state.version is not None
    gpus = _chosen(state.gpus, new.gpus)
    planned: list[Write] = []
    if new.policy is not None:
        planned += _policy_writes(state.version, gpus, new.policy)
    if new.max_inst is not None:
        planned += _max_inst_writes(state.version, gpus, new.max_inst)
    for name, weight in new.weights.items():
        planned += _weight_writes(gpus, name, weight)
    return tuple(planned)


def _chosen(gpus: Sequence[CgpuGpu], indices: Sequence[int]) -> list[CgpuGpu]:
    """The GPUs with these indices; every GPU if no index is given."""
    by_index = {gpu.index: gpu for gpu in gpus}
    unknown = [str(index) for index in indices if index not in by_index]
    if unknown:
        existing = ", ".join(map(str, by_index))
        raise UsageError(f"--gpu {', '.join(unknown)}: cGPU has GPUs {existing}")
    return [by_index[index] for index in indices or by_index]


def _policy_writes(version: Version, gpus: Sequence[CgpuGpu], policy: int) -> list[Write]:
    if version < cgpu_proc.POLICY_SINCE:
        raise RefusedError(f"cGPU {version} keeps its policy; {cgpu_proc.POLICY_SINCE} or later can change it")
    changed = [gpu for gpu in gpus if gpu.policy != policy]
    _require_idle(changed, "the policy")
    return [Write(f"{gpu.index}/policy", policy, gpu.policy) for gpu in changed]


def _max_inst_writes(version: Version, gpus: Sequence[CgpuGpu], max_inst: int) -> list[Write]:
    is_old = version < Version(1, 0, 0)
    most = cgpu_proc.MAX_INSTANCES_08 if is_old else cgpu_proc.MAX_INSTANCES
    if not 1 <= max_inst <= most:
        raise UsageError(f"--max-inst {max_inst}: cGPU {version} takes 1 to {most}")
    changed = [gpu for gpu in gpus if gpu.max_inst != max_inst]
    _require_idle(changed, "max_inst")
    return [Write(f"{gpu.index}/max_inst", max_inst, gpu.max_inst) for gpu in changed]


def _require_idle(gpus: Sequence[CgpuGpu], setting: str) -> None:
    """Refuse a setting that must not change while a container uses one of the GPUs."""
    users = []
    for gpu in gpus:
        users += [f"  GPU {gpu.index}: container {instance.name}" for instance in gpu.instances]
    if users:
        lines = "\n".join(users)
        raise RefusedError(f"{setting} must not change while containers use the GPU:\n{lines}\nDrain the node first")


def _weight_writes(gpus: Sequence[CgpuGpu], container: str, weight: int) -> list[Write]:
    """The writes for one container, which has an instance on each GPU that it uses."""
    if not 1 <= weight <= cgpu_proc.MAX_WEIGHT:
        raise UsageError(f"--weight {container}={weight}: wanted 1 to {cgpu_proc.MAX_WEIGHT}")
    # An instance is named by the first 12 characters of its container's id. A shorter name could mean several.
    name = container[:12] if len(container) >= 12 else None
    planned: list[Write] = []
    existing: list[str] = []
    for gpu in gpus:
        for instance in gpu.instances:
            existing.append(instance.name)
            if instance.name == name:
                _require_free_weight(gpu, instance, weight)
                planned.append(Write(f"{gpu.index}/{instance.name}/weight", weight, instance.weight))
    if not planned:
        raise UsageError(
            f"--weight {container}: no such instance (12 characters of a container's id); "
            f"there are: {', '.join(existing) or 'none'}"
        )
    return planned


def _require_free_weight(gpu: CgpuGpu, instance: Instance, weight: int) -> None:
    """Refuse a weight for which the GPU has not enough left."""
    added = weight - (instance.weight or 0)
    if gpu.free_weight is not None and added > gpu.free_weight:
        raise RefusedError(
            f"GPU {gpu.index} has {gpu.free_weight} of its weight left, {instance.name} would need {added} more: "
            "lower another instance's weight first"
        )


def apply(host: Host, files: Files, planned: Sequence[Write]) -> None:
    """Write all values. If the module refuses one, restore those that were written.

    Raises:
        InstallerError: the module does not take one of the values.
    """
    done: list[Write] = []
    for write in planned:
        log.info("Set module value", extra={"file": write.path, "value": write.value, "before": write.former})
        try:
            set_number(host, files, write.name, write.value)
        except InstallerError:
            _restore(host, files, done)
            raise
        done.append(write)


def _restore(host: Host, files: Files, done: Sequence[Write]) -> None:
    """Write the former values again, where they are known, the last write first."""
    for write in reversed(done):
        if write.former is not None:
            log.warning("Restored module value", extra={"file": write.path, "value": write.former})
            set_number(host, files, write.name, write.former)


def change(host: Host, files: Files, new: NewSettings, *, dry_run: bool) -> str:
    """Change the settings and record them; returns a report for people.

    Raises:
        InstallerError: as `writes` and `apply` do; cGPU is not loaded.
    """
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    if state is None:
        raise InstallerError(cgpu_proc.problem(state) or "")
    planned = writes(state, new)
    lines = [str(write) for write in planned]
    if dry_run:
        return "\n".join(["would write:", *(lines or ["nothing"])])
    apply(host, files, planned)
    remember(host, files, new)
    if new.policy is not None:
        lines.append("all shared nodes of a cluster must have the same policy")
    return "\n".join(lines or ["nothing to change"])


def page(state: CgpuState) -> list[dict[str, Any]]:
    """The GPUs as JSON has them."""
    return [asdict(gpu) for gpu in state.gpus]


def remember(host: Host, files: Files, new: NewSettings) -> None:
    """Store the settings in the record, so that they apply again when the module is reloaded.

    Weights are not stored: they belong to containers, which are gone by then.
    """
    stored: dict[str, int] = {}
    if new.policy is not None:
        stored["policy"] = new.policy
    if new.max_inst is not None:
        stored["max_inst"] = new.max_inst
    record = layer.recorded(host)
    state = cgpu_proc.read(host.at(cgpu_proc.CGPU_PROC))
    if record is None or state is None or not stored:
        return
    settings = dict(record.settings)
    for index in new.gpus or [gpu.index for gpu in state.gpus]:
        key = str(index)
        settings[key] = settings.get(key, {}) | stored
    files.write(RECORD, replace(record, settings=settings).to_json())


def table(state: CgpuState) -> str:
    """The policies in force, GPU by GPU."""
    header = ["GPU", "POLICY", "NAME", "MAX_INST", "FREE_WEIGHT", "INSTANCES"]
    return align([header, *map(_cells, state.gpus)])


def _cells(gpu: CgpuGpu) -> list[str]:
    policy = None if gpu.policy is None else cgpu_proc.POLICIES.get(gpu.policy)
    instances = [f"{instance.name} (weight {known(instance.weight)})" for instance in gpu.instances]
    return [
        str(gpu.index),
        known(gpu.policy),
        policy.name if policy else "?",
        known(gpu.max_inst),
        known(gpu.free_weight),
        ", ".join(instances) or "-",
    ]
