"""Why the driver does not limit memory here, in words for people. Pure: facts in, a sentence out.

Only a call that failed decides that something does not work. The facts say why it failed.
"""

from dataclasses import dataclass

from gpuagent.nvml.binding.limit_calls import LimitRefusal, refusal
from gpuagent.nvml.driver_errors import CallError, gpu_reason

_ELSE = "or isolate with MPS (--isolation mps)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What is true of the node and of this process.

    Attributes:
        cgroup_root: where cgroups are mounted.
        cgroup_v2: it is the root of a cgroup v2 hierarchy.
        read_only: it is mounted read-only here.
        user_namespace: this process is in a user namespace of its own.
        sys_admin: this process has CAP_SYS_ADMIN.
        switched_off: the driver's module was loaded with ``RmMemacctMode=0``.
    """

    cgroup_root: str
    cgroup_v2: bool = True
    read_only: bool = False
    user_namespace: bool = False
    sys_admin: bool = True
    switched_off: bool = False


def why_refused(err: CallError, facts: HostFacts, *, driver: str, mig: bool) -> str:
    """Why a call about memory limits failed, and what to do.

    Args:
        err: the failed call.
        facts: of the node.
        driver: version of the driver; empty if it is not known.
        mig: whether the GPU is in MIG mode.
    """
    reason = refusal(err)
    if reason is LimitRefusal.FUNCTION_NOT_FOUND:
        return f"NVIDIA driver {driver or '(of an unknown version)'} has no memory limits: install driver 615, {_ELSE}"
    if mig:
        return (
            "the GPU is in MIG mode, in which the driver limits no memory: switch MIG off, or let it serve whole GPUs"
        )
    if not facts.cgroup_v2:
        return (
            f"the node has no cgroup v2 at {facts.cgroup_root}, which the driver's memory limits need: boot it with "
            f"systemd.unified_cgroup_hierarchy=1, {_ELSE}"
        )
    return _why_on_cgroup_v2(reason, err, facts)


def _why_on_cgroup_v2(reason: LimitRefusal, err: CallError, facts: HostFacts) -> str:
    if reason is LimitRefusal.NOT_SUPPORTED:
        return _why_not_supported(facts)
    if reason is LimitRefusal.NO_PERMISSION:
        return _why_not_permitted(facts)
    if facts.read_only:
        return _read_only(facts)
    if reason is LimitRefusal.NOT_FOUND:
        return (
            "the kernel's controller dmem is not enabled for the cgroups of pods: look whether dmem stands in "
            f"cgroup.subtree_control of {facts.cgroup_root} and of each cgroup from there to kubepods ({err})"
        )
    return f"the driver does not limit memory: {gpu_reason(err)}"


def why_ignored(wanted: int, read: int | None) -> str:
    """Why a limit that was set and reads otherwise does not count."""
    is_now = "no limit" if read is None else f"{read} bytes"
    return f"the driver reported success for a limit of {wanted} bytes, and then {is_now}: do not trust its limits"


def cannot_make_probe(path: str, words: str, facts: HostFacts) -> str:
    """Why the helper has no cgroup of its own to try limits on."""
    if facts.read_only:
        return _read_only(facts)
    return f"cgroup {path}, on which limits are tried, cannot be made ({words}): run the helper as root, {_ELSE}"


def _why_not_supported(facts: HostFacts) -> str:
    if facts.switched_off:
        return (
            "the driver's memory limits are switched off by its module parameter RmMemacctMode=0: remove it from "
            f"NVreg_RegistryDwords in /etc/modprobe.d and load the driver again, {_ELSE}"
        )
    return f"the driver does not support memory limits on this node: see NVRM lines in `dmesg`, {_ELSE}"


def _why_not_permitted(facts: HostFacts) -> str:
    if facts.user_namespace:
        return (
            "the helper runs in a user namespace, in which the driver permits no limits: set hostUsers: true in its pod"
        )
    if not facts.sys_admin:
        return "the helper lacks the capability CAP_SYS_ADMIN: add SYS_ADMIN to its container's securityContext"
    if facts.read_only:
        return _read_only(facts)
    return "the driver permits the helper no limits: run its container as user 0, and privileged if that is not enough"


def _read_only(facts: HostFacts) -> str:
    return f"{facts.cgroup_root} is mounted read-only in the helper's container: mount the node's there, writable"
