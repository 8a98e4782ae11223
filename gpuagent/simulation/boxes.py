"""Boxes: machines with GPUs as data, for the simulated NVML. The known ones are the files in ``boxes/``."""

import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.nvml.binding.wiring_calls import MOST_LINKS
from gpuagent.simulation.box_links import BoxFabric, BoxLink, check_paths, link_up, path, pcie
from gpuagent.simulation.box_table import BUS_ID, BoxError, BoxTable
from gpuagent.simulation.memory_accounting import BackendName
from gpuagent.system.printable import error_words

__all__ = ["Box", "BoxError", "BoxGpu", "load", "names", "parse", "uuid_of"]

FOLDER = Path(__file__).parent / "boxes"
MOST_GPUS = 16
DRIVER_VERSION = "580.95.05"
MEMORY_LIMITS_SINCE = 615
"""First version of the driver that limits the memory of cgroups."""
_NO_NUMA_NODE = -1
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxGpu:
    """One simulated GPU. Sizes in MiB as NVML reports them; `mig` is None where the GPU cannot do MIG.

    `memory_reported` is false where GPU and CPU share their memory, so that NVML has no size to report.
    `pcie` is generation and lanes; `pcie_path` leads from its NUMA node down to it. The driver does not report values
    that are None or empty here.
    """

    uuid: str
    minor: int
    pci_bus_id: str
    model: str
    memory_mib: int
    reserved_mib: int = 0
    compute_capability: tuple[int, int] = (8, 0)
    numa_node: int | None = None
    mig: bool | None = None
    xid_events: bool = True
    memory_reported: bool = True
    pcie: tuple[int, int] | None = None
    pcie_path: tuple[str, ...] = ()
    links: tuple[BoxLink, ...] = ()
    fabric: BoxFabric | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A simulated machine.

    Attributes:
        missing: C functions that its driver is too old to have.
        disabled_links: how many further NVLinks, which a GPU does not have, its driver reports as disabled.
        memory_limits: how its driver limits the memory of cgroups, if that is not older than 615.

    Raises:
        BoxError: two GPUs share a value that must be unique.
    """

    name: str
    gpus: tuple[BoxGpu, ...]
    description: str = ""
    driver_version: str = DRIVER_VERSION
    missing: frozenset[str] = frozenset()
    disabled_links: int = 0
    memory_limits: BackendName = BackendName.MISC

    @property
    def has_memory_limits(self) -> bool:
        """Whether its driver knows memory limits, though they may be switched off."""
        major, _, _ = self.driver_version.partition(".")
        return int(major) >= MEMORY_LIMITS_SINCE

    def __post_init__(self) -> None:
        for name in ("uuid", "minor", "pci_bus_id"):
            self._check_unique(name)
        most_links = max((len(gpu.links) for gpu in self.gpus), default=0)
        listed = most_links + self.disabled_links
        if self.disabled_links < 0 or listed > MOST_LINKS:
            raise BoxError(f"box {self.name}: disabled_links {self.disabled_links}: NVML counts {MOST_LINKS} at most")

    def _check_unique(self, name: str) -> None:
        values = [getattr(gpu, name) for gpu in self.gpus]
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            raise BoxError(f"box {self.name}: more than one GPU has {name} {min(twice)}")


def names() -> tuple[str, ...]:
    """The known boxes."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name_or_path: str | Path) -> Box:
    """The box of that name, or of that file (anything with a slash or ending in ``.toml``).

    Raises:
        BoxError: there is no such box (the text lists the known ones), or its file is invalid (the text says why).
    """
    text = str(name_or_path)
    is_path = "/" in text or text.endswith(".toml")
    path = Path(text) if is_path else FOLDER / f"{text}.toml"
    try:
        return parse(path.stem, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = f"no box file {text}" if is_path else f"unknown box {text!r}"
        known = ", ".join(names())
        raise BoxError(f"{what}; known boxes: {known}; or give the path of a .toml file") from None
    except (OSError, UnicodeDecodeError) as err:
        raise BoxError(f"box file {path} cannot be read: {error_words(err)}") from err
    except BoxError as err:
        raise BoxError(f"{path}: {err}" if is_path else str(err)) from None


def parse(name: str, text: str) -> Box:
    """A box from TOML. Raises BoxError."""
    where = f"box {name}"
    try:
        page = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise BoxError(f"{where}: not TOML: {err}") from err
    except RecursionError as err:
        raise BoxError(f"{where}: not TOML: it is nested too deeply") from err
    table = BoxTable(where, page)
    gpus: list[BoxGpu] = []
    for number, group in enumerate(table.take("gpus", list, []), 1):
        first = len(gpus)
        gpus += _group(f"{where}, [[gpus]] number {number}", group, name, first)
    count = len(gpus)
    if not 1 <= count <= MOST_GPUS:
        raise BoxError(f"{where}: has {count} GPUs; a box has 1 to {MOST_GPUS}")
    check_paths(where, [(gpu.numa_node, gpu.pcie_path) for gpu in gpus])
    box = Box(
        name=name,
        gpus=tuple(_linked(where, table, gpus)),
        description=table.take("description", str, ""),
        driver_version=table.take("driver_version", str, DRIVER_VERSION),
        missing=frozenset(table.items("missing", str, [])),
        disabled_links=table.take("disabled_links", int, 0),
        memory_limits=_backend(table),
    )
    table.end()
    return box


def _backend(table: BoxTable) -> BackendName:
    name = table.take("memory_limits", str, BackendName.MISC.value)
    try:
        return BackendName(name)
    except ValueError:
        known = ", ".join(BackendName)
        raise BoxError(f"{table.where}: memory_limits {name!r} is not one of {known}") from None


def _linked(where: str, table: BoxTable, gpus: Sequence[BoxGpu]) -> list[BoxGpu]:
    """The GPUs with their links, which lead to each other's addresses."""
    wired = link_up(where, table, [gpu.pci_bus_id for gpu in gpus])
    linked = []
    for gpu, (links, fabric) in zip(gpus, wired, strict=True):
        linked.append(replace(gpu, links=links, fabric=fabric))
    return linked


def uuid_of(name: str, index: int) -> str:
    """A UUID that is always the same for GPU `index` of box `name`; those of one box have the same beginning."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    parts = [
        digest[:8],
        digest[8:12],
        digest[12:16],
        digest[16:20],
        f"{digest[20:28]}{index:04x}",
    ]
    return f"GPU-{'-'.join(parts)}"


def _group(where: str, group: object, name: str, first: int) -> list[BoxGpu]:
    """GPUs of one kind. There is one for each bus id; every other list has the same length."""
    table = BoxTable(where, group)
    bus_ids = table.items("pci_bus_ids", str)
    count = len(bus_ids)
    indexes = range(first, first + count)
    lists = {
        "minors": table.items("minors", int, list(indexes)),
        "uuids": table.items("uuids", str, [uuid_of(name, index) for index in indexes]),
        # TOML has no null, so a number stands for no node.
        "numa_nodes": table.items("numa_nodes", int, [_NO_NUMA_NODE] * count),
        "pcie_paths": table.items("pcie_paths", str, [""] * count),
    }
    for key, values in lists.items():
        if len(values) != count:
            raise BoxError(f"{where}: {key} has {len(values)} entries, pci_bus_ids {count}")
    table.check("pci_bus_ids", bus_ids, BUS_ID)
    table.check("uuids", lists["uuids"], _UUID)
    memory_mib = table.take("memory_mib", int)
    reserved_mib = table.take("reserved_mib", int, 0)
    if not 0 <= reserved_mib < memory_mib:
        raise BoxError(
            f"{where}: memory_mib {memory_mib} must be above reserved_mib {reserved_mib}, and neither below 0"
        )
    alike = {
        "model": table.take("model", str),
        "memory_mib": memory_mib,
        "memory_reported": table.take("memory_reported", bool, True),
        "reserved_mib": reserved_mib,
        "compute_capability": _compute_capability(table),
        "mig": table.take("mig", bool, None),
        "xid_events": table.take("xid_events", bool, True),
        "pcie": pcie(table),
    }
    gpus = []
    for number, bus_id in enumerate(bus_ids):
        numa_node = lists["numa_nodes"][number]
        gpu = BoxGpu(
            uuid=lists["uuids"][number],
            minor=lists["minors"][number],
            pci_bus_id=bus_id,
            numa_node=numa_node if numa_node >= 0 else None,
            pcie_path=path(table, lists["pcie_paths"][number]),
            **alike,
        )
        gpus.append(gpu)
    table.end()
    return gpus


def _compute_capability(table: BoxTable) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d+)", table.take("compute_capability", str))
    if match is None:
        raise BoxError(f'{table.where}: compute_capability must be like "8.0"')
    return int(match[1]), int(match[2])
