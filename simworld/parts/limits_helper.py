"""The product's helper of driver `limits` on one node. Only its socket is replaced: its driver is the node's own.

NVIDIA's driver from 615 on limits the memory of cgroups, and keeps the limits when helper or agent end.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuagent.host import limits_client
from gpuagent.isolation.interface import Isolation
from gpuagent.isolation.limits import driver as limits_driver
from gpuagent.limits_helper import process
from gpuagent.limits_helper.driver_thread import DriverThread
from gpuagent.limits_helper.limit_setter import CgroupPlace, LimitSetter
from gpuagent.limits_helper.newborn_guard import NewbornGuard
from gpuagent.limits_helper.requests import Request, Set, parse
from gpuagent.limits_helper.service import LimitsService
from gpuagent.nvml.binding.limit_calls import LimitCalls
from gpuagent.settings.settings import Settings
from gpuagent.simulation.memory_accounting import NO_LIMIT, BackendName, RefusedError
from simworld.history import History
from simworld.parts.cgroups import NodeCgroups
from simworld.parts.drivers import NodeDriver
from simworld.runtime.kernel import Process, kernel
from simworld.runtime.threads import Event

MIB = 1 << 20
SET_LIMITS = "nvmlDeviceSetMemoryLimits"
BEGIN_S = 1.0
"""How long after a fault it may need until it looks at each new container at once."""
ANSWERED = "answered"
LOST = "carried out"
"""Moments of a request to set a limit: its answer is sent, or the driver has the limit and the answer is not sent."""


class LimitsHelper:
    """Its processes may end at any moment and start again.

    Args:
        node: on which it runs.
        name: of the node.
        driver: of the node.
        cgroups: of its pods.
        history: gets what it is told and answers.

    Attributes:
        slow_s: how long each answer takes at most.
        refuses: whether the node's driver sets no limits.
        disturbed_at: when it, or the node's driver, last did not work at once.
        struck: called after each limit that it has set, with one of the moments above.
    """

    def __init__(self, node: object, name: str, driver: NodeDriver, cgroups: NodeCgroups, history: History) -> None:
        self.slow_s = 0.0
        self.refuses = False
        self.disturbed_at = kernel().now
        self.struck: Callable[[str], None] = lambda _: None
        self._node = node
        self._name = name
        self._driver = driver
        self._cgroups = cgroups
        self._history = history
        self._service: LimitsService | None = None
        self.process = Process(f"{name} memory-limits", host=node, alive=False)

    def is_prompt_since(self, moment: float) -> bool:
        """Whether it has worked at once from then on: it looks at each new container."""
        is_disturbed = not self.process.alive or self.slow_s > 0 or self.refuses
        return not is_disturbed and self.disturbed_at + BEGIN_S < moment

    def disturb(self, *, slow_s: float | None = None, refuses: bool | None = None) -> None:
        """Begin or end that it answers late, or that the node's driver refuses limits."""
        self.disturbed_at = kernel().now
        if slow_s is not None:
            self.slow_s = slow_s
        if refuses is not None:
            self.refuses = refuses
            self._driver.simulator.fail(SET_LIMITS, "UNKNOWN" if refuses else None)

    @property
    def actor(self) -> str:
        """Its name in the history."""
        return f"{self._name} limits"

    @property
    def backend(self) -> str:
        """How the node's driver accounts memory: ``dmem`` or ``misc``."""
        return str(self._memory.accounting.backend)

    def start(self) -> None:
        if self.process.alive:
            return
        self.process = Process(f"{self._name} memory-limits", host=self._node)
        self.disturbed_at = kernel().now
        self._service = None
        kernel().spawn(self._run, self.actor, self.process)

    def kill(self) -> None:
        """End the process. The driver keeps all limits."""
        kernel().end(self.process)

    def _run(self) -> None:
        """As `process.serve`, without a socket and signals."""
        nvml = LimitCalls()
        setter = LimitSetter(CgroupPlace(root=self._cgroups.root), nvml, lambda *_: self.backend)
        thread = DriverThread(lambda: nvml.pending)
        service = LimitsService(setter, thread)
        guard = NewbornGuard(setter, thread)
        self._service = service
        process._guard(service, guard, Event())  # type: ignore[arg-type]  # noqa: SLF001 (the rest of its life)

    def accepts(self) -> bool:
        """Whether it listens."""
        return self.process.alive and self._service is not None

    def answer(self, line: bytes) -> bytes:
        """The answer to a line. Called in a task of its process."""
        assert self._service is not None
        kernel().sleep(kernel().chance.random() * self.slow_s)
        answer = self._service.answer(line)
        request = parse(line)
        if isinstance(request, Set):
            self._note(request, answer)
        return answer

    def _note(self, request: Set, answer: bytes) -> None:
        """Have the history know what it was told, and what it answers."""
        target = request.target
        cgroup = "a container of" if target.leaf else "the pod"
        size = "no limit" if request.size == NO_LIMIT else f"{request.size // MIB} MiB"
        told = f"{size} of {target.gpu} for {cgroup} {self._history.name(target.pod)}"
        self._history.note(self.actor, f"was told {told}: {answer.decode().strip()}")

    # -- what is in force ------------------------------------------------------------------------------------------

    @property
    def _memory(self) -> Any:  # noqa: ANN401 (its driver is new enough to have it)
        return self._driver.simulator.device_memory

    def limit_of_pod(self, gpu: str, uid: str) -> int | None:
        """The limit of a pod's own cgroup on a GPU, in bytes; None if nothing limits it."""
        return self._limit(gpu, self._cgroups.pod(uid))

    @property
    def has_nested_limits(self) -> bool:
        """Whether the limit of a pod holds for all of its containers together; else the nearest limit alone counts."""
        return self.backend == BackendName.DMEM

    def limit(self, gpu: str, uid: str, container: str) -> int | None:
        """What limits a container on a GPU, in bytes: the limit of its pod, or its own. None if nothing does."""
        if self.has_nested_limits:
            return self.limit_of_pod(gpu, uid)
        return self._limit(gpu, self._cgroups.container(uid, container))

    def _limit(self, gpu: str, directory: Path) -> int | None:
        memory = self._memory
        cgroup = memory.folders.at(directory)
        try:
            hard: int = memory.accounting.limits(gpu, cgroup).hard
        except RefusedError:
            return None  # on backend misc, this says that nothing limits it
        return None if hard == NO_LIMIT else hard


class HelperConnection:
    """In the place of the client's connection over a unix socket. Requests and answers are encoded as usual.

    Raises OSError if the helper cannot be reached.
    """

    def __init__(self, _path: Path, _until: float) -> None:
        helper: LimitsHelper = kernel().process.host.limits  # type: ignore[attr-defined]
        if not helper.accepts():
            raise ConnectionRefusedError
        self.is_fresh = True
        self.is_usable = True
        self._helper = helper
        self._process = helper.process

    def exchange(self, requests: Sequence[dict[str, Any]], deadline_s: float) -> list[dict[str, Any]]:
        """As that of the client's connection."""
        self.is_usable = False
        answers = [self._answer(request, deadline_s) for request in requests]
        self.is_usable = True
        self.is_fresh = False
        return answers

    def close(self) -> None:
        """Nothing to close."""

    def _answer(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        if not self._process.alive:
            raise ConnectionResetError
        line = json.dumps(request).encode() + b"\n"
        answers: list[bytes] = []
        is_over = Event()
        sets = _limits_a_pod(parse(line))

        def work() -> None:
            answer = self._helper.answer(line)
            if sets:
                self._helper.struck(LOST)
            answers.append(answer)
            is_over.set()
            if sets:
                self._helper.struck(ANSWERED)

        self._process.at_end.append(is_over.set)
        kernel().spawn(work, self._helper.actor, self._process)
        is_in_time = is_over.wait(deadline_s)
        if is_over.set in self._process.at_end:
            self._process.at_end.remove(is_over.set)
        if answers:
            return limits_client._object(answers[0])  # noqa: SLF001 (reads what a real connection brings)
        if is_in_time:
            raise ConnectionResetError
        raise TimeoutError


def _limits_a_pod(request: Request) -> bool:
    """Whether a request sets the limit of a pod."""
    return isinstance(request, Set) and not request.target.leaf


def limits_isolation(settings: Settings) -> Isolation:
    """The product's driver `limits`, as the agent makes it."""
    return limits_driver.make(settings.isolation_options)
