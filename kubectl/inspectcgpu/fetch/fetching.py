"""Fetches the pages of many agents: some at a time, and with a limit on the whole time."""

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Client
from inspectcgpu.read.agent_page import AgentView, read_page
from inspectcgpu.read.usage import Usage, read_usage

AT_A_TIME = 16
NODES_A_WAIT = 250
"""For each further group of this many nodes, the longest wait grows by the timeout."""
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class Task:
    """The pages of one node's agent, below `path`; with `metrics` also the usage of containers."""

    node: str
    path: str
    metrics: bool


@dataclass(slots=True)
class Page:
    """An agent's answer. `view` and `usage` are None without one; the problems are of the API server."""

    view: AgentView | None = None
    usage: Mapping[PodName, Usage] | None = None
    answered: bool = False
    problem: str = ""
    metrics_problem: str = ""


def deadline_s(timeout_s: float, nodes: int) -> float:
    """The time for all answers together; after `timeout_s` without an answer, no further one is awaited."""
    return timeout_s * (1 + nodes // NODES_A_WAIT)


def fetch(client: Client, tasks: Sequence[Task], timeout_s: float) -> dict[str, Page]:
    """Node to its agent's answer. Never raises."""
    late = f"no answer within {timeout_s:g} s"
    pages = {task.node: Page(problem=late, metrics_problem=late) for task in tasks}
    deadline = time.monotonic() + deadline_s(timeout_s, len(tasks))
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Task, str, str | KubeError]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    given_up = threading.Event()
    # Daemons: a thread that waits for a silent agent must not delay the end of the program.
    for _ in range(min(AT_A_TIME, len(tasks))):
        threading.Thread(target=_work, args=(client, waiting, done, given_up), daemon=True).start()
    missing_pages = sum(1 + task.metrics for task in tasks)
    with suppress(queue.Empty):
        while missing_pages:
            remaining_s = deadline - time.monotonic()
            task, which, answer = done.get(timeout=max(0.01, min(timeout_s, remaining_s)))
            missing_pages -= 1
            _read(pages[task.node], which, answer)
    given_up.set()
    return pages


def _read(page: Page, which: str, answer: str | KubeError) -> None:
    match which, answer:
        case "status", str():
            page.view = read_page(answer)
            page.answered = True
        case "status", _:
            page.problem = str(answer)
            # Replaced if the metrics are read as well.
            page.metrics_problem = str(answer)
        case _, str():
            page.usage = read_usage(answer)
            page.metrics_problem = ""
        case _:
            page.metrics_problem = str(answer)


def _work(
    client: Client,
    waiting: "queue.SimpleQueue[Task]",
    done: "queue.SimpleQueue[tuple[Task, str, str | KubeError]]",
    given_up: threading.Event,
) -> None:
    """Process all nodes: both pages of one node before those of another, so that both kinds progress."""
    refused: KubeError | None = None
    with suppress(queue.Empty):
        while not given_up.is_set():
            task = waiting.get_nowait()
            # RBAC refuses the same for all pods.
            failed = refused
            pages = ("status", "metrics") if task.metrics else ("status",)
            for page in pages:
                answer = failed or _text(client, f"{task.path}/{page}")
                done.put((task, page, answer))
                if isinstance(answer, KubeError):
                    # The other page of this agent would fail, too.
                    failed = answer
                    if _is_forbidden(answer):
                        refused = answer


def _is_forbidden(error: KubeError) -> bool:
    return isinstance(error, ApiError) and error.status == _FORBIDDEN


def _text(client: Client, path: str) -> str | KubeError:
    try:
        return client.text(path)
    except KubeError as err:
        return err
