"""Any author of pods may write a pod whose containers are hard to place: it must not delay the pods of others."""

import pytest

from gpuscheduler.core.constraints.tries import CALL_TRIES
from gpuscheduler.core.gpu_request import MOST_CONTAINERS, Amounts
from gpuscheduler.core.pod_facts import MOST_READ, pod_facts
from gpuscheduler.core.scheduling import Scheduling
from gpuscheduler.core.waiting.wake_ups import FIRST_S
from tests.unit.gpuscheduler.core.api_objects import LeastFree, container, pod, pod_object, shared_node
from tests.unit.gpuscheduler.core.work import calls_of

NODES, GPUS, UNITS = 1000, 8, 20
NAMES = {f"n{n}": None for n in range(NODES)}.keys()
MOST_CALLS = 60 * CALL_TRIES + 20 * NODES
"""Function calls of a filter call: about 10 ms. A search of 1,000 sets on each of the nodes has ten million."""
BOTH = {
    "one too many equal ones": [9] * 17,
    "equal ones that fit": [9] * 16,
    "as many as may ask": [1] * MOST_CONTAINERS,
    "more than may ask": [1] * (MOST_CONTAINERS + 1),
    "thousands": [1] * 3000,
    "unequal ones that fill the node": [7, 6, 5, 4, 3] * 6 + [5, 5],
    "unequal ones that do not fit": [11] * 8 + [7] * 8 + [3] * 4,
    "unequal ones, most of which fit": [13, 9, 8, 7, 6, 5, 4] * 3 + [2] * 2,
}


@pytest.fixture(scope="module")
def cluster():
    return full_of(lambda n: shared_node(f"n{n}", GPUS, UNITS))


@pytest.fixture(scope="module")
def uneven():
    """No two nodes have equal GPUs free, so that what one search finds helps no other."""
    made = full_of(lambda n: shared_node(f"n{n}", GPUS, UNITS))
    for n in range(NODES):
        for gpu, units in enumerate((n % 7, n // 7 % 7, n // 49 % 7, n // 343 % 7)):
            annotation = {"scheduler.framework.gpushare.allocation": f'{{"0":{{"{gpu}":{units}}}}}'}
            if units:
                made.pod_seen(pod(mem=units, on=f"n{n}", annotations=annotation), 0.0)
    return made


def full_of(make):
    made = Scheduling(LeastFree())
    for n in range(NODES):
        made.node_seen(make(n))
    made.synced(0.0)
    return made


def pod_of(units, **given):
    return pod_object(None, *[container(f"c{n}", mem=one) for n, one in enumerate(units)], **given)


@pytest.mark.parametrize("units", BOTH.values(), ids=BOTH)
@pytest.mark.parametrize("nodes", ["cluster", "uneven"])
def test_a_pod_with_many_containers_costs_a_call_a_bounded_amount_of_work(nodes, units, request):
    scheduling, asked = request.getfixturevalue(nodes), pod_facts(pod_of(units))
    scheduling.filter(pod(mem=1), NAMES, 0.0)
    for _ in range(3):
        calls, answer = calls_of(lambda: scheduling.filter(asked, NAMES, 0.0))
        assert calls < MOST_CALLS
        assert bool(answer.nodes) is not bool(answer.failed or answer.unresolvable)
    scheduling.pod_gone(asked.uid, 0.0)
    scheduling.reservations.end([asked.uid])


@pytest.mark.parametrize("units", BOTH.values(), ids=BOTH)
def test_a_preemption_for_it_is_bounded_as_well(uneven, units):
    asked = pod_facts(pod_of(units, priority=5))
    proposed = {f"n{n}": list(uneven.usage.nodes[f"n{n}"].users)[:1] for n in range(NODES)}
    calls, _ = calls_of(lambda: uneven.preempt(asked, proposed, 0.0))
    assert calls < 2 * MOST_CALLS


@pytest.mark.parametrize("count", [(100, 0), (0, 120), (60, 60)])
def test_what_a_pod_asks_for_is_read_in_time_that_grows_with_its_containers(count):
    def read(containers, init):
        made = pod_of([1] * containers or [0])
        made["spec"]["initContainers"] = [container(f"i{n}", mem=1 + n % 3) for n in range(init)]
        return calls_of(lambda: pod_facts(made))[0]

    few, many = (read(*(n * part for n in count)) for part in (1, 10))
    assert many < 12 * few


MANY = {
    "all ask": ([{"mem": 1}] * 5000, []),
    "init containers, too": ([{"mem": 1}] * 3000, [{"mem": 1}] * 3000),
    "the last one asks": ([*[{}] * 5000, {"whole": 1}], []),
    "the first init container asks": ([{}] * 5000, [{"core": 10}]),
    "one asks for the number of GPUs": ([*[{}] * 5000, {"count": 1}], []),
    "none asks": ([{}] * 5000, []),
}


@pytest.mark.parametrize(("containers", "init"), MANY.values(), ids=MANY)
def test_reading_thousands_of_containers_in_a_call_is_bounded_as_well(cluster, containers, init):
    made = pod_object(None, *[container(f"c{n}", **limits) for n, limits in enumerate(containers)], priority=5)
    made["spec"]["initContainers"] = [container(f"i{n}", **limits) for n, limits in enumerate(init)]
    count = len(containers) + len(init)
    calls, answer = calls_of(lambda: cluster.filter(pod_facts(made), ["n1"], 0.0))
    assert calls < 12 * count
    calls, victims = calls_of(lambda: cluster.preempt(pod_facts(made), {"n1": []}, 0.0))
    assert calls < 12 * count
    if any([*containers, *init]):
        text = f"node(s) cannot serve a pod that has {count} containers; at most {MOST_READ} of a pod that asks for GPUs are read"
        assert (answer.unresolvable, victims) == ({"n1": text}, {})
    else:
        assert answer.nodes == ("n1",)


def test_all_containers_of_a_pod_on_a_node_count():
    made = pod_object(None, *[container(f"c{n}", **{"mem": 1} if n == 5000 else {}) for n in range(5001)], on="n1")
    assert pod_facts(made).request.need == Amounts(1)


def test_more_containers_than_may_ask_are_refused_with_the_number(cluster):
    answer = cluster.filter(pod_facts(pod_of([1] * 129)), ["n1"], 0.0)
    assert answer.unresolvable == {
        "n1": "node(s) cannot serve a pod that asks for GPU units in 129 containers; at most 128 of a pod may ask for them"
    }


def test_a_pod_whose_search_gave_up_hears_it_and_is_tried_on_the_other_nodes_later():
    """The last of many nodes has room. Each call goes on where the one before ended."""
    scheduling = Scheduling(LeastFree())
    names = [f"n{n}" for n in range(90)]
    for n, name in enumerate(names):
        scheduling.node_seen(shared_node(name, GPUS, UNITS + (n == 89), core_step=1 + n))
    scheduling.synced(0.0)
    asked = pod_facts(pod_of([11] * 8 + [7] * 8 + [3] * 4))
    scheduling.pod_seen(asked, 0.0)
    calls = 1
    while not (answer := scheduling.filter(asked, names, 0.0)).nodes:
        calls += 1
        text = f"node(s) had no room found in {CALL_TRIES} tries for 20 containers that need several GPUs"
        assert set(answer.failed.values()) == {text}
        assert scheduling.next_due(0.0) <= 2 * FIRST_S, "kube-scheduler asks again, although nothing changes"
    assert answer.nodes == ("n89",)
    assert 1 < calls < 90


def test_a_named_node_costs_no_look_at_all_the_others(cluster):
    asked = pod(mem=3)
    cluster.filter(asked, NAMES, 0.0)
    calls, answer = calls_of(lambda: cluster.filter(asked, ["n7"], 0.0))
    assert answer.nodes == ("n7",)
    assert calls < NODES
    cluster.reservations.end([asked.uid])
