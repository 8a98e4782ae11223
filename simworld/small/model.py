"""A small world, and what may happen in it next.

Everything between the parts is a message that is on its way: a change that a watch has yet to show, a call, its answer.
Each may arrive next, or something else may happen: a pod comes, ends or is deleted, a process crashes or starts again.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.mode import GPU_MEM, MODE_LABEL, Mode
from gpuscheduler.core.calls import BindOutcome
from simworld.history import ALLOCATION
from simworld.small.canonical import renamed, text_of, with_moments
from simworld.small.copies import copied
from simworld.small.node_part import Failed, NodePart, gpu_keys, wanted
from simworld.small.scheduler_part import NAME, News, SchedulerPart, Stored
from standin.api.objects import Json
from standin.api.podrules import bound
from standin.api.refusal import Refusal

ENDED = ("Succeeded", "Failed")
_BETWEEN = "\x03"
MOST_MOVES = 400
"""A world in which more messages follow from each other does not come to rest."""
WAIT_S = 100.0
"""Longer than every reservation, cool-down and wait of the parts."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How small a world is.

    Attributes:
        nodes: their number.
        gpus: of each node.
        units: of each GPU.
        pods: units that each pod asks for, in one container.
        crashes: of the scheduler or of an agent, all together.
        ends: pods that end by themselves or are deleted, all together.
        slow: answers of the API server that come too late for a call of kubelet.
        begins: ``empty``; ``waiting``, with all pods there and shown to the scheduler; or ``running``, where the first
            pod runs too.
    """

    nodes: int = 2
    gpus: int = 2
    units: int = 4
    pods: tuple[int, ...] = (3, 3, 3)
    crashes: int = 1
    ends: int = 1
    slow: int = 1
    begins: str = "empty"


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that may happen next.

    Attributes:
        what: in words for people.
        act: does it to a copy of the world.
        is_message: something that was on its way arrives. A world without such moves is quiet.
    """

    what: str
    act: "Callable[[World], None]"
    is_message: bool = True


class World:
    """One state. Its parts are shared with other worlds until one of them changes, see `own_scheduler`, `own_node`.

    Attributes:
        pods: UID to each pod that the API server has.
        nodes: name to each Node object.
        refusals: UID to why kubelet refused a pod.
        excused: UIDs of pods that kubelet took while their node's agent was down or did not know its pods.
        broken: promises that are broken now, in words.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.created = 0
        self.crashes = scope.crashes
        self.ends = scope.ends
        self.slow = scope.slow
        self.pods: dict[str, Stored] = {}
        self.decided: dict[str, int] = {}
        self.refusals: dict[str, Failed] = {}
        self.excused: frozenset[str] = frozenset()
        self.broken: tuple[str, ...] = ()
        names = [f"n{number}z" for number in range(scope.nodes)]
        self.parts: dict[str, NodePart] = {name: NodePart(name, scope.gpus, scope.units) for name in names}
        self.nodes = {name: Stored(_node_object(name, scope)) for name in names}
        for name, part in self.parts.items():
            part.saw_scheduler = True
            part.start_agent(self.nodes[name])
            part.list_pods()
            part.begin_reading()
            part.take_reading()
            self.publish(name)
        self.scheduler = SchedulerPart()
        self.scheduler.start(self.nodes, self.pods)

    # -- copies -----------------------------------------------------------------------------------------------------

    def after(self, move: Move) -> "World":
        """The world after a move; this one stays as it is."""
        world = copy.copy(self)
        world.pods = dict(self.pods)
        world.nodes = dict(self.nodes)
        world.parts = dict(self.parts)
        world.decided = dict(self.decided)
        world.refusals = dict(self.refusals)
        move.act(world)
        if world.scheduler.is_restless:
            world.break_promise("the scheduler's core always has something due")
        return world

    def own_scheduler(self) -> SchedulerPart:
        """The scheduler, to be changed in this world only."""
        self.scheduler = copied(self.scheduler)
        self.scheduler.texts = {}
        return self.scheduler

    def own_calls(self) -> SchedulerPart:
        """The scheduler, to be changed in this world only, apart from its core. That is most of what a copy costs."""
        self.scheduler = self.scheduler.with_same_core()
        return self.scheduler

    def own_node(self, name: str) -> NodePart:
        """A node, to be changed in this world only."""
        part: NodePart = copied(self.parts[name])
        part.texts = {}
        self.parts[name] = part
        return part

    # -- what may happen ----------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Everything that may happen next."""
        yield from self._scheduler_moves()
        for name in self.parts:
            yield from self._node_moves(name)
        yield from self._people_moves()

    def _scheduler_moves(self) -> Iterator[Move]:
        scheduler = self.scheduler
        for uid, write in scheduler.sent.items():
            yield Move(f"API server: the Binding of {uid} to {write.node} arrives", partial(_apply_binding, uid=uid))
        if scheduler.core is None:
            yield Move("gpuscheduler: starts again", _start_scheduler)
            return
        if scheduler.news:
            uid = scheduler.news[0].uid
            yield Move(f"watch: shows gpuscheduler the change of {uid}", _show_scheduler)
        for uid in scheduler.queue:
            yield Move(f"kube-scheduler: calls filter for {uid}", partial(_filter, uid=uid))
        for uid, node in scheduler.chosen.items():
            yield Move(f"kube-scheduler: calls bind for {uid} on {node}", partial(_bind, uid=uid))
        for uid, outcome in scheduler.answers.items():
            yield Move(f"API server: answers that {uid} is {outcome.name}", partial(_answer, uid=uid))
        if self.crashes:
            yield Move("gpuscheduler: crashes", _crash_scheduler, is_message=False)

    def _node_moves(self, name: str) -> Iterator[Move]:
        part = self.parts[name]
        if part.agent is None:
            yield Move(f"{name}: the agent starts again", partial(_start_agent, name=name))
        else:
            if part.has_unlisted_pods:
                yield Move(f"{name}: the agent lists its pods", partial(_list_pods, name=name))
            elif part.news:
                uid = part.news[0].uid
                yield Move(f"watch: shows the agent of {name} the change of {uid}", partial(_show_agent, name=name))
            if part.reading is not None:
                yield Move(f"{name}: kubelet's allocations reach the agent", partial(_take_reading, name=name))
            elif part.differs_from_reading:
                yield Move(f"{name}: the agent reads kubelet's allocations", partial(_begin_reading, name=name))
            if self.crashes:
                yield Move(f"{name}: the agent crashes", partial(_crash_agent, name=name), is_message=False)
        yield from self._kubelet_moves(name)

    def _kubelet_moves(self, name: str) -> Iterator[Move]:
        part = self.parts[name]
        may_wait = part.agent is not None and bool(part.news or part.has_unlisted_pods)
        if part.asked is not None:
            uid = part.asked[0]
            yield Move(f"{name}: kubelet allocates for {uid}", partial(_allocate, name=name, patient=True))
            return
        if part.to_admit:
            uid = part.to_admit[0]
            what = f"{name}: kubelet admits {uid}"
            yield Move(what, partial(_admit, name=name, patient=True))
            if may_wait and self.slow:
                slowly = f"{what}, and the API server answers the agent too late"
                yield Move(slowly, partial(_admit, name=name, patient=False), is_message=False)

    def _people_moves(self) -> Iterator[Move]:
        if self.created < len(self.scope.pods):
            amount = self.scope.pods[self.created]
            yield Move(f"user: creates u{self.created}z for {amount} units", _create, is_message=False)
        if not self.ends:
            return
        for uid, pod in self.pods.items():
            if self._runs(uid):
                yield Move(f"container: {uid} ends", partial(_end, uid=uid), is_message=False)
            if _phase(pod) not in ENDED:
                yield Move(f"user: deletes {uid} by force", partial(_delete, uid=uid), is_message=False)

    def _runs(self, uid: str) -> bool:
        return any(uid in part.held for part in self.parts.values())

    # -- the API server -----------------------------------------------------------------------------------------------

    def store(self, uid: str, pod: Json | None) -> None:
        """Change a pod, or remove it. The watches have yet to show it."""
        former = self.pods.pop(uid, None)
        stored = None if pod is None else Stored(pod)
        if stored is not None:
            self.pods[uid] = stored
        news = News(uid, stored)
        scheduler = self.own_calls()
        if scheduler.core is not None:
            scheduler.news.append(news)
        node = _node_of(stored or former)
        if not node:
            return
        part = self.own_node(node)
        if stored is None:
            part.bound.pop(uid, None)
        else:
            part.bound[uid] = stored
        if part.agent is not None and not part.has_unlisted_pods:
            part.news.append(news)

    def publish(self, name: str) -> None:
        """The agent writes its annotations of the Node, which the scheduler's watch shows."""
        agent = self.parts[name].agent
        if agent is None:
            return
        node = self.nodes[name].json
        annotations = {**node["metadata"]["annotations"], **agent.annotations()}
        if annotations == node["metadata"]["annotations"]:
            return
        metadata = {**node["metadata"], "annotations": annotations}
        self.nodes[name] = Stored({**node, "metadata": metadata})
        if hasattr(self, "scheduler"):
            self.own_scheduler().node_changed(self.nodes[name])

    def names_with_amounts(self, uid: str) -> list[str]:
        """kube-scheduler's own filter: the nodes whose amount has room beside the pods that it knows on them."""
        scheduler = self.scheduler
        amount = wanted(self.pods[uid])
        free = dict.fromkeys(self.parts, self.scope.gpus * self.scope.units)
        for other, pod in self.pods.items():
            node = _node_of(pod) or scheduler.chosen.get(other, "")
            if not node and other in scheduler.sent:
                node = scheduler.sent[other].node
            if node and _phase(pod) not in ENDED:
                free[node] -= wanted(pod)
        return [name for name, units in free.items() if amount <= units]

    def fail(self, name: str, uid: str, why: Failed, *, excused: bool) -> None:
        """Kubelet refuses a pod, and says so in its status."""
        self.refusals[uid] = why
        if excused:
            self.excused |= {uid}
        self.finish(name, uid, "Failed")

    def finish(self, name: str, uid: str, phase: str) -> None:
        """A pod has ended, and kubelet says so in its status."""
        pod = self.pods.get(uid)
        self.own_node(name).end(uid)
        if pod is None:
            return
        status: Json = {"phase": phase}
        if phase == "Failed":
            status["reason"] = "UnexpectedAdmissionError"
        self.store(uid, {**pod.json, "status": status})
        self.scheduler.wake()

    def break_promise(self, what: str) -> None:
        self.broken = (*self.broken, what)

    # -- canonical form ---------------------------------------------------------------------------------------------

    def keys(self) -> tuple[int, int]:
        """Two numbers, equal for worlds that behave alike. The second one goes by no names of pods and nodes."""
        texts = self._texts()
        names = self._names()
        renamed_texts = {renamed(name, names): renamed(text, names) for name, text in texts.items()}
        return _hash_of(texts), _hash_of(renamed_texts)

    def _texts(self) -> dict[str, str]:
        """All that the world has, as texts: about each pod, about each node, and about all of it."""
        texts = {"world": text_of((self.created, self.crashes, self.ends, self.slow))}
        for uid in self._created_uids():
            # The pod may be gone. What was decided about it, and why kubelet refused it, stays.
            about_pod = (
                self.pods.get(uid),
                self.decided.get(uid),
                self.refusals.get(uid),
                uid in self.excused,
            )
            texts[uid] = text_of(about_pod)
        parts: list[NodePart | SchedulerPart] = [self.scheduler, *self.parts.values()]
        for part in parts:
            for name, text in _texts_of(part).items():
                texts[name] = texts.get(name, "") + text
        return texts

    def _created_uids(self) -> list[str]:
        return [f"u{number}z" for number in range(self.created)]

    def _names(self) -> dict[str, str]:
        """Names in the order of what pods and nodes are. Those that look alike keep the order of their names."""
        names: dict[str, str] = {}
        nodes = sorted(self.parts, key=lambda name: (_shape(self.parts[name]), name))
        for number, name in enumerate(nodes):
            other = f"n{number}z"
            names[name] = other
            keys = gpu_keys(name, self.scope.gpus)
            names.update(zip(keys, gpu_keys(other, self.scope.gpus), strict=True))
        order = sorted(self._created_uids(), key=lambda uid: (self._pod_shape(uid, names), uid))
        for number, uid in enumerate(order):
            names[uid] = f"u{number}z"
            names[uid.replace("u", "p")] = f"p{number}z"
        return names

    def _pod_shape(self, uid: str, names: dict[str, str]) -> tuple[object, ...]:
        pod = self.pods.get(uid)
        scheduler = self.scheduler
        amount = self.scope.pods[int(uid[1:-1])]
        if pod is None:
            return (amount, "gone")
        node = names.get(_node_of(pod), "")
        stage = (
            _phase(pod),
            self.decided.get(uid, -1),
            uid in scheduler.queue,
            uid in scheduler.refused,
            names.get(scheduler.chosen.get(uid, ""), ""),
            uid in scheduler.sent,
            uid in scheduler.answers,
            self._runs(uid),
            [news.uid for news in scheduler.news].count(uid),
            scheduler.core is not None and uid in scheduler.core.pods,
        )
        return (amount, "there", node, *stage)


def _hash_of(texts: dict[str, str]) -> int:
    return hash(tuple(sorted(texts.items())))


def _shape(part: NodePart) -> tuple[object, ...]:
    free = sorted(part.free().values())
    return (
        len(part.bound),
        len(part.to_admit),
        len(part.known),
        free,
        part.agent is None,
        len(part.news),
        part.reading is None,
        part.asked is None,
    )


def _texts_of(part: NodePart | SchedulerPart) -> dict[str, str]:
    """The texts of a part, which are worked out once for all worlds that share it."""
    if not part.texts:
        books = part.books()
        joined = _BETWEEN.join(map(text_of, books.values()))
        texts = with_moments(joined, part.now()).split(_BETWEEN)
        part.texts = dict(zip(books, texts, strict=True))
    return part.texts


def first_world(scope: Scope) -> World:
    """The world with which a search begins."""
    world = World(scope)
    if scope.begins == "running":
        world = at_rest(world.after(Move("the first pod comes", _create)))
    if scope.begins == "empty":
        return world
    while world.created < len(scope.pods):
        world = world.after(Move("a pod comes", _create))
    while world.scheduler.news:
        world = world.after(Move("the watch shows it", _show_scheduler))
    return world


def at_rest(world: World) -> World:
    """The world after all that is on its way has arrived. Raises RuntimeError: it never comes to rest."""
    for _ in range(MOST_MOVES):
        move = next((move for move in world.moves() if move.is_message), None)
        if move is None:
            return world
        world = world.after(move)
    raise RuntimeError("the world does not come to rest")


# -- the moves --------------------------------------------------------------------------------------------------------


def _create(world: World) -> None:
    number = world.created
    world.created += 1
    uid = f"u{number}z"
    world.store(uid, _pod_object(number, world.scope.pods[number]))
    world.scheduler.queue.append(uid)


def _show_scheduler(world: World) -> None:
    world.own_scheduler().take_news()


def _filter(world: World, uid: str) -> None:
    world.own_scheduler().filter(world.pods[uid], world.names_with_amounts(uid))


def _bind(world: World, uid: str) -> None:
    world.own_scheduler().bind(uid)


def _apply_binding(world: World, uid: str) -> None:
    scheduler = world.own_calls()
    write = scheduler.sent.pop(uid)
    stored = world.pods.get(uid)
    outcome = BindOutcome.REFUSED
    if stored is not None:
        pod = copy.deepcopy(stored.json)
        binding = {
            "metadata": {"name": write.pod.name, "uid": uid, "annotations": dict(write.annotations)},
            "target": {"name": write.node},
        }
        try:
            bound(pod, binding)
        except Refusal:
            pass
        else:
            outcome = BindOutcome.BOUND
            _take_binding(world, uid, pod)
    if world.scheduler.core is not None:
        world.scheduler.answers[uid] = outcome


def _take_binding(world: World, uid: str, pod: Json) -> None:
    world.store(uid, pod)
    world.scheduler.forget(uid)
    part = world.parts[pod["spec"]["nodeName"]]
    part.to_admit.append(uid)
    decision = json.loads(pod["metadata"]["annotations"].get(ALLOCATION, "{}"))
    for units in decision.values():
        world.decided[uid] = int(next(iter(units)))
    _check_decisions(world, part)


def _check_decisions(world: World, part: NodePart) -> None:
    """No GPU has more decided on it than its units, also by a scheduler that has just restarted."""
    total = dict.fromkeys(range(world.scope.gpus), 0)
    for uid, pod in part.bound.items():
        if _phase(pod) not in ENDED and uid in world.decided:
            total[world.decided[uid]] += wanted(pod)
    for minor, units in total.items():
        if units > world.scope.units:
            world.break_promise(
                f"{units} units are decided on GPU {minor} of {part.name}, which has {world.scope.units}"
            )


def _answer(world: World, uid: str) -> None:
    world.own_scheduler().answered(uid)
    if uid not in world.pods or _node_of(world.pods[uid]):
        world.scheduler.forget(uid)


def _crash_scheduler(world: World) -> None:
    world.crashes -= 1
    scheduler = world.own_calls()
    scheduler.crash()
    for uid in list(scheduler.queue):
        if uid not in world.pods or _node_of(world.pods[uid]):
            scheduler.forget(uid)


def _start_scheduler(world: World) -> None:
    world.own_calls().start(world.nodes, world.pods)


def _crash_agent(world: World, name: str) -> None:
    world.crashes -= 1
    world.own_node(name).crash_agent()


def _start_agent(world: World, name: str) -> None:
    world.own_node(name).start_agent(world.nodes[name])


def _list_pods(world: World, name: str) -> None:
    world.own_node(name).list_pods()
    world.publish(name)


def _show_agent(world: World, name: str) -> None:
    world.own_node(name).take_news()
    world.publish(name)


def _begin_reading(world: World, name: str) -> None:
    world.own_node(name).begin_reading()


def _take_reading(world: World, name: str) -> None:
    world.own_node(name).take_reading()
    world.publish(name)


def _admit(world: World, name: str, *, patient: bool) -> None:
    if not patient:
        world.slow -= 1
    part = world.own_node(name)
    uid = part.to_admit.popleft()
    # Kubelet refuses pods while it has no devices, whose agent starts: no promise holds for them.
    excused = not patient or not part.healthy
    failed = part.ask(world.pods[uid], patient=patient)
    if failed is not None:
        world.fail(name, uid, failed, excused=excused)
    world.publish(name)


def _allocate(world: World, name: str, *, patient: bool) -> None:
    part = world.own_node(name)
    assert part.asked is not None
    uid = part.asked[0]
    excused = not part.healthy
    granted = part.allocate(patient=patient)
    if isinstance(granted, Failed):
        world.fail(name, uid, granted, excused=excused)
    else:
        _check_grant(world, part, uid, granted)
    world.publish(name)


def _check_grant(world: World, part: NodePart, uid: str, grant: Grant) -> None:
    """A pod got the GPU that the scheduler decided, no unit of another pod, and no more than there is."""
    gpus = [gpu.minor for gpu in grant.gpus]
    decided = world.decided.get(uid)
    if gpus != [decided]:
        world.break_promise(f"{uid} got GPU {gpus} of {part.name}, and the scheduler decided GPU {decided}")
    own_ids = part.held[uid]
    for other, ids in part.held.items():
        is_shared = not own_ids.isdisjoint(ids)
        if other != uid and is_shared:
            world.break_promise(f"{uid} and {other} have a unit of {part.name} in common")
    overcommitted = [minor for minor, free in part.free().items() if free < 0]
    if overcommitted:
        world.break_promise(f"GPU {overcommitted[0]} of {part.name} has more units in use than it has")


def _end(world: World, uid: str) -> None:
    world.ends -= 1
    world.finish(_node_of(world.pods[uid]), uid, "Succeeded")


def _delete(world: World, uid: str) -> None:
    world.ends -= 1
    node = _node_of(world.pods[uid])
    if node:
        part = world.own_node(node)
        part.end(uid)
        if uid in part.to_admit:
            part.to_admit.remove(uid)
        if part.asked is not None and part.asked[0] == uid:
            part.asked = None
    world.store(uid, None)
    world.scheduler.forget(uid)
    world.scheduler.wake()


# -- objects ----------------------------------------------------------------------------------------------------------


def _pod_object(number: int, units: int) -> Json:
    amounts = {GPU_MEM: str(units)}
    return {
        "metadata": {
            "namespace": "default",
            "name": f"p{number}z",
            "uid": f"u{number}z",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {},
            "annotations": {},
        },
        "spec": {
            "schedulerName": NAME,
            "priority": 0,
            "containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}],
        },
        "status": {"phase": "Pending"},
    }


def _node_object(name: str, scope: Scope) -> Json:
    return {
        "metadata": {"name": name, "labels": {MODE_LABEL: str(Mode.SHARE)}, "annotations": {}},
        "status": {
            "allocatable": {"cpu": "32", "memory": "64Gi", "pods": "110", GPU_MEM: str(scope.gpus * scope.units)},
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
        },
    }


def _node_of(pod: Stored | None) -> str:
    if pod is None:
        return ""
    name: str = pod.json["spec"].get("nodeName", "")
    return name


def _phase(pod: Stored) -> str:
    phase: str = pod.json["status"]["phase"]
    return phase
