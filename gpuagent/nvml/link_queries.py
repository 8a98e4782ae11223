"""Queries of one GPU's links. A query that fails loses only its own answer, and its failure is reported."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gpuagent.domain.gpus.link_reports import End, Nvlink, Relation, Wiring
from gpuagent.nvml.binding.calls import ABSENT, GPU_IS_LOST, INVALID_ARGUMENT, Handle
from gpuagent.nvml.binding.nvml import Nvml
from gpuagent.nvml.binding.wiring_calls import MOST_LINKS
from gpuagent.nvml.driver_errors import DRIVER_WIDE, CallError

T = TypeVar("T")
U = TypeVar("U")


def read_links(nvml: Nvml, index: int) -> Iterator[Wiring]:
    """Yield PCIe, NVLinks and fabric of one GPU as known after each answer.

    Raises CallError only for errors of the driver as a whole.
    """
    # Each answer is yielded, because a later call may hang.
    calls = _LinkCalls()
    gpu = calls.ask(lambda: nvml.handle(index), None)
    wiring = Wiring(problems=calls.problems)
    yield wiring
    if gpu is None:
        return
    pcie = calls.ask(lambda: nvml.pcie(gpu), None)
    wiring = replace(wiring, pcie=pcie, problems=calls.problems)
    yield wiring
    down: list[int] = []
    for number in range(MOST_LINKS):
        is_up = _is_up(nvml, gpu, number, calls)
        if is_up:
            link = _nvlink(nvml, gpu, number, calls)
            wiring = replace(wiring, nvlinks=(*wiring.nvlinks, link))
        elif is_up is False:
            down.append(number)
        wiring = replace(wiring, problems=calls.problems)
        yield wiring
    if down:
        inactive = _inactive(nvml, gpu, down, calls)
        wiring = replace(wiring, inactive=inactive, problems=calls.problems)
        yield wiring
    fabric = calls.ask(lambda: nvml.fabric(gpu), None)
    yield replace(wiring, fabric=fabric, problems=calls.problems)


def _inactive(nvml: Nvml, gpu: Handle, down: Sequence[int], calls: "_LinkCalls") -> int:
    """How many of the links that are down the GPU has: some drivers report links as down that it does not have."""
    count = calls.ask(lambda: nvml.link_count(gpu), None)
    if count is None:
        return len(down)
    return sum(number < count for number in down)


def read_relations(nvml: Nvml, index: int, bus_ids: Mapping[int, str]) -> Iterator[Wiring]:
    """Yield, after each answer, the known PCIe paths from the GPU at `index` to the GPUs of `bus_ids`, by index.

    `bus_ids` must hold only GPUs that have just answered: a call about a GPU that hangs does not return.
    If a GPU hangs nevertheless, the paths between all others are still read. Each GPU starts with the indexes after its
    own, so that of every two GPUs one reaches the other before it reaches the one that hangs.

    Raises CallError only for errors of the driver as a whole.
    """
    calls = _LinkCalls()
    wiring = Wiring()
    yield wiring
    others = bus_ids.keys() - {index}
    after = sorted(other for other in others if other > index)
    before = sorted(other for other in others if other < index)
    for other in (*after, *before):
        relation = calls.ask(
            partial(_relation, nvml, index, other),
            None,
            about="GPU",
            number=other,
            # The other GPU's loss is that GPU's problem.
            ordinary=ABSENT | {GPU_IS_LOST},
        )
        relations = dict(wiring.relations)
        if relation is not None:
            relations[bus_ids[other]] = relation
        wiring = replace(wiring, relations=relations, problems=calls.problems)
        yield wiring


def joined(links: Wiring, relations: Wiring) -> Wiring:
    """The two parts of what one GPU reports."""
    problems = (*links.problems, *relations.problems)
    return replace(links, relations=relations.relations, problems=problems)


def _relation(nvml: Nvml, index: int, other: int) -> Relation | None:
    return nvml.relation(nvml.handle(index), nvml.handle(other))


def _is_up(nvml: Nvml, gpu: Handle, link: int, calls: "_LinkCalls") -> bool | None:
    """Whether the link is up; None if the GPU does not have this link, or does not answer."""
    return calls.ask(
        lambda: nvml.link_is_up(gpu, link),
        None,
        about="NVLink",
        number=link,
        # How NVML says that the GPU has no link of this number.
        ordinary=ABSENT | {INVALID_ARGUMENT},
    )


def _nvlink(nvml: Nvml, gpu: Handle, link: int, calls: "_LinkCalls") -> Nvlink:
    """One link that is up."""

    def ask(call: Callable[[Handle, int], T], otherwise: U) -> T | U:
        return calls.ask(lambda: call(gpu, link), otherwise, about="NVLink", number=link)

    bus_id, pci_id = ask(nvml.link_remote, ("", 0))
    return Nvlink(
        version=ask(nvml.link_version, ""),
        end=ask(nvml.link_end, End.UNKNOWN),
        remote_bus_id=bus_id,
        remote_pci_id=pci_id,
    )


class _LinkCalls:
    """Makes calls, and collects failures: one for all links or GPUs about which the same call failed alike."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], list[int]] = {}

    def ask(
        self,
        call: Callable[[], T],
        otherwise: U,
        *,
        about: str = "",
        number: int = 0,
        ordinary: frozenset[int] = ABSENT,
    ) -> T | U:
        """The answer; `otherwise` if NVML refuses, which is a problem unless its code is an `ordinary` one."""
        try:
            return call()
        except CallError as err:
            if err.code in DRIVER_WIDE:
                raise
            if err.code not in ordinary:
                self._failed.setdefault((str(err), about), []).append(number)
            return otherwise

    @property
    def problems(self) -> tuple[str, ...]:
        problems = []
        for (error, about), numbers in self._failed.items():
            problems.append(f"{error} ({about} {_runs(numbers)})" if about else error)
        return tuple(problems)


def _runs(numbers: Iterable[int]) -> str:
    """``0-3, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        continues = bool(runs) and number == runs[-1][-1] + 1
        if continues:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(map(_run, runs))


def _run(numbers: Sequence[int]) -> str:
    first = numbers[0]
    last = numbers[-1]
    return str(first) if first == last else f"{first}-{last}"
