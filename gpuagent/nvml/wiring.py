"""What one GPU says of its connections. A query that fails costs its own answer and is told, no more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpuagent.domain.wiring import End, Nvlink, Relation, Wiring
from gpuagent.nvml.binding import ABSENT, GPU_IS_LOST, INVALID_ARGUMENT, MOST_LINKS, Handle, Nvml
from gpuagent.nvml.errors import DRIVER_WIDE, CallError

T = TypeVar("T")
U = TypeVar("U")


def read_wiring(nvml: Nvml, gpu: Handle) -> Wiring:
    """Links, PCIe and fabric of one GPU; `related` adds its relations. Raises CallError for the driver's sake only."""
    asking = _Asking()
    links = [link for number in range(MOST_LINKS) if (link := _nvlink(nvml, gpu, number, asking))]
    pcie = asking.ask(lambda: nvml.pcie(gpu), None)
    fabric = asking.ask(lambda: nvml.fabric(gpu), None)
    return Wiring(nvlinks=tuple(links), pcie=pcie, fabric=fabric, problems=asking.problems)


def related(nvml: Nvml, index: int, wiring: Wiring, bus_ids: Mapping[int, str]) -> Wiring:
    """`wiring` of the GPU at `index`, with how near the GPUs of `bus_ids` are, by index.

    Only GPUs that have just answered belong in there: a call about one that hangs does not return to anybody.
    Raises CallError for the driver's sake only.
    """
    asking = _Asking()
    relations = {}
    for other, bus_id in bus_ids.items():
        question = partial(_relation, nvml, index, other)
        relation = asking.ask(question, None, about="GPU", number=other, ordinary=ABSENT | {GPU_IS_LOST})
        if relation is not None:
            relations[bus_id] = relation
    return replace(wiring, relations=relations, problems=(*wiring.problems, *asking.problems))


def _relation(nvml: Nvml, index: int, other: int) -> Relation | None:
    return None if other == index else nvml.relation(nvml.handle(index), nvml.handle(other))


def _nvlink(nvml: Nvml, gpu: Handle, link: int, asking: "_Asking") -> Nvlink | None:
    """One link; None if it is down, or if the GPU does not have so many."""

    def ask(question: Callable[[Handle, int], T], otherwise: U, ordinary: frozenset[int] = ABSENT) -> T | U:
        return asking.ask(lambda: question(gpu, link), otherwise, about="NVLink", number=link, ordinary=ordinary)

    if not ask(nvml.link_is_up, otherwise=False, ordinary=ABSENT | {INVALID_ARGUMENT}):
        return None
    bus_id, pci_id = ask(nvml.link_remote, ("", 0))
    return Nvlink(
        version=ask(nvml.link_version, ""),
        end=ask(nvml.link_end, End.UNKNOWN),
        remote_bus_id=bus_id,
        remote_pci_id=pci_id,
    )


class _Asking:
    """Asks, and keeps what failed: once for all links or GPUs about which the same call failed the same way."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], list[int]] = {}

    def ask(
        self,
        question: Callable[[], T],
        otherwise: U,
        *,
        about: str = "",
        number: int = 0,
        ordinary: frozenset[int] = ABSENT,
    ) -> T | U:
        """The answer; `otherwise` if NVML refuses, which is a problem unless its code is an `ordinary` one."""
        try:
            return question()
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            if err.code not in ordinary:
                self._failed.setdefault((str(err), about), []).append(number)
            return otherwise

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(
            f"{error} ({about} {_runs(numbers)})" if about else error
            for (error, about), numbers in self._failed.items()
        )


def _runs(numbers: Sequence[int]) -> str:
    """Numbers in ascending order as ``0-3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
