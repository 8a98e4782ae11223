"""Pods that are in no job: the node and GPUs of each, or why it waits."""

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from gpuscheduler.core.calls import Action, BindRefused, FilterAnswer, Nominate, Report
from gpuscheduler.core.choose_gpus import Choice, fit, still_fits
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.tries import CALL_TRIES, Tries
from gpuscheduler.core.jobs.priority.precedence import Precedence
from gpuscheduler.core.links import Links
from gpuscheduler.core.node_usage import NodeUsage
from gpuscheduler.core.pod_facts import PodFacts
from gpuscheduler.core.ranking import Ranking
from gpuscheduler.core.reasons import gave_up_words, problem_words, reasons
from gpuscheduler.core.reservations import Reservations
from gpuscheduler.core.single_pods.ahead import Ahead, AheadLimits, Place
from gpuscheduler.core.single_pods.fragmentation import Fragmentation
from gpuscheduler.core.waiting.cool_downs import CoolDowns
from gpuscheduler.core.waiting.wake_ups import WakeUps

RESERVED_S = 30.0
"""How long GPUs stay reserved for a pod that kube-scheduler does not bind."""
TRIAL_S = 10.0
"""The same for a pod of a group that kube-scheduler tries in one cycle. It binds the pods after the cycle, which takes
seconds for a group of hundreds, and it does not say which placements it drops."""
MOST_CANDIDATES = 5
"""Nodes in an answer for a pod that states preferences among nodes."""
MOST_LOOKED_AT = 64
"""Nodes that are looked at to decide on a pod ahead."""
CLOSE = 0.01
"""Nodes within this part of the least cost are equally good for such a pod."""


class SinglePods:
    """Places pods one by one.

    Args:
        usage: nodes and their users.
        reservations: of all pods.
        links: between the GPUs of nodes.
        pods: by UID, as the watch shows them.
        ranking: of the nodes.
        cool_downs: nodes that owners of pods pass over.
        precedence: keeps nodes for jobs that wait.
        actions: to carry out; warnings are added.
        limits: of decisions ahead.

    Attributes:
        wake_ups: pods that were refused.
        ahead: pods about which kube-scheduler asks next.
    """

    def __init__(  # noqa: PLR0913 (what a choice is made of)
        self,
        usage: ClusterUsage,
        reservations: Reservations,
        links: Links,
        pods: Mapping[str, PodFacts],
        ranking: Ranking,
        cool_downs: CoolDowns,
        precedence: Precedence,
        actions: list[Action],
        limits: AheadLimits,
    ) -> None:
        self._usage = usage
        self._reservations = reservations
        self._links = links
        self._pods = pods
        self._ranking = ranking
        self._cool_downs = cool_downs
        self._precedence = precedence
        self._actions = actions
        self._fragmentation = Fragmentation()
        self.wake_ups = WakeUps(usage, pods, self.fitting, self.passed_over)
        self.ahead = Ahead(
            limits,
            usage,
            reservations,
            pods,
            self.best,
            actions,
        )

    def filter(
        self,
        pod: PodFacts,
        names: Collection[str],
        now: float,
    ) -> FilterAnswer:
        """The best nodes for a pod among `names`, where its GPUs are reserved, or why there are none."""
        request = pod.request
        doubt = self._in_doubt(pod.uid)
        if doubt and doubt in names:
            return FilterAnswer(nodes=(doubt,))
        if doubt:
            return FilterAnswer(error=_may_be_on(doubt))
        was_decided = self.ahead.has(pod.uid)
        confirmed = self._confirmed(pod, names, now)
        # What it had reserved counts as free for it.
        self._reservations.end([pod.uid] if not confirmed else [])
        if request.problem:
            return FilterAnswer(unresolvable=dict.fromkeys(names, problem_words(request)))
        self._fragmentation.asked(request, now)
        resting = self._resting(pod, now)
        tries = Tries()
        choices = confirmed or self._choices(pod, names, resting, tries) or self._taken_back(pod, names, resting, tries)
        if not choices:
            if was_decided:
                # kube-scheduler counts nominated pods on their nodes.
                self._actions.append(Nominate(pod.name, pod.uid, ""))
            return self._refused(
                pod,
                names,
                resting,
                now,
                gave_up=tries.gave_up,
            )
        held_s = TRIAL_S if pod.in_native_group else RESERVED_S
        self._reservations.keep(pod, choices, now + held_s)
        self.wake_ups.forget(pod.uid)
        return FilterAnswer(nodes=tuple(choices))

    def reserved(self, pod: PodFacts, node: str) -> Choice | BindRefused:
        """The GPUs that are reserved for a pod on a node, or others that are free there."""
        reservation = self._reservations.get(pod.uid)
        reserved = reservation.choices.get(node) if reservation else None
        if reserved and still_fits(pod.request, self._usage.nodes[node], reserved):
            return reserved
        doubt = self._in_doubt(pod.uid)
        if doubt:
            return BindRefused(_may_be_on(doubt))
        self._reservations.end([pod.uid])
        choice = self.choice(pod, node)
        if choice is None:
            return BindRefused(f"the GPUs of node {node} are taken by now; kube-scheduler tries the pod again")
        return choice

    def passed_over(self, pod: PodFacts, now: float) -> frozenset[str]:
        """Names of the nodes that a pod does not get, whatever room they have."""
        return self._cool_downs.of(pod, now) | self._precedence.kept_from(pod)

    def fitting(self, pod: PodFacts, now: float) -> Iterator[str]:
        """Names of the nodes where a pod may fit, best first."""
        resting = self.passed_over(pod, now)
        nodes = self._ranking.nodes(pod.request, pod.cpu, self._usage.nodes)
        for name, _, _ in nodes:
            if name not in resting:
                yield name

    def best(self, pod: PodFacts, now: float) -> Place | None:
        """Node and GPUs for a pod about which kube-scheduler has not asked; None if there are none at first sight."""
        resting = self.passed_over(pod, now)
        tries = Tries()
        nodes = self._ranking.nodes(pod.request, pod.cpu, self._usage.nodes)
        for name, position, _ in islice(nodes, MOST_LOOKED_AT):
            node = self._usage.nodes[name]
            if name in resting or not _accepts(node, pod):
                continue
            choice = self.choice(pod, name, [position], tries)
            if choice is not None:
                return name, choice
        return None

    def choice(
        self,
        pod: PodFacts,
        name: str,
        preferred: Sequence[int] = (),
        tries: Tries | None = None,
    ) -> Choice | None:
        """The pod's GPUs on a node; None if it has no room."""
        node = self._usage.nodes.get(name)
        if node is None:
            return None
        return fit(
            pod.request,
            node,
            preferred,
            links=self._links,
            tries=tries,
        )

    def begin(self, pods: Iterable[PodFacts], now: float) -> None:
        """Take the pods that were there before this process began."""
        for pod in pods:
            if pod.node or pod.gated:
                continue
            # A former run may have refused it for GPUs that it reserved.
            self.wake_ups.refused(pod.uid, now)
            # If kube-scheduler has tried it, it is no longer in line.
            if not pod.unscheduled:
                self.ahead.was_there(pod)

    def node_refused(self, pod: PodFacts, now: float) -> None:
        """Have pods of the owner pass over the node that refused a pod."""
        length_s = self._cool_downs.refused(pod, now)
        text = f"Node {pod.node} refused the pod. Pods of its owner avoid the node for {length_s:.0f} s."
        self._actions.append(Report(pod.name, pod.uid, "NodeAvoided", text))

    def fragmented_bytes(self, now: float) -> int:
        """Free bytes of memory on GPUs where no pod fits that asks for as much as one of the last hour."""
        demands = self._fragmentation.demands(now)
        return self._ranking.memory_without(demands)

    def _choices(
        self,
        pod: PodFacts,
        names: Collection[str],
        resting: Container[str],
        tries: Tries,
    ) -> dict[str, Choice]:
        """The best node with the pod's GPUs there; up to `MOST_CANDIDATES` for a pod that states preferences.

        Not for one with claims: the volumes may take minutes to be made, or never be, and meanwhile kube-scheduler does
        not say which of the nodes it has chosen.
        """
        choices: dict[str, Choice] = {}
        # GPUs are reserved on each of the nodes, so that more than one costs other pods room.
        may_choose = pod.has_preferences and not pod.has_claims
        most = MOST_CANDIDATES if may_choose else 1
        limit = float("inf")
        too_full: list[str] = []
        alike_full: set[Hashable] = set()
        for name, position, cost in self._ranking.nodes(pod.request, pod.cpu, names):
            if cost > limit:
                break
            if name in resting:
                continue
            alike = self._usage.nodes[name].alike()
            # What does not fit on a node does not fit on those that are alike.
            is_known_full = alike in alike_full
            choice = None if is_known_full else self.choice(pod, name, [position], tries)
            if choice is not None:
                choices[name] = choice
                limit = min(limit, cost + CLOSE * abs(cost))
                # To ask for a further node would sort all of them.
                if len(choices) == most:
                    break
            elif tries.spend():
                too_full.append(name)
                alike_full.add(alike)
            else:
                break
        # The next call for an equal request goes on after these nodes.
        self._ranking.no_room(pod.request, pod.cpu, too_full)
        return choices

    def _confirmed(
        self,
        pod: PodFacts,
        names: Collection[str],
        now: float,
    ) -> dict[str, Choice]:
        """The place that was decided ahead, if kube-scheduler accepts it and it still serves the pod."""
        name = self.ahead.confirmed(pod, names, now)
        reservation = self._reservations.get(pod.uid)
        if not name or reservation is None or name not in self._usage.nodes:
            return {}
        choice = reservation.choices[name]
        is_there = still_fits(pod.request, self._usage.nodes[name], choice)
        is_resting = name in self.passed_over(pod, now)
        return {name: choice} if is_there and not is_resting else {}

    def _taken_back(
        self,
        pod: PodFacts,
        names: Collection[str],
        resting: Container[str],
        tries: Tries,
    ) -> dict[str, Choice]:
        """A place where only pods behind this one in line have GPUs, which are taken back from them."""
        for name, uids in self.ahead.behind(pod):
            node = self._usage.nodes.get(name)
            if node is None or name not in names or name in resting:
                continue
            without = node.copy()
            for uid in uids:
                without.release(uid)
            if fit(pod.request, without, links=self._links, tries=tries):
                self.ahead.take_back(uids)
                choice = self.choice(pod, name)
                return {name: choice} if choice else {}
        return {}

    def _refused(
        self,
        pod: PodFacts,
        names: Collection[str],
        resting: Mapping[str, str],
        now: float,
        *,
        gave_up: bool,
    ) -> FilterAnswer:
        """Why no node takes the pod, which is woken when one does."""
        request = pod.request
        self.wake_ups.refused(pod.uid, now, again=gave_up)
        why = reasons(request, names, self._usage.nodes, resting)
        for name in self._precedence.kept_from(pod):
            # kube-scheduler would evict pods there in vain: the job comes first, whatever is free.
            if name in why.failed:
                why.unresolvable[name] = why.failed.pop(name)
        if gave_up:
            text = gave_up_words(request, CALL_TRIES)
            why.failed = {name: resting.get(name, text) for name in why.failed}
        short = [self._usage.nodes[name] for name in why.failed if name not in resting]
        warning = self._fragmentation.advise(pod, short, self._pods, now)
        if warning:
            self._actions.append(warning)
        is_fragmented = why.failed and self._ranking.has_in_all(request)
        return FilterAnswer(
            failed=why.failed,
            unresolvable=why.unresolvable,
            cause="fragmented" if is_fragmented else "",
        )

    def _in_doubt(self, uid: str) -> str:
        """The node to which the API server may have bound the pod, although the watch does not show it; or empty.

        The pod's GPUs there must stay reserved, so it cannot have others.
        """
        reservation = self._reservations.get(uid)
        if reservation is None or not reservation.sent:
            return ""
        return next(iter(reservation.choices))

    def _resting(self, pod: PodFacts, now: float) -> dict[str, str]:
        """Names of the nodes that are passed over for a pod, and why."""
        resting = self._precedence.reasons(pod)
        why = "node(s) refused a pod of the same owner a moment ago"
        resting.update(dict.fromkeys(self._cool_downs.of(pod, now), why))
        return resting


def _accepts(node: NodeUsage, pod: PodFacts) -> bool:
    """Whether kube-scheduler accepts a node for a pod whose rules do not depend on other pods."""
    rules = pod.rules
    site = node.facts.site
    is_tolerated = rules.nodes.tolerates_cordon(site) and rules.nodes.tolerates(site)
    has_resources = pod.requests.times_in(node.facts.allocatable, node.used, 1) > 0
    return has_resources and is_tolerated and rules.nodes.selects(site) and not rules.refused


def _may_be_on(node: str) -> str:
    return f"the API server may have bound the pod to node {node}; kube-scheduler tries the pod again"
