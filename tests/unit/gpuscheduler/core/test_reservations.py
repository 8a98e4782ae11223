"""Reservations: what they count on which node, when they end, and what a bound pod keeps."""

import pytest

from gpuscheduler.core.choose_gpus import Choice
from gpuscheduler.core.cluster_usage import ClusterUsage
from gpuscheduler.core.constraints.resources import NO_RESOURCES, Resources
from gpuscheduler.core.gpu_request import Amounts
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.reservations import Reservations
from tests.unit.gpuscheduler.core.api_objects import pod, pod_object, shared_node

FIRST, SECOND = ((Choice(((minor, Amounts(4, 0)),), {})) for minor in (0, 1))


@pytest.fixture
def usage():
    made = ClusterUsage()
    for name in ("n1", "n2"):
        made.node_seen(shared_node(name))
    return made


def free(usage):
    return {name: [amounts.memory for amounts in node.free] for name, node in usage.nodes.items()}


def test_the_same_gpus_reserved_again_free_nothing(usage):
    """Whenever something is free, all that wait are looked at again."""
    reservations, asked = Reservations(usage, {}), pod(mem=4)
    reservations.keep(asked, {"n1": FIRST}, 1.0)
    before = usage.frees
    reservations.keep(asked, {"n1": FIRST}, 2.0, sent=True)
    assert usage.frees == before
    assert free(usage) == {"n1": [6, 10], "n2": [10, 10]}
    reservations.keep(asked, {"n1": SECOND}, 2.0)
    assert usage.frees == before + 1
    assert free(usage) == {"n1": [10, 6], "n2": [10, 10]}


def test_a_bound_pod_keeps_its_gpus_when_its_reservation_ends(usage):
    """The reservation may be on several nodes, of which kube-scheduler took one."""
    waiting = pod("p", uid="u", mem=4)
    pods = {"u": waiting}
    reservations = Reservations(usage, pods)
    reservations.keep(waiting, {"n1": FIRST, "n2": FIRST}, 1.0)
    pods["u"] = pod("p", uid="u", mem=4, on="n1")
    before = usage.frees
    reservations.end(["u"])
    assert free(usage) == {"n1": [6, 10], "n2": [10, 10]}
    assert usage.frees == before + 1
    reservations.keep(pods["u"], {"n2": SECOND}, 1.0)
    assert free(usage) == {"n1": [6, 10], "n2": [10, 6]}


def test_a_reservation_ends_at_its_time_and_the_next_end_is_the_first(usage):
    reservations = Reservations(usage, {})
    assert reservations.next_end() is None
    for name, until in (("a", 2.0), ("b", 1.0)):
        reservations.keep(pod(name, uid=name, mem=4), {"n1": FIRST}, until)
    assert reservations.next_end() == 1.0
    for now, left in ((0.9, 2), (1.0, 1), (1.9, 1), (2.0, 0)):
        reservations.lapse(now)
        assert len(reservations) == left, now
    assert free(usage) == {"n1": [10, 10], "n2": [10, 10]}


def test_what_the_api_server_has_bound_is_marked(usage):
    reservations = Reservations(usage, {})
    kept = reservations.keep(pod("p", uid="u", mem=4), {"n1": FIRST}, 1.0, sent=True)
    assert (reservations.get("u"), kept.sent, kept.bound) == (kept, True, False)
    for uid in ("u", "other"):
        reservations.bound(uid)
    assert reservations.get("u").bound
    assert reservations.get("other") is None
    assert free(usage) == {"n1": [6, 10], "n2": [10, 10]}


def test_what_may_be_bound_is_not_given_back(usage):
    reservations = Reservations(usage, {})
    for name, is_sent in (("sent", True), ("kept", False)):
        reservations.keep(pod(name, uid=name, mem=4), {"n1": FIRST}, 5.0, sent=is_sent)
    assert [reservations.may_be_bound(uid) for uid in ("sent", "kept", "other")] == [5.0, None, None]
    reservations.give_back(["sent", "kept", "other"])
    assert free(usage) == {"n1": [6, 10], "n2": [10, 10]}
    reservations.end(["sent"])
    assert free(usage) == {"n1": [10, 10], "n2": [10, 10]}


def test_what_is_reserved_counts_for_cpu_and_memory_once(usage):
    """kube-scheduler counts a pod from the time on when it has chosen its node."""
    made = pod_object("p", uid="u", mem=4)
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1500m", "memory": "7"}
    waiting = pod_facts(made)
    pods = {"u": waiting}
    reservations = Reservations(usage, pods)
    reservations.keep(waiting, {"n1": FIRST, "n2": FIRST}, 1.0)
    reservations.keep(waiting, {"n1": FIRST, "n2": FIRST}, 2.0)
    counted = Resources(cpu=1500, memory=7, pods=1)
    assert [usage.nodes[name].used for name in ("n1", "n2")] == [counted, counted]
    made["spec"]["nodeName"] = "n1"
    pods["u"] = pod_facts(made)
    usage.occupy("u", "n1", pods["u"].occupant)
    reservations.end(["u"])
    assert [usage.nodes[name].used for name in ("n1", "n2")] == [counted, NO_RESOURCES]
    usage.release("u")
    assert usage.nodes["n1"].used == NO_RESOURCES
