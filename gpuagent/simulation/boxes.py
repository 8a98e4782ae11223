"""Boxes: machines with GPUs as data, for the simulated NVML. The known ones are the files in ``boxes/``."""

import hashlib
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from gpuagent.nvml.binding import MOST_LINKS
from gpuagent.simulation.box_links import BoxFabric, BoxLink, check_paths, link_up, path, pcie
from gpuagent.simulation.box_table import BUS_ID, BoxError, BoxTable
from gpuagent.system.printable import error_words

__all__ = ["Box", "BoxError", "BoxGpu", "load", "names", "parse", "uuid_of"]

FOLDER = Path(__file__).parent / "boxes"
MOST_GPUS = 16
DRIVER_VERSION = "580.95.05"
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

    Raises:
        BoxError: two GPUs share a value that must be unique.
    """

    name: str
    gpus: tuple[BoxGpu, ...]
    description: str = ""
    driver_version: str = DRIVER_VERSION
    missing: frozenset[str] = frozenset()
    disabled_links: int = 0

    def __post_init__(self) -> None:
        for what in ("uuid", "minor", "pci_bus_id"):
            values = [getattr(gpu, what) for gpu in self.gpus]
            twice = {value for value in values if values.count(value) > 1}
            if twice:
                raise BoxError(f"box {self.name}: more than one GPU has {what} {min(twice)}")
        if not 0 <= self.disabled_links <= MOST_LINKS - max((len(gpu.links) for gpu in self.gpus), default=0):
            raise BoxError(f"box {self.name}: disabled_links {self.disabled_links}: NVML counts {MOST_LINKS} at most")


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
        raise BoxError(f"{what}; known boxes: {', '.join(names())}; or give the path of a .toml file") from None
    except (OSError, UnicodeDecodeError) as err:
        raise BoxError(f"box file {path} cannot be read: {error_words(err)}") from err
    except BoxError as err:
        raise BoxError(f"{path}: {err}" if is_path else str(err)) from None


def parse(name: str, text: str) -> Box:
    """A box from TOML. Raises BoxError."""
    try:
        page = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise BoxError(f"box {name}: not TOML: {err}") from err
    except RecursionError as err:
        raise BoxError(f"box {name}: not TOML: it is nested too deeply") from err
    table = BoxTable(f"box {name}", page)
    groups = table.take("gpus", list, [])
    gpus: list[BoxGpu] = []
    for number, group in enumerate(groups, 1):
        gpus += _group(f"box {name}, [[gpus]] number {number}", group, name, len(gpus))
    if not 1 <= len(gpus) <= MOST_GPUS:
        raise BoxError(f"box {name}: has {len(gpus)} GPUs; a box has 1 to {MOST_GPUS}")
    check_paths(f"box {name}", [(gpu.numa_node, gpu.pcie_path) for gpu in gpus])
    wired = link_up(f"box {name}", table, [gpu.pci_bus_id for gpu in gpus])
    box = Box(
        name=name,
        gpus=tuple(replace(gpu, links=links, fabric=fabric) for gpu, (links, fabric) in zip(gpus, wired, strict=True)),
        description=table.take("description", str, ""),
        driver_version=table.take("driver_version", str, DRIVER_VERSION),
        missing=frozenset(table.items("missing", str, [])),
        disabled_links=table.take("disabled_links", int, 0),
    )
    table.end()
    return box


def uuid_of(name: str, index: int) -> str:
    """A UUID that is always the same for GPU `index` of box `name`; those of one box have the same beginning."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:28]}{index:04x}"


def _group(where: str, group: object, name: str, first: int) -> list[BoxGpu]:
    """GPUs of one kind. There is one for each bus id; every other list has the same length."""
    table = BoxTable(where, group)
    buses = table.items("pci_bus_ids", str)
    indices = list(range(first, first + len(buses)))
    minors = table.items("minors", int, indices)
    uuids = table.items("uuids", str, [uuid_of(name, index) for index in indices])
    numa = table.items("numa_nodes", int, [-1] * len(buses))
    paths = table.items("pcie_paths", str, [""] * len(buses))
    for key, values in (("minors", minors), ("uuids", uuids), ("numa_nodes", numa), ("pcie_paths", paths)):
        if len(values) != len(buses):
            raise BoxError(f"{where}: {key} has {len(values)} entries, pci_bus_ids {len(buses)}")
    table.check("pci_bus_ids", buses, BUS_ID)
    table.check("uuids", uuids, _UUID)
    memory, reserved = table.take("memory_mib", int), table.take("reserved_mib", int, 0)
    if not 0 <= reserved < memory:
        raise BoxError(f"{where}: memory_mib {memory} must be above reserved_mib {reserved}, and neither below 0")
    capability = re.fullmatch(r"(\d+)\.(\d+)", table.take("compute_capability", str))
    if capability is None:
        raise BoxError(f'{where}: compute_capability must be like "8.0"')
    lanes, nodes = pcie(table), [path(table, text) for text in paths]
    model, mig = table.take("model", str), table.take("mig", bool, None)
    xid_events = table.take("xid_events", bool, True)
    memory_reported = table.take("memory_reported", bool, True)
    table.end()
    return [
        BoxGpu(
            uuid=uuids[i],
            minor=minors[i],
            pci_bus_id=bus,
            model=model,
            memory_mib=memory,
            memory_reported=memory_reported,
            reserved_mib=reserved,
            compute_capability=(int(capability[1]), int(capability[2])),
            numa_node=numa[i] if numa[i] >= 0 else None,
            mig=mig,
            xid_events=xid_events,
            pcie=lanes,
            pcie_path=nodes[i],
        )
        for i, bus in enumerate(buses)
    ]
