"""gpuscheduler's core, and the kube-scheduler that calls it, as a part of a small world."""

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gpuscheduler.core.calls import Action, BindOutcome, BindWrite, Nudge
from gpuscheduler.core.node_facts import node_facts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.policy.strand import Strand
from gpuscheduler.core.scheduling import Scheduling
from simworld.small.canonical import EARLIEST
from standin.api.objects import Json

NAME = "gpu-scheduler"
TURN_S = 0.001
MOST_TICKS = 20
WALL_NS = 1_800_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as the API server has it; never changed in place, so that copies of a world share it."""

    json: Json


@dataclass(frozen=True, slots=True)
class News:
    """What a watch has to show: a pod, or that it is gone."""

    uid: str
    pod: Stored | None


class SchedulerPart:
    """The extender's process, and kube-scheduler's queue beside it, which outlives it.

    Attributes:
        core: the product's decisions; None while the process is down.
        news: what the watch of pods has not shown the core yet.
        queue: UIDs of pods that kube-scheduler tries.
        refused: UIDs of pods that it tries again when something changes.
        chosen: UID to the node that filter has answered, until the call of bind.
        sent: Bindings on their way to the API server.
        answers: what the API server has answered, on its way back.
        is_restless: whether the core has always something due.
        texts: of `books`, once they are worked out.
    """

    def __init__(self) -> None:
        self.core: Scheduling | None = None
        self.news: deque[News] = deque()
        self.queue: list[str] = []
        self.refused: set[str] = set()
        self.chosen: dict[str, str] = {}
        self.sent: dict[str, BindWrite] = {}
        self.answers: dict[str, BindOutcome] = {}
        self.turns = 0
        self.waited_s = 0.0
        self.is_restless = False
        self.texts: dict[str, str] = {}

    def with_same_core(self) -> Self:
        """A copy that shares the core."""
        part = copy.copy(self)
        part.news = deque(self.news)
        part.queue = list(self.queue)
        part.refused = set(self.refused)
        part.chosen = dict(self.chosen)
        part.sent = dict(self.sent)
        part.answers = dict(self.answers)
        part.texts = {}
        return part

    def now(self) -> float:
        return EARLIEST + self.waited_s + self.turns * TURN_S

    def start(self, nodes: Mapping[str, Stored], pods: Mapping[str, Stored]) -> None:
        """A new process reads all objects. Bindings of the former one that have not arrived never do."""
        self.core = started(nodes, pods, self.now())
        self.news.clear()
        self.sent.clear()
        self.answers.clear()
        self._settle(self.core)

    def crash(self) -> None:
        """The process ends. kube-scheduler gets no answer to its calls, and tries their pods again."""
        self.core = None
        self.news.clear()
        self.answers.clear()
        self.queue += [uid for uid in (*self.chosen, *self.sent) if uid not in self.queue]
        self.chosen.clear()

    def take_news(self) -> None:
        """The watch shows the next change of a pod."""
        core = self._running()
        news = self.news.popleft()
        if news.pod is None:
            core.pod_gone(news.uid, self.now())
        else:
            core.pod_seen(pod_facts(news.pod.json), self.now())
        self._settle(core)

    def node_changed(self, node: Stored) -> None:
        """The watch shows a Node; at once, as few of its changes matter here."""
        if self.core is not None:
            facts = node_facts(node.json)
            assert facts is not None
            self.core.node_seen(facts)
            self._settle(self.core)

    def filter(self, pod: Stored, names: list[str]) -> None:
        """kube-scheduler tries a pod: `names` are the nodes that have the amounts."""
        core = self._running()
        uid = pod.json["metadata"]["uid"]
        if not names:
            self._refuse(uid)
            return
        answer = core.filter(pod_facts(pod.json), names, self.now())
        if answer.nodes:
            self.queue.remove(uid)
            self.chosen[uid] = answer.nodes[0]
        elif not answer.error:
            self._refuse(uid)
        self._settle(core)

    def bind(self, uid: str) -> None:
        core = self._running()
        node = self.chosen.pop(uid)
        answer = core.bind(uid, node, self.now(), WALL_NS)
        if isinstance(answer, BindWrite):
            self.sent[uid] = answer
        else:
            self.queue.append(uid)
        self._settle(core)

    def answered(self, uid: str) -> None:
        """The API server's answer to a Binding comes."""
        core = self._running()
        outcome = self.answers.pop(uid)
        core.bound(uid, outcome)
        if outcome is not BindOutcome.BOUND:
            self.queue.append(uid)
        self._settle(core)

    def wake(self) -> None:
        """A pod has gone or ended, so kube-scheduler tries those again that it had no node for."""
        self.queue += sorted(self.refused)
        self.refused.clear()

    def forget(self, uid: str) -> None:
        """A pod is deleted, or runs: kube-scheduler does not try it again."""
        if uid in self.queue:
            self.queue.remove(uid)
        self.refused.discard(uid)
        self.chosen.pop(uid, None)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.waited_s += seconds
        if self.core is not None:
            self.core.tick(self.now())
            self._settle(self.core)

    def books(self) -> dict[str, Any]:
        """What the part knows and has to do, of nodes by name. The rest is under ``scheduler``.

        What follows from it, such as the ratings of nodes, is left out.
        """
        calls = (self.queue, sorted(self.refused), self.chosen)
        own = (self.news, calls, self.sent, self.answers)
        core = self.core
        if core is None:
            return {"scheduler": own}
        single = core._single_pods  # noqa: SLF001 (all that the core keeps of single pods)
        kept = (
            core.pods,
            core.reservations._all,  # noqa: SLF001
            core._bindings._unanswered,  # noqa: SLF001
            core._cool_downs,  # noqa: SLF001
            single.wake_ups._refused,  # noqa: SLF001
            single.wake_ups._early,  # noqa: SLF001
        )
        of_nodes = {name: (node._uses, node.facts.held) for name, node in core.usage.nodes.items()}  # noqa: SLF001
        return {"scheduler": (*own, kept), **of_nodes}

    def _running(self) -> Scheduling:
        assert self.core is not None, "the scheduler is down"
        self.turns += 1
        return self.core

    def _refuse(self, uid: str) -> None:
        self.queue.remove(uid)
        self.refused.add(uid)

    def _settle(self, core: Scheduling) -> None:
        """Carry out the core's actions, and have it do what is due."""
        for _ in range(MOST_TICKS):
            for action in core.actions():
                self._act(action)
            due = core.next_due(self.now())
            if due is None or due > self.now():
                return
            core.tick(self.now())
        self.is_restless = True

    def _act(self, action: Action) -> None:
        if isinstance(action, Nudge) and action.uid in self.refused:
            self.refused.discard(action.uid)
            self.queue.append(action.uid)


def started(nodes: Mapping[str, Stored], pods: Mapping[str, Stored], now: float) -> Scheduling:
    """A core that has read all objects."""
    mix = Mix()
    core = Scheduling(Strand(mix), mix, [NAME])
    for node in nodes.values():
        facts = node_facts(node.json)
        assert facts is not None
        core.node_seen(facts)
    for pod in pods.values():
        core.pod_seen(pod_facts(pod.json), now)
    core.synced(now)
    return core


def used(core: Scheduling) -> dict[str, dict[str, Any]]:
    """Node to UID to the units on each GPU, reservations included: the core's books."""
    books: dict[str, dict[str, Any]] = {}
    for name, node in sorted(core.usage.nodes.items()):
        uses = node._uses.items()  # noqa: SLF001 (the product's own)
        books[name] = dict(sorted(uses))
    return books
