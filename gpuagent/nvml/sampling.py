"""Samples of what GPUs are used for, taken when somebody asks for them and never on a schedule."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuagent.domain.gpu import Gpu
from gpuagent.domain.usage import GpuSample, Samples
from gpuagent.nvml.asking import Question
from gpuagent.nvml.places import PROC, Places, sees_every_pid
from gpuagent.nvml.usage import UsageNvml, read_sample

log = logging.getLogger(__name__)

FRESH_S = 2.0
"""A sample that is younger is given out again."""
PATIENCE_S = 0.5
"""How long somebody who asks waits for a GPU that does not answer. It is waited for once, not again while it hangs."""
OLD_S = 30.0
"""A sample that is older is not shown any more."""


@dataclass(slots=True)
class _Asked:
    """What is kept of one GPU. One question at a time uses `places`."""

    places: Places
    question: Question[GpuSample] | None = None
    began: float = float("-inf")
    sample: GpuSample | None = None
    failure: str = ""


@dataclass(slots=True)
class Sampler:
    """Asks every GPU in a thread of its own that ends with the answer: nobody asks, nothing is done.

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
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _pids_seen: bool | None = None

    def samples(self, gpus: Iterable[Gpu]) -> Samples:
        """What is known of these GPUs; asks those of which nothing fresh is known. Those who ask at once wait together.

        A GPU that does not answer in time is shown as it was, until that is too old.
        """
        with self._turn:
            if self._pids_seen is None:
                self._pids_seen = sees_every_pid(self.proc)
            known = {gpu.uuid: gpu for gpu in gpus}
            self._asked = {
                uuid: asked for uuid, asked in self._asked.items() if uuid in known or not _ended(asked.question)
            }
            for gpu in known.values():
                self._ask(gpu)
            for uuid in known:
                self._take(uuid)
            return self._shown(known)

    def _ask(self, gpu: Gpu) -> None:
        asked = self._asked.setdefault(gpu.uuid, _Asked(Places(self.proc)))
        if not _ended(asked.question) or self.clock() - asked.began < self.fresh_s:
            return
        self._keep(gpu.uuid, asked)
        nvml = UsageNvml(self.clock)
        asked.began = self.clock()
        asked.question = Question(
            f"nvml-sample-{gpu.index}",
            nvml,
            lambda: [read_sample(nvml, gpu.index, gpu.uuid, asked.places, self.clock)],
            patience_s=self.patience_s,
            late=lambda: None,
        )

    def _take(self, uuid: str) -> None:
        asked = self._asked[uuid]
        if asked.question:
            asked.question.wait()
            self._keep(uuid, asked)

    def _keep(self, uuid: str, asked: _Asked) -> None:
        """Take note of how the question stands; an answer that came after its time counts too."""
        question = asked.question
        if question is None:
            return
        if not question.ended:
            failure = f"{question.pending or 'sampling it'} has not returned for {self.patience_s:g} s"
        elif question.error:
            failure = str(question.error)
        else:
            failure, asked.sample = "", question.known
        if failure and failure != asked.failure:
            log.warning("what a GPU is used for is not known", extra={"uuid": uuid, "error": failure})
        asked.failure = failure

    def _shown(self, known: Mapping[str, Gpu]) -> Samples:
        now = self.clock()
        mine = {uuid: asked for uuid, asked in self._asked.items() if uuid in known}
        return Samples(
            {u: asked.sample for u, asked in mine.items() if asked.sample and now - asked.sample.at < self.old_s},
            {uuid: asked.failure for uuid, asked in mine.items() if asked.failure},
            bool(self._pids_seen),
        )


def _ended(question: Question[GpuSample] | None) -> bool:
    return question is None or question.ended
