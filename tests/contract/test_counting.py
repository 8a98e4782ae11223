"""Kubelet 1.18, which asks nobody which units to take: its ids are counts, and the agent chooses every GPU."""

import json
import random
import time
from collections.abc import Callable, Mapping

import pytest

from gpuagent.allocator.allocator import Allocator
from gpuagent.domain.pods.annotations import CORE_ANNOTATION, MEMORY_ANNOTATION, V1_ASSIGNED, V1_GPU
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.domain.snapshot import Snapshot
from standin.kubelet.pods import Container, Pod
from tests.contract.harness import CORE, MEM, WHOLE, Isolating, Node, box, pod, wait_for
from tests.contract.test_decisions import by_v1, by_v2

MakeNode = Callable[..., Node]


def counting(node: MakeNode, mode: str = "share", gpus: int = 4, **settings: object) -> Node:
    """A node of 16 GiB GPUs, each unit's id picked at random by kubelet."""
    one = node("1.18", box(gpus, 16), labels={MODE_LABEL: mode}, seed=18)
    one.run(Isolating(), **settings)
    offered = {"share": {"mem": gpus * 16}, "core_mem": {"mem": gpus * 16, "core": gpus * 100}}
    one.offers(**offered.get(mode, {"whole": gpus}))
    return one


def admit(one: Node, asked: Pod, annotations: Mapping[str, str] | None = None) -> dict[str, list[int]]:
    """Minor numbers of each container's GPUs, by its environment."""
    outcome = one.kubelet.admit(one.bind(asked, annotations=annotations))
    assert outcome, outcome.failed
    return {name: gpus_of(one, granted.env) for name, granted in outcome.containers.items()}


def gpus_of(one: Node, env: Mapping[str, str]) -> list[int]:
    return [one.uuids.index(uuid) for uuid in env["NVIDIA_VISIBLE_DEVICES"].split(",")]


def written(one: Node, name: str) -> dict[str, str]:
    """The pod's annotations once the agent has taken it over."""

    def found() -> dict[str, str]:
        (body,) = (p for p in one.server.pods() if p["metadata"]["name"] == name)
        return dict(body["metadata"].get("annotations") or {})

    assert one.server.wait(lambda: found().get(V1_ASSIGNED) == "true"), found()
    return found()


def test_the_node_says_that_it_runs_so(node: MakeNode) -> None:
    one = counting(node)
    (agent,) = one.agents
    wait_for(lambda: [p["reason"] for p in agent.status()["problems"]] == ["PreferredAllocationUnsupported"])
    assert "kubelet v1.18.0 picks device ids" in agent.status()["problems"][0]["message"]

    def condition() -> dict[str, str]:
        found = one.server.node()["status"]["conditions"]
        return next((c for c in found if c["type"] == "GPUAgentReady"), {})

    assert one.server.wait(lambda: condition().get("reason") == "Ready"), condition()
    assert condition()["status"] == "True"
    assert one.server.wait(lambda: "kubelet v1.18.0 picks device ids" in condition()["message"]), condition()


def test_a_share_is_on_one_gpu_and_gpus_are_filled_one_after_the_other(node: MakeNode) -> None:
    one = counting(node)
    assert [admit(one, pod(f"p{n}", {MEM: 8}))["c0"] for n in range(8)] == [[0], [0], [1], [1], [2], [2], [3], [3]]


def test_what_no_gpu_has_is_refused_though_kubelet_has_it(node: MakeNode) -> None:
    one = counting(node, gpus=2)
    assert [admit(one, pod(f"p{n}", {MEM: 10}))["c0"] for n in range(2)] == [[0], [1]]
    outcome = one.kubelet.admit(one.bind(pod("late", {MEM: 8})))
    assert "the node has 12 free but no single GPU has that much (free: GPU 0: 6, GPU 1: 6)" in outcome.failed


@pytest.mark.parametrize("family", ["older", "newer"])
def test_every_pod_is_where_a_scheduler_put_it_and_annotations_say_so(node: MakeNode, family: str) -> None:
    """Pods of different sizes, admitted in another order than they were bound in."""
    one = counting(node)
    rng = random.Random(family)
    chosen = dict(zip(range(1, 9), rng.sample([0, 0, 1, 1, 2, 2, 3, 3], 8), strict=True))
    pods = {
        size: one.bind(
            pod(f"p{size}", {MEM: size}),
            annotations=by_v1(gpu, size) if family == "older" else by_v2(gpu, size=size),
        )
        for size, gpu in chosen.items()
    }
    for size in rng.sample(sorted(pods), len(pods)):
        outcome = one.kubelet.admit(pods[size])
        assert outcome, outcome.failed
        assert gpus_of(one, outcome.containers["c0"].env) == [chosen[size]]
        one.kubelet.start_container(pods[size], "c0")
    if family == "older":
        assert {size: written(one, f"p{size}")[V1_GPU] for size in chosen} == {s: str(g) for s, g in chosen.items()}


def test_equal_pods_in_flight_get_what_was_chosen_for_one_of_them(node: MakeNode) -> None:
    one = counting(node)
    chosen = [0, 1, 1, 2, 3, 3]
    pods = [one.bind(pod(f"p{n}", {MEM: 3}), annotations=by_v1(gpu, 3)) for n, gpu in enumerate(chosen)]
    has = {}
    for asked in random.Random(3).sample(pods, len(pods)):
        has[asked.name] = gpus_of(one, one.kubelet.admit(asked).containers["c0"].env)[0]
        one.kubelet.start_container(asked, "c0")
    assert sorted(has.values()) == chosen
    assert {name: written(one, name)[V1_GPU] for name in has} == {name: str(gpu) for name, gpu in has.items()}


def test_memory_and_compute_of_a_container_are_on_the_gpu_that_was_chosen(node: MakeNode) -> None:
    one = counting(node, "core_mem")
    annotations = {MEMORY_ANNOTATION: '{"0":{"2":4}}', CORE_ANNOTATION: '{"0":{"2":30}}'}
    outcome = one.kubelet.admit(one.bind(pod("p", {MEM: 4, CORE: 30}), annotations=annotations))
    assert outcome, outcome.failed
    assert gpus_of(one, outcome.containers["c0"].env) == [2]
    assert admit(one, pod("q", {MEM: 4, CORE: 80}))["c0"] != [2]


@pytest.mark.parametrize("seed", range(4))
def test_pods_of_equal_memory_and_unequal_compute_are_never_torn_apart(node: MakeNode, seed: int) -> None:
    """The agent takes an older pod for the one in admission, until the call for compute."""
    one = counting(node, "core_mem")
    rng = random.Random(seed)
    pods = [one.bind(pod(f"p{n}", {MEM: 3, CORE: rng.randint(1, 18) * 5})) for n in range(6)]
    for asked in rng.sample(pods, len(pods)):
        outcome = one.kubelet.admit(asked)
        assert not outcome or not outcome.containers["c0"].conflicts


@pytest.mark.parametrize("seed", range(2))
def test_a_container_is_never_torn_apart_whenever_the_agent_sees_its_pod(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The watch shows the pod before, between or after the calls for its containers, or never."""
    publish, rng = Allocator.publish, random.Random(seed)

    def publish_late(allocator: Allocator, snapshot: Snapshot) -> None:
        time.sleep(rng.random() * 0.012)
        publish(allocator, snapshot)

    monkeypatch.setattr(Allocator, "publish", publish_late)
    one = counting(node, "core_mem", max_pods_per_gpu=100)
    former: Pod | None = None
    for number in range(60):
        memory = rng.randint(1, 4)
        containers = [{MEM: memory, CORE: 5 * rng.randint(1, 5)} for _ in range(rng.randint(1, 2))]
        asked = one.bind(pod(f"p{number}", *containers), is_answered_from=False)
        outcome = one.kubelet.admit(asked)
        assert not [granted.conflicts for granted in outcome.containers.values() if granted.conflicts]
        if former:
            one.end(former)
        former = asked


def test_whole_gpus_are_the_best_set_or_the_one_that_was_named(node: MakeNode) -> None:
    one = counting(node, "topology")
    assert admit(one, pod("p", {WHOLE: 2}), {"topology.kubernetes.io/gpu-group": "1,3"})["c0"] == [1, 3]
    assert admit(one, pod("q", {WHOLE: 2}))["c0"] == [0, 2]


def test_init_and_app_containers_of_a_pod_share_a_gpu(node: MakeNode) -> None:
    one = counting(node)
    first = [Container("init", {MEM: 6}), Container("side", {MEM: 2}, restartable=True)]
    on = admit(
        one,
        pod("p", {MEM: 4}, {MEM: 3}, init=first),
        {MEMORY_ANNOTATION: '{"0":{"3":4},"1":{"3":3}}'},
    )
    assert on == {"init": [3], "side": [3], "c0": [3], "c1": [3]}


def test_a_pod_with_an_init_container_and_an_equal_one_in_any_order(node: MakeNode) -> None:
    """Kubelet picks an init container's ids for its pod's next container: that tells the two pods apart."""
    one = counting(node, gpus=2)
    first = pod("first", {MEM: 16}, init=[Container("init", {MEM: 16})])
    pods = [one.bind(first, annotations=by_v1(1, 16)), one.bind(pod("second", {MEM: 16}), annotations=by_v1(0, 16))]
    has = [one.kubelet.admit(asked) for asked in reversed(pods)]
    assert all(has), [outcome.failed for outcome in has]
    on = [[gpus_of(one, granted.env) for granted in outcome.containers.values()] for outcome in has]
    assert on == [[[1]], [[0], [0]]]


def test_the_checkpoint_outlives_agent_and_kubelet(node: MakeNode) -> None:
    """What an id stands for is read from kubelet's checkpoint: nothing is allocated twice, nothing is lost."""
    one = counting(node, gpus=2)
    assert admit(one, pod("a", {MEM: 10}), by_v1(1, 10))["c0"] == [1]
    assert admit(one, pod("b", {MEM: 4}), by_v1(0, 4))["c0"] == [0]
    one.stop(one.agents[0])
    one.kubelet.stop()
    one.kubelet.start()
    agent = one.run(Isolating())
    one.offers(mem=32)
    wait_for(lambda: agent.state.holdings.listed is not None)
    assert admit(one, pod("c", {MEM: 6}))["c0"] == [1]
    assert admit(one, pod("d", {MEM: 12}))["c0"] == [0]
    assert "Available: 0" in one.kubelet.admit(one.bind(pod("e", {MEM: 1}))).failed


def test_units_of_a_pod_that_has_ended_are_given_again(node: MakeNode) -> None:
    one = counting(node, gpus=2)
    for n in range(20):
        asked = one.bind(pod(f"p{n}", {MEM: 16}), annotations=by_v1(n % 2, 16))
        outcome = one.kubelet.admit(asked)
        assert outcome, outcome.failed
        assert gpus_of(one, outcome.containers["c0"].env) == [n % 2]
        one.end(asked)


def test_a_container_starts_with_what_it_was_given_after_the_agents_restart(node: MakeNode) -> None:
    one = counting(node, "core_mem")
    asked = one.bind(pod("a", {MEM: 10, CORE: 20}), annotations=by_v1(3, 10))
    assert one.kubelet.admit(asked)
    one.stop(one.agents[0])
    driver = Isolating()
    one.run(driver)
    one.offers(mem=64, core=400)
    one.kubelet.start_container(asked, "c0")
    assert {str(owner) for owner in driver.verified} == {"default/a[c0]"}


def test_nothing_is_offered_before_the_checkpoint_can_be_read(node: MakeNode) -> None:
    """Without it nobody knows which units are held: what was given before would be given again."""
    one = counting(node, gpus=2)
    assert admit(one, pod("a", {MEM: 16}), by_v1(1, 16))["c0"] == [1]
    one.stop(one.agents[0])
    file = one.plugins / "kubelet_internal_checkpoint"
    kept = file.read_text()
    file.write_text(kept[: len(kept) // 2])
    agent = one.run(Isolating())
    wait_for(lambda: "PodResourcesUnavailable" in [p["reason"] for p in agent.status()["problems"]])
    assert one.amounts()[MEM] == 0
    file.write_text(kept)
    one.offers(mem=32)
    assert admit(one, pod("b", {MEM: 16}))["c0"] == [0]


def test_an_entry_that_cannot_be_read_costs_nobody_else(node: MakeNode) -> None:
    one = counting(node, gpus=2)
    assert admit(one, pod("a", {MEM: 16}), by_v1(1, 16))["c0"] == [1]
    one.stop(one.agents[0])
    file = one.plugins / "kubelet_internal_checkpoint"
    kept = json.loads(file.read_text())
    broken = {**kept["Data"]["PodDeviceEntries"][0], "ResourceName": "example.com/nic", "DeviceIDs": 7}
    kept["Data"]["PodDeviceEntries"].append(broken)
    file.write_text(json.dumps(kept))
    one.run(Isolating())
    one.offers(mem=32)
    assert admit(one, pod("b", {MEM: 16}))["c0"] == [0]


def test_the_checkpoint_is_read_when_one_pod_leaves_and_another_comes(node: MakeNode) -> None:
    """Both in one burst of the watch: there are as many pods as before."""
    one = counting(node, gpus=1)
    (agent,) = one.agents
    first = one.bind(pod("a", {MEM: 16}))
    assert one.kubelet.admit(first)
    wait_for(lambda: agent.state.pods.seen)
    one.kubelet.start_container(first, "c0")
    wait_for(lambda: agent.state.living_holdings)
    one.end(first)
    second = one.bind(pod("b", {MEM: 16}))
    wait_for(lambda: not agent.state.living_holdings)
    assert one.kubelet.admit(second)


def test_a_pod_that_nobody_has_shown_gets_one_gpu(node: MakeNode) -> None:
    """Its ids were of several pods that have ended: none of those is asked for again."""
    one = counting(node, gpus=2)
    before = [one.bind(pod(f"p{n}", {MEM: 8})) for n in range(4)]
    for asked in before:
        assert one.kubelet.admit(asked)
    for asked in before:
        one.end(asked)
    outcome = one.kubelet.admit(pod("static", {MEM: 16}))
    assert outcome, outcome.failed


def test_the_api_server_of_that_version_knows_what_it_is_asked(node: MakeNode) -> None:
    """Lists in pages and watches with bookmarks. The stand-in has no other group than `v1`, and these patches: merge and
    strategic merge."""
    one = counting(node)
    assert admit(one, pod("p", {MEM: 4}))
    written(one, "p")
    lists, watches = {"fieldSelector", "limit", "resourceVersion"}, {"watch", "allowWatchBookmarks", "timeoutSeconds"}
    assert one.server.parameters == lists | watches
    assert one.server.requests["patch nodes/status"]
    assert one.server.requests["patch pods"]
