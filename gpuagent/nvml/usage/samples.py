"""Samples of the usage of GPUs, taken on request."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.usage.by_container import GpuSample, Samples
from gpuagent.nvml.bounded_query import BoundedQuery
from gpuagent.nvml.usage.usage_queries import UsageNvml, placed, read_sample
from gpuagent.system.process_cgroups import PROC, ProcessCgroups, sees_every_pid

log = logging.getLogger(__name__)

FRESH_S = 2.0
"""A sample that is younger is returned again."""
PATIENCE_S = 0.5
"""How long a request waits for a GPU that does not answer. While the GPU hangs, later requests do not wait for it."""
OLD_S = 30.0
"""A sample that is older is not shown any more."""


_Answer = tuple[GpuSample, float]


@dataclass(slots=True)
class _SampledGpu:
    """The query and the last sample of one GPU. `sample` was made from `answer`."""

    uuid: str
    query: BoundedQuery[_Answer] | None = None
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
    _sampled: dict[str, _SampledGpu] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cgroups: ProcessCgroups = field(init=False)
    _pids_seen: bool = field(init=False)

    def __post_init__(self) -> None:
        self._cgroups = ProcessCgroups(self.proc)
        self._pids_seen = sees_every_pid(self.proc)

    def samples(self, gpus: Iterable[Gpu], asked: Collection[str] | None = None) -> Samples:
        """The samples of these GPUs; queries those without a fresh sample. Simultaneous requests wait together.

        A GPU that does not answer in time is shown as it was, until that is too old.

        Args:
            gpus: all GPUs of the node. What is known of others is dropped.
            asked: UUIDs of those to query; None for all.
        """
        with self._lock:
            known = {gpu.uuid: gpu for gpu in gpus}
            self._forget_all_but(known)
            for gpu in known.values():
                if asked is None or gpu.uuid in asked:
                    self._ask(gpu)
            for sampled in self._sampled.values():
                if sampled.query:
                    sampled.query.wait()
                self._keep(sampled)
            self._cgroups.forget_all_but(self._pids())
            return self._shown(known)

    def _forget_all_but(self, known: Mapping[str, Gpu]) -> None:
        """Drop GPUs that are gone. Not one whose query still hangs: its thread would be forgotten, and made again."""
        for uuid, sampled in tuple(self._sampled.items()):
            if uuid not in known and _ended(sampled.query):
                del self._sampled[uuid]

    def _pids(self) -> set[int]:
        """Of all processes in the samples."""
        pids = set[int]()
        for sampled in self._sampled.values():
            if sampled.sample:
                pids.update(process.pid for process in sampled.sample.processes or ())
        return pids

    def _ask(self, gpu: Gpu) -> None:
        sampled = self._sampled.setdefault(gpu.uuid, _SampledGpu(gpu.uuid))
        if not _ended(sampled.query) or self.clock() - sampled.began < self.fresh_s:
            return
        # Before the query is replaced: its answer may have come since the last request.
        self._keep(sampled)
        nvml = UsageNvml(self.clock)
        sampled.began = self.clock()
        sampled.query = BoundedQuery(
            f"nvml-sample-{gpu.index}",
            nvml,
            lambda: [read_sample(nvml, gpu.index, gpu.uuid, self.clock)],
            patience_s=self.patience_s,
            late=lambda: None,
        )

    def _keep(self, sampled: _SampledGpu) -> None:
        """Store the query's result so far; a late answer counts too.

        The cgroups of processes are read here, one after the other: many threads that read would wait for each other.
        """
        query = sampled.query
        if query is None:
            return
        if not query.ended:
            failure = f"{query.pending or 'sampling it'} has not returned for {self.patience_s:g} s"
        elif query.error:
            failure = str(query.error)
        else:
            failure = ""
            answer = query.known
            # Only once for each answer: by the next request, its processes may have ended.
            if answer and answer is not sampled.answer:
                sample, asked_s = answer
                sampled.answer = answer
                sampled.sample = placed(sample, asked_s, self._cgroups)
        if failure and failure != sampled.failure:
            log.warning("Failed to read the use of a GPU", extra={"uuid": sampled.uuid, "error": failure})
        sampled.failure = failure

    def _shown(self, known: Mapping[str, Gpu]) -> Samples:
        now = self.clock()
        samples = {}
        failing = {}
        for uuid, sampled in self._sampled.items():
            if uuid not in known:
                continue
            if sampled.sample and now - sampled.sample.at < self.old_s:
                samples[uuid] = sampled.sample
            if sampled.failure:
                failing[uuid] = sampled.failure
        return Samples(samples, failing, self._pids_seen)


def _ended(query: BoundedQuery[_Answer] | None) -> bool:
    return query is None or query.ended
