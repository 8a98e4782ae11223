"""Alibaba's cGPU module, read from `/proc/cgpu_km`: version, policies, instances. Layouts of 0.8 to 1.5.

Comments name the source of each fact about cGPU. ACK: the pages on GPU sharing and their FAQ. EGS: the pages on the
cGPU service. 0.8.8: the public source of that version. This code has not run against the real module.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

CGPU_PROC = Path("/proc/cgpu_km")

MAX_INSTANCES = 25
"""Most instances a GPU may be set to, of the later versions (EGS)."""
MAX_INSTANCES_08 = 16
"""The same up to 0.8 (0.8.8)."""
MAX_PODS = 20
"""Most pods on one GPU; the next one fails to start (ACK)."""
MAX_WEIGHT = 999
"""A weight is written with at most 3 digits (0.8.8); no source limits the sum of the weights of one GPU."""


_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-+. ].*)?", re.ASCII)
_FREE = re.compile(r"Free:\s*(\d{1,19})", re.ASCII)
_PROCESS = re.compile(r"PID:\s*(\d{1,10})\s+Mem:\s*(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version of cGPU: three numbers."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """``1.5.10``, also with a leading ``v`` or an ending after the third number; None for anything else."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            return None
        major, minor, patch = match.groups()
        return cls(int(major), int(minor), int(patch))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


CORE_MEM_SINCE = Version(1, 0, 5)
"""First version that shares compute as mode core_mem does (ACK)."""
POLICY_SINCE = Version(1, 0, 6)
"""First version whose policy may be changed (ACK)."""


@dataclass(frozen=True, slots=True)
class CgpuPolicy:
    """How the instances on one GPU share its time."""

    number: int
    name: str
    rule: str


# ACK, EGS
POLICIES = {
    policy.number: policy
    for policy in (
        CgpuPolicy(0, "fair-share", "each instance a fixed slice, 1/max_inst"),
        CgpuPolicy(1, "preemptive", "1/(instances now)"),
        CgpuPolicy(
            2, "weight-based-preemptive", "like preemptive, by weight; chosen by itself when a weight is above 1"
        ),
        CgpuPolicy(3, "fixed", "a hard share in percent"),
        CgpuPolicy(4, "soft", "weak isolation"),
        CgpuPolicy(5, "native", "the driver's own time slicing"),
    )
}
DEFAULT_POLICY = 5


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Versions from `first` to `last`, both included, and why none of them may be used."""

    first: Version
    last: Version
    reason: str


KNOWN_BAD = (
    # EGS and the ACK FAQ agree up to here; the FAQ doubts 1.5.8 and 1.5.9 too, see `caveats`.
    KnownBad(Version(0, 0, 0), Version(1, 5, 7), "it can lock up or panic the kernel"),
)
GOOD_SINCE = Version(1, 5, 10)
"""The oldest version that the ACK FAQ recommends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One container's part of one GPU; a value that could not be read is None.

    Attributes:
        name: directory name, the first 12 characters of the container's id.
        number: the instance's number (file `id`).
        pids: of the processes that hold memory, as the kernel counts them.
    """

    name: str
    number: int | None = None
    memsize_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    weight: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CgpuGpu:
    """One GPU as cGPU sees it; `index` is the number of its directory."""

    index: int
    policy: int | None = None
    max_inst: int | None = None
    free_weight: int | None = None
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CgpuState:
    """The module at one moment.

    Attributes:
        version: None where it could not be read or is not a version; `version_text` is the raw text.
        unread: one text for people for each value that could not be read or parsed.
    """

    version: Version | None = None
    version_text: str = ""
    major: int | None = None
    default_memsize_bytes: int | None = None
    prio_ratio: int | None = None
    gpus: tuple[CgpuGpu, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of an instance, and the processes that hold it."""

    used_bytes: int | None = None
    free_bytes: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(slots=True)
class _Reader:
    unread: list[str] = field(default_factory=list)

    def text(self, path: Path, *, optional: bool = False) -> str | None:
        try:
            return path.read_bytes()[:65536].decode("ascii", "replace").strip()
        except FileNotFoundError:
            if not optional:
                self.unread.append(f"{path}: missing")
        except OSError as err:
            self.unread.append(f"{path}: {err.strerror}")
        return None

    def number(self, path: Path, *, optional: bool = False) -> int | None:
        text = self.text(path, optional=optional)
        if text is None:
            return None
        if re.fullmatch(r"\d{1,19}", text, re.ASCII):
            return int(text)
        self.unread.append(f"{path}: {text[:40]!r} is not a number")
        return None

    def folders(self, path: Path, pattern: str) -> list[Path]:
        name = re.compile(pattern, re.ASCII)
        try:
            entries = [entry for entry in path.iterdir() if name.fullmatch(entry.name)]
            return sorted(entry for entry in entries if entry.is_dir())
        except OSError as err:
            self.unread.append(f"{path}: {err.strerror}")
            return []

    def instances(self, path: Path) -> tuple[Instance, ...]:
        instances = []
        # A container's id is hexadecimal; later versions may have other folders here.
        for folder in self.folders(path, r"[0-9a-f]{12}"):
            before = len(self.unread)
            instance = self.instance(folder)
            if folder.is_dir():
                instances.append(instance)
            else:  # its container ended while it was read
                del self.unread[before:]
        return tuple(instances)

    def instance(self, path: Path) -> Instance:
        memory = self.memory(path / "meminfo")
        return Instance(
            name=path.name,
            number=self.number(path / "id"),
            memsize_bytes=self.number(path / "memsize"),
            used_bytes=memory.used_bytes,
            free_bytes=memory.free_bytes,
            weight=self.number(path / "weight", optional=True),
            pids=memory.pids,
        )

    def memory(self, path: Path) -> _Memory:
        text = self.text(path)
        if text is None:
            return _Memory()
        free = None
        used = None
        pids = []
        for line in filter(None, map(str.strip, text.splitlines())):
            of_all = _FREE.fullmatch(line)
            of_process = _PROCESS.fullmatch(line)
            if of_all:
                free = int(of_all[1])
            elif of_process:
                pids.append(int(of_process[1]))
                used = (used or 0) + int(of_process[2])
            else:
                self.unread.append(f"{path}: line {line[:60]!r} is not understood")
        if used is None and free is not None:
            # The file has a line only for each process that holds memory.
            used = 0
        return _Memory(used, free, tuple(pids))

    def gpu(self, path: Path) -> CgpuGpu:
        return CgpuGpu(
            index=int(path.name),
            policy=self.number(path / "policy"),
            max_inst=self.number(path / "max_inst"),
            free_weight=self.number(path / "free_weight", optional=True),
            instances=self.instances(path),
        )


def read(proc: Path = CGPU_PROC) -> CgpuState | None:
    """The module's state; None where it is not loaded. Raises nothing: an unreadable value is None, and in `unread`."""
    try:
        if not proc.is_dir():
            return None
    except OSError as err:
        return CgpuState(unread=(f"{proc}: {err.strerror}",))
    reader = _Reader()
    text = reader.text(proc / "version") or ""
    version = Version.parse(text)
    if text and version is None:
        reader.unread.append(f"{proc / 'version'}: {text[:40]!r} is not a version")
    gpus = [reader.gpu(folder) for folder in reader.folders(proc, r"\d{1,3}")]
    # Folders are sorted by their names, of which 10 comes before 2.
    gpus.sort(key=lambda gpu: gpu.index)
    return CgpuState(
        version=version,
        version_text=text,
        major=reader.number(proc / "major", optional=True),
        default_memsize_bytes=reader.number(proc / "default_memsize", optional=True),
        prio_ratio=reader.number(proc / "prio_ratio", optional=True),
        gpus=tuple(gpus),
        unread=tuple(reader.unread),
    )


def known_bad(version: Version) -> str | None:
    """Why this version must not be used, and what to do; None if no source says so."""
    for bad in KNOWN_BAD:
        if bad.first <= version <= bad.last:
            return f"cGPU {version} is known to be bad: {bad.reason}; upgrade the node to {GOOD_SINCE} or later"
    return None


def caveats(version: Version) -> tuple[str, ...]:
    """Warnings of the sources about a version that they still permit, one sentence each."""
    if Version(1, 5, 7) < version < GOOD_SINCE:
        sources = f"the cGPU service's pages call it safe, the ACK FAQ asks for {GOOD_SINCE} because of kernel lock-ups"
        return (f"cGPU {version}: {sources}; prefer the later one.",)
    return ()


def problem(state: CgpuState | None) -> str | None:
    """Why the layer must not be used, and what to do; None if it may be used."""
    if state is None:
        return f"cGPU is not loaded (no {CGPU_PROC}): run `gpu-isolation-installer install`, or load the module"
    if state.version is None:
        what = f"says {state.version_text[:40]!r}" if state.version_text else "cannot be read"
        return f"cGPU's version is not known ({CGPU_PROC / 'version'} {what}): install it again or reboot the node"
    bad = known_bad(state.version)
    if bad:
        return bad
    if not state.gpus:
        return (
            f"cGPU {state.version} is loaded but has no GPU ({CGPU_PROC} has no numbered folder): "
            "run nvidia-smi, then load the module again"
        )
    return None
