"""Reads the facts that explain a refusal of the driver."""

import os
import re
from pathlib import Path

from gpuagent.limits_helper.diagnosis import HostFacts

PROC = Path("/proc")
_CAP_SYS_ADMIN = 21
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)
_SWITCHED_OFF = re.compile(r"RmMemacctMode\s*=\s*0\b")
_ALL_USERS = ["0", "0", "4294967295"]
"""A map of user ids that changes none: that of the first user namespace."""


def read(cgroup_root: Path, proc: Path = PROC) -> HostFacts:
    """The facts now. What cannot be read counts as usual."""
    uid_map = _text(proc / "self/uid_map").split()
    return HostFacts(
        cgroup_root=str(cgroup_root),
        cgroup_v2=(cgroup_root / "cgroup.controllers").exists(),
        read_only=_is_read_only(cgroup_root),
        user_namespace=bool(uid_map) and uid_map != _ALL_USERS,
        sys_admin=_has_sys_admin(_text(proc / "self/status")),
        switched_off=bool(_SWITCHED_OFF.search(_text(proc / "driver/nvidia/params"))),
    )


def _has_sys_admin(status: str) -> bool:
    match = _CAPABILITIES.search(status)
    return match is None or bool(int(match[1], 16) & 1 << _CAP_SYS_ADMIN)


def _is_read_only(directory: Path) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
