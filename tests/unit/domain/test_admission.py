"""Which container is kubelet asking for?"""

from collections.abc import Collection

import pytest

from gpuagent.domain.admission import Admission, Candidate, at_book, beginning, gpu_count, spread_was_asked
from gpuagent.domain.claims import Claims
from gpuagent.domain.errors import Reason, Refusal
from gpuagent.domain.ledger import PAIR_S, Handout, Ledger
from gpuagent.domain.mode import GPU_COUNT_LABEL, Kind, Mode
from gpuagent.domain.pods import Holding, Owner, parse_pod
from tests.unit.domain.builders import CORE, MEM, WHOLE, Life, holding, in_force, owner, pod_json, unit_ids, uuid

COUNT = GPU_COUNT_LABEL


def handout(who: Owner | None, ids, resource=MEM, at=0.0) -> Handout:
    return Handout(resource, frozenset(ids), (uuid(0),), at, who)


def claims(node: Life, *given: Handout, free=(), now=1.0) -> Claims:
    ledger = Ledger()
    for one in given:
        ledger = ledger.recorded(one, opens=False)
    return Claims(node.snap, ledger, frozenset(free), now)


def owners(candidates) -> list[Owner]:
    return [candidate.owner for candidate in candidates]


def test_a_pod_that_gives_back_what_it_had_asks_for_nothing_while_it_is_deleted():
    """Kubelet offers its units again: it has ended there, and the API server shows it for a moment more."""
    leaving = pod_json("leaving", {MEM: 4})
    new = pod_json("new", {MEM: 4}, created="2026-01-01T00:00:09Z")
    had = unit_ids(0, Kind.MEMORY_SHARE, *range(4))
    for deleting, asking in ((False, ["leaving", "new"]), (True, ["new"])):
        if deleting:
            leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        node = in_force(Mode.SHARE).holdings(holding("leaving", had)).pods(leaving, new)
        found = beginning(MEM, 4, claims(node, free=had))
        assert [candidate.pod.name.name for candidate in found] == asking


class Kubelet:
    """Admits containers as the test says, and remembers what the agent may believe of it."""

    def __init__(self, node: Life) -> None:
        self.node, self.given, self.admission, self.count = node, [], Admission(), 0

    @property
    def claims(self) -> Claims:
        return claims(self.node, *self.given)

    def asks(self, resource: str, size: int) -> list[Owner]:
        return owners(self.admission.candidates(resource, size, self.claims))

    def carries(self, resource: str, size: int, fixed) -> list[Owner]:
        """Who may go on, where kubelet has fixed these ids for the call."""
        left = self.admission.carried(resource, size, frozenset(fixed), self.claims)
        return owners(left.going_on(resource, size, self.claims))

    def gives(self, who: Owner, resource: str, size: int, handed_on: Collection[str] = ()) -> "Kubelet":
        """`who` is the right one of the candidates; it is given units of GPU 0."""
        (match,) = [c for c in self.admission.candidates(resource, size, self.claims) if c.owner == who]
        kind = self.node.snap.sold[resource]
        new = size - len(handed_on)
        made = handout(who, unit_ids(0, kind, *range(self.count, self.count + new)).union(handed_on), resource)
        self.count += new
        self.given.append(made)
        place = Candidate(match.pod, match.container, (*match.trail, (who, made)))
        self.admission = Admission((place,), 0.5)
        return self


# -- a pod that begins -----------------------------------------------------------------------------------------


def test_nobody_known_asks_for_it():
    assert owners(beginning(MEM, 4, claims(in_force(Mode.SHARE)))) == []
    assert owners(beginning(MEM, 4, claims(in_force(Mode.SHARE).pods(pod_json("a", {MEM: 3}))))) == []


def test_pods_without_units_may_begin_the_one_seen_first_most_likely():
    node = in_force(Mode.SHARE).pods(
        pod_json("first", {MEM: 4}, created="2026-01-02"), pod_json("second", {MEM: 4}, created="2026-01-01")
    )
    assert owners(beginning(MEM, 4, claims(node))) == [owner("first"), owner("second")]


def test_a_pod_begins_with_its_first_container_that_asks():
    node = in_force(Mode.SHARE).pods(pod_json("a", {}, {MEM: 2}, {MEM: 4}))
    assert owners(beginning(MEM, 2, claims(node))) == [owner("a", "main-1")]
    assert owners(beginning(MEM, 4, claims(node))) == []
    init = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 4}, init=({MEM: 2},)))
    assert owners(beginning(MEM, 4, claims(init))) == []
    assert owners(beginning(MEM, 2, claims(init))) == [owner("a", "init-0")]


def test_a_pod_may_begin_with_either_resource_of_its_first_container():
    node = in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30}))
    assert owners(beginning(MEM, 2, claims(node))) == owners(beginning(CORE, 30, claims(node))) == [owner("a")]


def test_who_holds_it_by_the_book_or_was_given_it_was_served():
    ids, more = unit_ids(0, Kind.MEMORY_SHARE, 0, 1), unit_ids(0, Kind.MEMORY_SHARE, 2, 3)
    node = in_force(Mode.SHARE).pods(*(pod_json(name, {MEM: 2}, created=name) for name in "abc"))
    node.holdings(holding("a", ids))
    assert owners(beginning(MEM, 2, claims(node))) == [owner("b"), owner("c")]
    given = handout(owner("b"), more)
    assert owners(beginning(MEM, 2, claims(node, given))) == [owner("c")]
    assert len(owners(beginning(MEM, 2, claims(node, given, free=ids | more)))) == 3, "offered again: given back"


def test_a_pod_of_which_any_container_has_units_does_not_begin():
    """Kubelet's book does not list init containers: that one seems unserved is no sign that it is."""
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 4}, init=({MEM: 2},)), pod_json("b", {MEM: 2}))
    node.holdings(holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2, 3)))
    assert owners(beginning(MEM, 2, claims(node))) == [owner("b")]


def test_a_container_with_one_of_its_two_resources_does_not_begin_with_the_other():
    node = in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30}))
    given = handout(owner("a"), unit_ids(0, Kind.CORE_CORE_MEM, *range(30)), CORE)
    assert owners(beginning(MEM, 2, claims(node, given))) == [], "it can only go on, on the GPU of its compute"


def test_ended_pods_begin_nothing():
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 2}, phase="Failed"))
    assert owners(beginning(MEM, 2, claims(node))) == []


# -- a pod that goes on ----------------------------------------------------------------------------------------


def test_the_second_resource_is_asked_for_the_same_container():
    kubelet = Kubelet(
        in_force(Mode.CORE_MEM).pods(
            pod_json("a", {MEM: 2, CORE: 30}, created="1"), pod_json("b", {MEM: 2, CORE: 30}, created="2")
        )
    )
    kubelet.gives(owner("b"), MEM, 2)
    found = kubelet.admission.candidates(CORE, 30, kubelet.claims)
    assert owners(found) == [owner("b")]
    assert found[0].first == kubelet.given[0]


def test_a_container_is_not_asked_for_the_same_resource_twice():
    kubelet = Kubelet(
        in_force(Mode.CORE_MEM).pods(
            pod_json("a", {MEM: 2, CORE: 2}, created="1"), pod_json("b", {MEM: 2, CORE: 2}, created="2")
        )
    )
    kubelet.gives(owner("a"), MEM, 2)
    assert kubelet.asks(MEM, 2) == [owner("b")], "a was given up"


def test_the_next_container_follows_when_one_has_everything():
    kubelet = Kubelet(
        in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30}, {MEM: 3}), pod_json("b", {MEM: 3}))
    )
    kubelet.gives(owner("a"), CORE, 30).gives(owner("a"), MEM, 2)
    assert kubelet.asks(MEM, 3)[0] == owner("a", "main-1")


def test_another_pod_follows_when_one_has_everything():
    kubelet = Kubelet(in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2}), pod_json("b", {MEM: 2, CORE: 30})))
    kubelet.gives(owner("a"), MEM, 2)
    found = kubelet.admission.candidates(CORE, 30, kubelet.claims)
    assert owners(found) == [owner("b")]
    assert found[0].first is None, "what a got is not the other half of what b gets"


def test_a_call_that_fits_nowhere_in_the_pod_begins_another():
    kubelet = Kubelet(in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30}), pod_json("b", {CORE: 50})))
    kubelet.gives(owner("a"), MEM, 2)
    assert kubelet.asks(CORE, 50) == [owner("b")]


def test_units_of_an_init_container_go_to_the_next_container_of_its_pod_before_any_others():
    kubelet = Kubelet(
        in_force(Mode.SHARE).pods(pod_json("a", {MEM: 4}, {MEM: 4}, init=({MEM: 2},)), pod_json("b", {MEM: 4}))
    )
    kubelet.gives(owner("a", "init-0"), MEM, 2)
    handed_on = kubelet.given[0].ids
    assert kubelet.carries(MEM, 4, handed_on) == [owner("a")]
    assert kubelet.carries(MEM, 4, ()) == kubelet.carries(MEM, 4, sorted(handed_on)[:1]) == []
    kubelet.gives(owner("a"), MEM, 4, handed_on)
    assert kubelet.carries(MEM, 4, ()) == [owner("a", "main-1")], "the first container has kept its own"


def test_an_admission_of_long_ago_is_over():
    kubelet = Kubelet(in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30})))
    kubelet.gives(owner("a"), MEM, 2)
    late = claims(kubelet.node, *kubelet.given, now=0.5 + PAIR_S)
    assert all(c.first is None for c in kubelet.admission.candidates(CORE, 30, late))


def test_a_pod_that_has_gone_does_not_go_on():
    kubelet = Kubelet(in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30})))
    kubelet.gives(owner("a"), MEM, 2)
    kubelet.node.pods(pod_json("b", {MEM: 1, CORE: 30}))
    found = kubelet.admission.candidates(CORE, 30, kubelet.claims)
    assert [(c.owner, c.first) for c in found] == [(owner("b"), None)]


# -- what a candidate wants ------------------------------------------------------------------------------------


def test_an_init_container_wants_room_for_all_that_comes_after_it():
    node = in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 7, CORE: 10}, {MEM: 3, CORE: 60}, init=({MEM: 2},)))
    (first,) = beginning(MEM, 2, claims(node))
    assert (first.room(MEM), first.other(MEM, node.snap.sold)) == (7, 60)


def test_an_app_container_wants_its_own_other_resource():
    node = in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30}, {MEM: 9, CORE: 90}))
    (first,) = beginning(MEM, 2, claims(node))
    assert (first.room(MEM), first.other(MEM, node.snap.sold)) == (0, 30)
    assert first.other(MEM, {MEM: Kind.MEMORY_SHARE}) == 0


def test_containers_after_an_init_container_are_pinned_to_its_gpu_but_not_those_after_a_sidecar():
    for pod, before, pinned in (
        (pod_json("a", {MEM: 7}, init=({MEM: 2},)), "init-0", (uuid(0),)),
        (pod_json("a", {MEM: 7}, sidecar=({MEM: 2},)), "side-0", ()),
    ):
        kubelet = Kubelet(in_force(Mode.SHARE).pods(pod)).gives(owner("a", before), MEM, 2)
        (after,) = kubelet.admission.candidates(MEM, 7, kubelet.claims)
        assert (after.owner, after.pinned) == (owner("a"), pinned)


# -- the label gpu-count ---------------------------------------------------------------------------------------

SHARED = in_force(Mode.SHARE).snap.sold


def labelled(label: str | None, **more):
    return parse_pod(pod_json("a", {MEM: 6, CORE: 30}, labels={} if label is None else {COUNT: label}, **more))


@pytest.mark.parametrize(("label", "count"), [(None, 1), ("1", 1), ("2", 2), ("3", 3), ("02", 2), ("6", 6)])
def test_the_label_says_over_how_many_gpus(label, count):
    assert gpu_count(labelled(label), MEM, 6, SHARED) == count


@pytest.mark.parametrize("label", ["0", "00", "", "two", "-1", "1.5", " 2", "²", "٣", "9" * 63])
def test_a_label_that_is_no_number_of_gpus_is_refused(label):
    with pytest.raises(Refusal, match="ml/a.*(is not a number of GPUs|ask for a multiple)") as caught:
        gpu_count(labelled(label), MEM, 6, SHARED)
    assert caught.value.reason is Reason.GPU_COUNT


def test_a_label_that_does_not_divide_the_units_is_refused():
    with pytest.raises(Refusal, match="ask for a multiple of 4"):
        gpu_count(labelled("4"), MEM, 6, SHARED)


@pytest.mark.parametrize(("resource", "size"), [(MEM, 6), (CORE, 30)])
def test_a_spread_in_core_mem_is_refused(resource, size):
    with pytest.raises(Refusal, match="one container, one GPU"):
        gpu_count(labelled("2"), resource, size, in_force(Mode.CORE_MEM).snap.sold)
    assert gpu_count(labelled("1"), resource, size, in_force(Mode.CORE_MEM).snap.sold) == 1


def test_the_label_is_nothing_to_whole_gpus():
    assert gpu_count(labelled("x"), WHOLE, 1, in_force(Mode.TOPOLOGY).snap.sold) == 1


@pytest.mark.parametrize(
    ("label", "count", "asked"), [("2", 2, True), ("2", 3, False), ("02", 2, True), ("x", 2, False)]
)
def test_a_spread_was_asked_by_a_pod_of_that_size(label, count, asked):
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 6}, labels={COUNT: label}))
    assert spread_was_asked(MEM, 6, count, node.snap) is asked
    assert not spread_was_asked(MEM, 4, count, node.snap)


# -- what kubelet's book says of a pod -----------------------------------------------------------------------------


def booked(node: Life, resource: str, size: int, *held: tuple[str, str, int]) -> list[tuple[str, int]]:
    """Container and number of earlier handouts of whoever may ask; `held` are container, resource and amount."""
    kinds = node.snap.sold
    holdings = [
        Holding(owner("a", container), name, unit_ids(0, kinds[name], *range(10 * n, 10 * n + amount)))
        for n, (container, name, amount) in enumerate(held)
    ]
    (pod,) = node.snap.pods
    found = at_book(pod, holdings, resource, size, claims(node))
    return [(c.owner.container, len(c.trail)) for c in found]


def test_a_container_asks_when_all_before_it_have_what_they_ask_for_and_none_after_it():
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 4}, {MEM: 4}, {MEM: 2}, sidecar=({MEM: 4},)))
    assert booked(node, MEM, 4) == [("side-0", 0)]
    assert booked(node, MEM, 4, ("side-0", MEM, 4)) == [("main", 1)]
    assert booked(node, MEM, 2, ("side-0", MEM, 4)) == []
    assert booked(node, MEM, 4, ("side-0", MEM, 4), ("main", MEM, 4)) == [("main-1", 2)]
    everything = [("side-0", MEM, 4), ("main", MEM, 4), ("main-1", MEM, 4), ("main-2", MEM, 2)]
    assert booked(node, MEM, 2, *everything[:3]) == [("main-2", 3)]
    assert booked(node, MEM, 2, *everything) == booked(node, MEM, 4, *everything) == []
    assert booked(node, MEM, 4, ("main", MEM, 4)) == [], "kubelet does not skip a sidecar"


def test_an_ordinary_init_container_may_have_asked_or_not():
    node = in_force(Mode.SHARE).pods(pod_json("a", {MEM: 4}, init=({MEM: 4},)))
    assert booked(node, MEM, 4) == [("init-0", 0), ("main", 0)]
    assert booked(node, MEM, 4, ("main", MEM, 4)) == []


def test_either_resource_of_a_container_comes_first():
    node = in_force(Mode.CORE_MEM).pods(pod_json("a", {MEM: 2, CORE: 30}, {MEM: 2}))
    assert booked(node, MEM, 2) == booked(node, CORE, 30) == [("main", 0)]
    assert booked(node, MEM, 2, ("main", CORE, 30)) == booked(node, CORE, 30, ("main", MEM, 2)) == [("main", 1)]
    assert booked(node, MEM, 2, ("main", MEM, 2)) == [], "its compute comes before the next container's memory"
