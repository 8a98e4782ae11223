"""Samples of the usage of GPUs, taken on request and never on a schedule."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.usage.by_container import GpuSample, Samples
from gpuagent.nvml.bounded_query import BoundedQuery
from gpuagent.nvml.usage.process_cgroups import PROC, ProcessCgroups, sees_every_pid
from gpuagent.nvml.usage.usage_queries import UsageNvml, placed, read_sample

log = logging.getLogger(__name__)

FRESH_S = 2.0
"""A sample that is younger is returned again."""
PATIENCE_S = 0.5
"""How long a request waits for a GPU that does not answer. While the GPU hangs, later requests do not wait for it."""
OLD_S = 30.0
"""A sample that is older is not shown any more."""


_Answer = tuple[GpuSample, float]


@dataclass(slots=True)
class _Asked:
    """The query and the last sample of one GPU. `sample` was made from `answer`."""

    uuid: str
    question: BoundedQuery[_Answer] | None = None
    answer: _Answer | None = None
    began: float = float("-inf")
    sample: GpuSample | None = None
    failure: str = ""


@dataclass(slots=True)
class Sampler:
    """Queries every GPU in a thread of its own that ends with the answer; without requests it does nothing.

    Args:
        clock: monotonic seconds.
        proc: where procfs of the agent's own PID namespace is mounted.
        fresh_s, patience_s, old_s: see `FRESH_S`, `PATIENCE_S`, `OLD_S`.
    """

    clock: Callable[[], float] = time.monotonic
    proc: Path = PROC
    fresh_s: float = FRESH_S
    patience_s: float = PATIENCE_S
    old_s: float = OLD_S
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cgroups: ProcessCgroups = field(init=False)
    _pids_seen: bool = field(init=False)

    def __post_init__(self) -> None:
        self._cgroups = ProcessCgroups(self.proc)
        self._pids_seen = sees_every_pid(self.proc)

    def samples(self, gpus: Iterable[Gpu]) -> Samples:
        """The samples of these GPUs; queries those without a fresh sample. Simultaneous requests wait together.

        A GPU that does not answer in time is shown as it was, until that is too old.
        """
        with self._lock:
            known = {gpu.uuid: gpu for gpu in gpus}
            self._forget_all_but(known)
            for gpu in known.values():
                self._ask(gpu)
            for asked in self._asked.values():
                if asked.question:
                    asked.question.wait()
                self._keep(asked)
            self._cgroups.forget_all_but(self._pids())
            return self._shown(known)

    def _forget_all_but(self, known: Mapping[str, Gpu]) -> None:
        """Drop GPUs that are gone. Not one whose query still hangs: its thread would be forgotten, and made again."""
        for uuid, asked in tuple(self._asked.items()):
            if uuid not in known and _ended(asked.question):
                del self._asked[uuid]

    def _pids(self) -> set[int]:
        """Of all processes in the samples."""
        pids = set[int]()
        for asked in self._asked.values():
            if asked.sample:
                pids.update(process.pid for process in asked.sample.processes or ())
        return pids

    def _ask(self, gpu: Gpu) -> None:
        asked = self._asked.setdefault(gpu.uuid, _Asked(gpu.uuid))
        if not _ended(asked.question) or self.clock() - asked.began < self.fresh_s:
            return
        # Before the query is replaced: its answer may have come since the last request.
        self._keep(asked)
        nvml = UsageNvml(self.clock)
        asked.began = self.clock()
        asked.question = BoundedQuery(
            f"nvml-sample-{gpu.index}",
            nvml,
            lambda: [read_sample(nvml, gpu.index, gpu.uuid, self.clock)],
            patience_s=self.patience_s,
            late=lambda: None,
        )

    def _keep(self, asked: _Asked) -> None:
        """Store the query's result so far; a late answer counts too.

        The cgroups of processes are read here, one after the other: many threads that read would wait for each other.
        """
        question = asked.question
        if question is None:
            return
        if not question.ended:
            failure = f"{question.pending or 'sampling it'} has not returned for {self.patience_s:g} s"
        elif question.error:
            failure = str(question.error)
        else:
            failure = ""
            answer = question.known
            if answer and answer is not asked.answer:
                sample, asked_s = answer
                asked.answer = answer
                asked.sample = placed(sample, asked_s, self._cgroups)
        if failure and failure != asked.failure:
            log.warning("Failed to read the use of a GPU", extra={"uuid": asked.uuid, "error": failure})
        asked.failure = failure

    def _shown(self, known: Mapping[str, Gpu]) -> Samples:
        now = self.clock()
        samples = {}
        failing = {}
        for uuid, asked in self._asked.items():
            if uuid not in known:
                continue
            if asked.sample and now - asked.sample.at < self.old_s:
                samples[uuid] = asked.sample
            if asked.failure:
                failing[uuid] = asked.failure
        return Samples(samples, failing, self._pids_seen)


def _ended(question: BoundedQuery[_Answer] | None) -> bool:
    return question is None or question.ended
