"""The annotation `gpuagent.io/gpu-mem-limit`: other limits for containers that run.

``main=12`` or ``main=12,helper=4``, in units of `aliyun.com/gpu-mem` as in the containers' own limits. A pod with one
GPU container may have the number alone.
"""

import re
from collections.abc import Collection, Mapping

from gpuagent.domain.pods.annotations import LIMIT_ANNOTATION, Malformed, shown

_NUMBER = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def memory_limits(text: str, containers: Collection[str]) -> Mapping[str, int] | Malformed:
    """Name of each container in the annotation to its units.

    Args:
        text: of the annotation.
        containers: names of the pod's containers that have GPU memory.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and _NUMBER.fullmatch(parts[0]):
        if len(containers) != 1:
            names = ", ".join(sorted(containers))
            example = f"{min(containers, default='main')}={parts[0]}"
            return _malformed(f"has to say which container it is for ({names}): write {example}")
        (only,) = containers
        return {only: int(parts[0])}
    limits: dict[str, int] = {}
    for part in parts:
        name, _, number = part.partition("=")
        is_entry = _NAME.fullmatch(name) and _NUMBER.fullmatch(number)
        if not is_entry:
            return _malformed(f"has {shown(part)}, which is not a container and its units: write main=12")
        if name in limits:
            return _malformed(f"names container {name} twice: {shown(text)}")
        limits[name] = int(number)
    return limits


def limits_text(limits: Mapping[str, int]) -> str:
    """The same as text: ``helper=4,main=12``."""
    entries = [f"{name}={units}" for name, units in sorted(limits.items())]
    return ",".join(entries)


def _malformed(problem: str) -> Malformed:
    return Malformed(LIMIT_ANNOTATION, problem)
