"""Schedulers and kubelet at random: every pod gets the GPUs that were chosen for it.

A scheduler records the use of every GPU and chooses a GPU with room; kubelet admits the pods in any order, starts them,
ends them; the agent restarts. No pod is refused, for the scheduler counted right, but where kubelet does not answer.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.reconcile.pod_annotations import writes
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet, check_cached
from tests.unit.domain.builders import MEM, box, in_force, owner, pod_json
from tests.unit.domain.scheduling.test_decision import BORN_NS, v1

BORN = datetime.fromtimestamp(BORN_NS // 10**9, UTC)
NOW_NS = BORN_NS + 10**12
INITS = 0, 0, 0, 1, 2, 4

pytestmark = pytest.mark.usefixtures("impatient")


@dataclass
class Bound:
    """A pod that the scheduler bound: units and GPU of each container; None: it chose none.

    `init` is what an init container asks for, which hands it on to the first container; 0 without one. `side`
    is the number of units of a sidecar, for which no scheduler chooses a GPU; 0 without one. `side_gpu` is its GPU.
    `created` is its `creationTimestamp`.
    """

    name: str
    sizes: list[int]
    gpus: list[int] | None
    annotations: dict[str, str]
    created: str
    init: int = 0
    side: int = 0
    given: list[int] | None = None
    side_gpu: int = 0

    @property
    def json(self):
        side = ({MEM: self.side},) if self.side else ()
        init = [{MEM: self.init}] if self.init else []
        sizes = ({MEM: size} for size in self.sizes)
        return pod_json(self.name, *sizes, annotations=self.annotations, init=init, sidecar=side, created=self.created)

    @property
    def undecided(self) -> int:
        """Units for which the agent has yet to choose a GPU."""
        return 0 if self.given is not None else self.side + (sum(self.sizes) if self.gpus is None else 0)

    @property
    def containers(self) -> list[str]:
        return [f"main-{n}" if n else "main" for n in range(len(self.sizes))]


class Decided(RuleBasedStateMachine):
    """Kubelet may or may not be asked about pods (`Get`); annotations may or may not be made true."""

    answers_queries = True
    undecided = True
    made_true = False

    @initialize(seed=st.integers(0, 2**20), size=st.sampled_from([(2, 4), (3, 8)]), in_order=st.booleans())
    def begin(self, seed: int = 0, size: tuple[int, int] = (3, 8), *, in_order: bool = False) -> None:
        """Kubelet admits pods as it sees them, or by age where it sees many at once.

        Without `in_order` a pod that is bound later is older, so that kubelet may admit them in any order.
        """
        random.seed(seed)
        self.in_order = in_order
        self.gpus, self.units = range(size[0]), size[1]
        self.node = in_force(Mode.SHARE, box(*size))
        self.kubelet = FakeKubelet(self.node)
        self.kubelet.allocations.answers_queries = self.answers_queries
        self.pods: dict[str, Bound] = {}
        self.bound = 0

    # -- the scheduler ---------------------------------------------------------------------------------------------

    def used(self) -> Counter[int]:
        """By the scheduler's record; a pod without a decision is in it once it has its units."""
        used: Counter[int] = Counter()
        for pod in self.pods.values():
            for gpu, size in zip(pod.gpus or pod.given or (), pod.sizes, strict=False):
                used[gpu] += size
            used[pod.side_gpu] += pod.side if pod.given else 0
        return used

    @rule(
        sizes=st.lists(st.sampled_from([1, 2, 2, 4, 4]), min_size=1, max_size=2),
        older=st.booleans(),
        n=st.integers(),
        init=st.sampled_from(INITS),
        side=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def decide(self, sizes: list[int], older: bool, n: int, init: int = 0, side: int = 0) -> None:
        used, gpus = self.used(), []
        side = 0 if init or older else side
        waiting = side + sum(pod.undecided for pod in self.pods.values())
        for size in [sum(sizes)] if older else sizes:
            fits = [gpu for gpu in self.gpus if used[gpu] + size + waiting <= self.units]
            if not fits:
                return
            gpus.append(fits[n % len(fits)])
            used[gpus[-1]] += size
        most = min(init, sizes[0]) if self.answers_queries else sizes[0]
        self.bind(sizes, gpus * len(sizes) if older else gpus, older=older, init=init and most, side=side)

    @precondition(lambda self: self.undecided)
    @rule(sizes=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2))
    def leave_to_the_agent(self, sizes: list[int]) -> None:
        used = self.used()
        waiting = sum(pod.undecided for pod in self.pods.values())
        if any(used[gpu] + sum(sizes) + waiting <= self.units for gpu in self.gpus):
            self.bind(sizes, None, older=False)

    def bind(self, sizes: list[int], gpus: list[int] | None, *, older: bool, init: int = 0, side: int = 0) -> None:
        self.bound += 1
        name = f"p{self.bound}"
        annotations: dict[str, str] = {}
        if gpus is not None and older:
            annotations = v1(gpus[0], sum(sizes))
        elif gpus is not None:
            table = {str(n): {str(gpu): size} for n, (gpu, size) in enumerate(zip(gpus, sizes, strict=True))}
            annotations = {MEMORY_ANNOTATION: json.dumps(table)}
        before = timedelta(seconds=0 if self.in_order else self.bound)
        created = (BORN - before).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.pods[name] = Bound(name, sizes, gpus, annotations, created, init, side)
        self.show()

    def show(self) -> None:
        self.kubelet.pods(*(pod.json for pod in self.pods.values()))

    # -- kubelet -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(pod.given is None for pod in self.pods.values()))
    @rule(n=st.integers(0, 100))
    def admit(self, n: int) -> None:
        waiting = [pod for pod in self.pods.values() if pod.given is None]
        pod = waiting[0 if self.in_order else n % len(waiting)]
        self.kubelet.allocations.admitting = pod.name
        pod.given, handed_on = [], frozenset[str]()
        if pod.init:
            self.kubelet.serve(owner(pod.name, "init-0"), MEM, pod.init)
            handed_on = self.kubelet.allocations.holdings.pop().ids  # the allocations that others see do not have it
        if pod.side:
            self.kubelet.serve(owner(pod.name, "side-0"), MEM, pod.side)
            (uuid,) = self.kubelet.on(owner(pod.name, "side-0"), MEM)
            pod.side_gpu = self.kubelet.snap.gpus[uuid].minor
        for container, size in zip(pod.containers, pod.sizes, strict=True):
            self.kubelet.serve(owner(pod.name, container), MEM, size, must=handed_on)
            handed_on = frozenset()
            (uuid,) = self.kubelet.on(owner(pod.name, container), MEM)
            pod.given.append(self.kubelet.snap.gpus[uuid].minor)
        if pod.gpus is not None:
            assert pod.given == pod.gpus

    @precondition(lambda self: any(pod.given for pod in self.pods.values()))
    @rule(n=st.integers(0, 100))
    def start(self, n: int) -> None:
        pods = [pod for pod in self.pods.values() if pod.given]
        pod = pods[n % len(pods)]
        for holding in [h for h in self.kubelet.allocations.holdings if h.owner.pod.name == pod.name]:
            assert self.kubelet.allocator.prestart(MEM, holding.ids) == holding.owner

    @precondition(lambda self: any(pod.given for pod in self.pods.values()))
    @rule(n=st.integers(0, 100))
    def end(self, n: int) -> None:
        pods = [pod for pod in self.pods.values() if pod.given]
        pod = self.pods.pop(pods[n % len(pods)].name)
        self.kubelet.end(pod.name)
        self.show()

    @rule()
    def read_allocations(self) -> None:
        self.node.now += 1
        self.kubelet.read_allocations()

    @precondition(lambda self: self.made_true)
    @rule()
    def correct(self) -> None:
        """The agent makes annotations true, and the scheduler counts by them."""
        for write in writes(self.node.state):
            pod = self.pods[write.pod.name]
            assert not (self.answers_queries and write.corrections)
            pod.annotations = {**pod.annotations, **write.body(NOW_NS)["metadata"]["annotations"]}
            if pod.gpus is not None and write.corrections:
                pod.gpus = pod.given
        self.show()

    @rule()
    def restart(self) -> None:
        self.kubelet = FakeKubelet(self.node, self.kubelet.allocations)
        self.kubelet.read_allocations()

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def no_gpu_has_more_than_it_is(self) -> None:
        if not hasattr(self, "kubelet"):
            return
        units: Counter[int] = Counter()
        for pod in self.pods.values():
            for gpu, size in zip(pod.given or (), pod.sizes, strict=False):
                units[gpu] += size
        assert all(count <= self.units for count in units.values())
        ids = [i for holding in self.kubelet.allocations.holdings for i in holding.ids]
        assert len(set(ids)) == len(ids)
        check_cached(self.kubelet.allocator)

    @invariant()
    def the_gpus_have_what_was_chosen(self) -> None:
        if not hasattr(self, "kubelet") or any(pod.given is None for pod in self.pods.values()):
            return
        chosen, has = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for pod in self.pods.values():
            if pod.gpus is not None and pod.given is not None:
                chosen.update(zip(pod.sizes, pod.gpus, strict=True))
                has.update(zip(pod.sizes, pod.given, strict=True))
        assert has == chosen


class DecidedUnasked(Decided):
    """A kubelet that does not say which pods it knows: a pod gets its own GPU, or is refused."""

    answers_queries = False

    late = False

    @rule(late=st.booleans())
    def watch(self, late: bool) -> None:
        """The agent's watch shows no new pod from here on, or all of them again."""
        self.late = late
        self.show()

    def show(self) -> None:
        shown = {pod.name.name for pod in self.node.state.pods.seen} if self.late else self.pods.keys()
        self.kubelet.unseen = [pod.json for pod in self.pods.values() if pod.name not in shown]
        self.kubelet.pods(*(pod.json for pod in self.pods.values() if pod.name in shown))

    @rule()
    def restart(self) -> None:
        super().restart()
        self.show()

    @precondition(lambda self: any(pod.given is None for pod in self.pods.values()))
    @rule(n=st.integers(0, 100))
    def admit(self, n: int) -> None:
        if (
            not self.kubelet.snap.schedulers.assumed
        ):  # nothing is decided yet: the agent looks for no pod that it has not seen
            self.watch(late=False)
        try:
            super().admit(n)
        except Refusal as refusal:
            assert refusal.reason in {Reason.UNKNOWN_POD, Reason.GPU_DECISION, Reason.NO_SINGLE_GPU, Reason.NOT_ENOUGH}
            failed = next(pod for pod in self.pods.values() if pod.name == self.kubelet.allocations.admitting)
            del self.pods[failed.name]
            self.kubelet.end(failed.name)
            self.show()


class DecidedAndRestarted(Decided):
    """The agent starts again, and its first list of pods is late: a pod gets its own GPU, or is refused."""

    late = False
    readable = True

    @rule(readable=st.booleans(), answers=st.booleans())
    def restart(self, readable: bool = True, answers: bool = True) -> None:
        """`readable`: the API server answers reads of pods by name. `answers`: kubelet answers queries."""
        self.late, self.readable = True, readable
        self.kubelet.allocations.answers_queries = answers
        self.node = in_force(Mode.SHARE, box(len(self.gpus), self.units))
        self.node.state = replace(self.node.state, pods=Pods(decided_before=True))
        super().restart()
        self.show()

    @rule()
    def the_list_comes(self) -> None:
        self.late = False
        self.kubelet.allocations.answers_queries = True
        self.show()

    def show(self) -> None:
        if not self.late:
            self.kubelet.unseen = []
            super().show()
            return
        shown = {pod.name.name for pod in self.node.state.pods.seen}
        unseen = [pod.json for pod in self.pods.values() if pod.name not in shown]
        self.kubelet.unseen = unseen if self.readable else None

    @precondition(lambda self: any(pod.given is None for pod in self.pods.values()))
    @rule(n=st.integers(0, 100))
    def admit(self, n: int) -> None:
        try:
            super().admit(n)
        except Refusal as refusal:
            doubt = {Reason.UNKNOWN_POD, Reason.GPU_DECISION, Reason.NO_SINGLE_GPU, Reason.NOT_ENOUGH}
            assert refusal.reason in doubt
            failed = next(pod for pod in self.pods.values() if pod.name == self.kubelet.allocations.admitting)
            del self.pods[failed.name]
            self.kubelet.end(failed.name)
            self.show()


class DecidedAndReported(Decided):
    """Annotations are made true."""

    made_true = True


def explored(lives: type[Decided]) -> type:
    """A hundred lives, others in each run; they may take a busy machine more than the minute of other tests."""
    case = lives.TestCase
    case.settings = settings(stateful_step_count=25)
    case.pytestmark = [pytest.mark.timeout(300)]
    return case


TestDecided, TestDecidedUnasked = explored(Decided), explored(DecidedUnasked)
TestDecidedAndTold, TestDecidedAndRestarted = explored(DecidedAndReported), explored(DecidedAndRestarted)


def test_a_pod_that_ended_at_once_leaves_no_place_to_go_on_from():
    """Another one, whose first container asks for as much, was as likely; kubelet's next call begins a third."""
    machine = Decided()
    machine.begin()
    machine.decide([1], older=False, n=1)
    machine.decide([2], older=False, n=0)
    machine.decide([1, 2], older=False, n=1)
    machine.admit(0)
    machine.end(0)
    machine.admit(0)


def test_a_pod_with_two_equal_containers_gets_the_last_units_of_its_gpu():
    """Everybody is on GPU 0 by the scheduler's record; the second container of p5 gets GPU 1."""
    machine = Decided()
    machine.begin()
    for sizes, admitted in (([1], 0), ([1], 0), ([1], None), ([2], 0), ([1, 1], None), ([1], 44), (None, 0), ([1], 0)):
        if sizes:
            machine.decide(sizes, older=False, n=0)
        if admitted is not None:
            machine.admit(admitted)


def test_without_kubelets_answer_a_guess_leaves_later_containers_in_doubt():
    """The first call may be for p1 or p3. The second, as large, is for the other container of p3."""
    machine = DecidedUnasked()
    machine.begin()
    machine.decide([1, 4], older=False, n=0)
    machine.leave_to_the_agent([2])
    machine.decide([1, 1], older=False, n=0)
    machine.admit(2)
    assert set(machine.pods) == {"p1", "p2"}, "p3 was refused"


def test_without_kubelets_answer_a_pod_that_the_watch_has_not_shown_is_not_taken_for_another():
    """Kubelet admits the pods of one burst by age, and the agent's watch has shown only the younger one."""
    machine = DecidedUnasked()
    machine.begin()
    machine.decide([2], older=False, n=0)
    machine.watch(late=True)
    machine.decide([2], older=False, n=1)
    machine.admit(1)
    assert set(machine.pods) == {"p1"}, "p2 was refused"
