"""Conformance checks 19 to 29: Allocate."""

import random
import threading
from collections.abc import Callable

import grpc
import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent.agent import loop
from gpuagent.allocator import refusal_events
from gpuagent.domain.sharing.mode import GPU_COUNT_LABEL, MODE_LABEL
from gpuagent.domain.sharing.units import MemoryUnit
from standin.kubelet.pods import Container, StartError
from standin.waiting import PATIENCE_S
from tests.contract.harness import (
    ALWAYS,
    CORE,
    EXCLUSIVE,
    MEM,
    VERSIONS,
    WHOLE,
    Isolating,
    Node,
    box,
    ids_on,
    in_thread,
    key,
    observe,
    pod,
    wait_for,
)

MakeNode = Callable[..., Node]

SOLD = {
    "share": [MEM],
    "cgpu": [MEM],
    "mps": [MEM],
    "core_mem": [MEM, CORE],
    "topology": [WHOLE],
    "default": [EXCLUSIVE],
}


def gpus_of(ids: object) -> set[str]:
    """Which GPUs ids are of."""
    return {str(i).partition("-")[0] for i in ids}  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", SOLD)
def test_19_one_container_gets_one_answer(node: MakeNode, mode: str) -> None:
    """Allocate of one container in any mode: exactly one container response."""
    one = node("1.36", box(1, 24))
    one.run(Isolating(), mode=mode, exclusive_resource=EXCLUSIVE)
    for resource in SOLD[mode]:
        assert one.kubelet.wait(lambda r=resource: bool(one.kubelet.allocatable(r)))  # type: ignore[misc]
        answer = one.allocate(resource, list(one.ids(resource))[: 5 if resource == CORE else 1])
        assert len(answer.container_responses) == 1
        assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == one.uuids[0]


@pytest.mark.parametrize("pods", ["unknown", "known", "late"])
@pytest.mark.parametrize("version", VERSIONS)
def test_20_memory_and_compute_of_a_container_are_on_one_gpu(node: MakeNode, version: str, pods: str) -> None:
    """core_mem, 4 GPUs, 200 containers with both resources, order of resources random, preferred allocation honoured
    (1.18 has none, and without an API server nobody tells that: a refusal is right there, a mixture never): memory
    and compute always on the same GPU; without API server, with one, and (40 containers, as each is waited for) where
    the agent's watch lags behind kubelet's."""
    with_api = pods != "unknown"
    one = node(version, box(4, 40), labels={MODE_LABEL: "core_mem"} if with_api else None, seed=20)
    agent = one.run(Isolating(), mode=None if with_api else "core_mem", max_pods_per_gpu=100)
    one.offers(mem=160, core=400)
    wait_for(lambda: agent.state.pods.known is with_api)
    wanted = 40 if pods == "late" else 200
    rng, served, living, number, refused = random.Random(20), 0, [], 0, []
    while served < wanted and number < 2 * wanted:
        number += 1
        size = rng.randint(1, 8)
        asked = pod(f"p{number}", *[{MEM: size, CORE: 5 * rng.randint(1, 5)} for _ in range(rng.randint(1, 2))])
        if pods == "known":
            asked = one.bind(asked)
        outcome = one.kubelet.admit(asked)
        if outcome:
            living.append(asked)
            for granted in outcome.containers.values():
                served += 1
                if version != "1.18":
                    assert len(gpus_of(granted.ids[MEM]) | gpus_of(granted.ids[CORE])) == 1
                assert len(granted.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == 1
                assert not granted.conflicts
        else:
            refused.append(outcome.failed)
            one.end(asked)
        while len(living) > 8 or (living and not outcome):
            one.end(living.pop(rng.randrange(len(living))))
            outcome = outcome or True  # one is enough
    if version != "1.18" or pods == "known":
        assert served >= wanted
        wrong = [text for text in refused if "but the container's" in text]
        assert not wrong
    assert not one.kubelet.crashes


@pytest.mark.parametrize("version", VERSIONS)
def test_21_init_sidecar_and_app_containers_share_ids(node: MakeNode, version: str) -> None:
    """A pod with init, sidecar and app container: repeated ids are accepted, all three start, answers for the same ids
    are equal."""
    one = node(version, box(1, 24))
    one.run()
    one.offers(mem=24)
    asked = pod("p", {MEM: 2}, init=[Container("init", {MEM: 4}), Container("sidecar", {MEM: 2}, restartable=True)])
    outcome = one.kubelet.admit(asked)
    assert outcome, outcome.failed
    ids = {name: granted.ids[MEM] for name, granted in outcome.containers.items()}
    assert ids["sidecar"] <= ids["init"]
    assert ids["c0"] <= ids["init"]
    for container, _ in asked.all_containers():
        one.kubelet.start_container(asked, container)
    assert one.allocate(MEM, sorted(ids["init"])) == one.allocate(MEM, sorted(ids["init"]))
    again = one.allocate(MEM, sorted(ids["c0"])).container_responses[0]
    assert dict(again.envs) == outcome.containers["c0"].env


def test_22_the_order_of_ids_does_not_matter(node: MakeNode) -> None:
    """Allocate twice with shuffled ids: the same answer."""
    one = node("1.36")
    one.run()
    one.offers(mem=160)
    ids = ids_on(one.uuids[1], one.ids(MEM))[:20]
    first = one.allocate(MEM, ids)
    for seed in range(5):
        random.Random(seed).shuffle(ids)
        assert one.allocate(MEM, ids) == first


def test_23_nonsense_is_refused_and_changes_nothing(node: MakeNode) -> None:
    """Unknown id, id of another resource, empty id list, no container: an error for people, never an empty answer,
    nothing changed. Two containers: two answers."""
    one = node("1.36", box(2, 24))
    agent = one.run(Isolating(), mode="core_mem")
    one.offers(mem=48, core=200)
    one.connected(agent)
    mine = ids_on(one.uuids[0], one.ids(MEM))
    before = agent.status(), one.ids(MEM), agent.allocator.occupancy().tracker
    for containers in (
        [["zzzzzzzzzz-mm-0"]],
        [["nonsense"]],
        [[""]],
        [[f"{key(one.uuids[0])}-mm-999"]],
        [[mine[0], "nonsense"]],
        [[]],
        [],
        [list(one.ids(CORE))[:1]],
    ):
        with pytest.raises(grpc.RpcError) as caught:
            one.allocate(MEM, *containers)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert MEM in caught.value.details()
    assert (agent.status(), one.ids(MEM), agent.allocator.occupancy().tracker) == before
    assert agent.allocator.in_flight.wait_idle(1)
    assert len(one.allocate(MEM, mine[:1], mine[1:2]).container_responses) == 2


def test_24_a_share_over_two_gpus_is_refused(node: MakeNode) -> None:
    """Ids on two GPUs in a sharing mode: an error that says where they are and what to do, never a silent single GPU."""
    one = node("1.36", box(2, 24))
    one.run()
    one.offers(mem=48)
    ids = [ids_on(uuid, one.ids(MEM))[0] for uuid in one.uuids]
    with pytest.raises(grpc.RpcError) as caught:
        one.allocate(MEM, ids)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert GPU_COUNT_LABEL in caught.value.details()


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_24_a_share_over_two_gpus_that_was_asked_for_gets_both(node: MakeNode, version: str) -> None:
    """The same with the pod label that asks for it: both GPUs, evenly."""
    one = node(version, box(2, 24), labels={MODE_LABEL: "share"})
    one.run()
    one.offers(mem=48)
    asked = one.bind(pod("wide", {MEM: 8}), labels={GPU_COUNT_LABEL: "2"})
    outcome = one.kubelet.admit(asked)
    assert outcome, outcome.failed
    granted = outcome.containers["c0"]
    assert [len(ids_on(uuid, granted.ids[MEM])) for uuid in one.uuids] == [4, 4]
    assert granted.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(one.uuids)
    assert granted.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert granted.env["ALIYUN_COM_GPU_MEM_POD"] == "8"


def test_24_two_whole_gpus_are_two_gpus(node: MakeNode) -> None:
    """The same with whole GPUs: both."""
    one = node("1.36", box(2, 24))
    one.run(mode="topology")
    one.offers(whole=2)
    (answer,) = one.allocate(WHOLE, list(one.ids(WHOLE))).container_responses
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(one.uuids)
    assert {d.host_path for d in answer.devices} >= {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"}


@pytest.mark.parametrize("fault", ["pause", "stop"])
def test_25_allocate_does_not_need_the_api_server(node: MakeNode, fault: str) -> None:
    """API server hanging, or unreachable: 50 Allocates, none waits for it, no error because of it."""
    one = node("1.36", labels={MODE_LABEL: "share"})
    one.run(max_pods_per_gpu=50)
    one.offers(mem=160)
    getattr(one.server, fault)()
    ids = ids_on(one.uuids[0], one.ids(MEM))
    for n in range(50):
        one.allocate(MEM, [ids[n]])
    asked = pod("p", {MEM: 4})
    assert one.kubelet.admit(asked)
    one.kubelet.start_container(asked, "c0")


@pytest.mark.parametrize("fault", ["pause", "stop"])
def test_25_an_agent_that_starts_without_api_server_serves_its_last_mode(node: MakeNode, fault: str) -> None:
    """The agent restarts while the API server hangs, or is unreachable: the remembered mode is served, and pods start."""
    one = node("1.36", labels={MODE_LABEL: "share"})
    first = one.run()
    one.offers(mem=160)
    one.stop(first)
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(MEM) == 0)
    getattr(one.server, fault)()
    one.run()
    one.offers(mem=160)
    asked = pod("p", {MEM: 4})
    assert one.kubelet.admit(asked)
    one.kubelet.start_container(asked, "c0")


@pytest.mark.parametrize("version", VERSIONS)
def test_26_leaked_streams_do_not_keep_allocate_waiting(node: MakeNode, version: str) -> None:
    """10 leaked streams per resource: Allocate is answered; kubelet's own stream stays and its amounts too."""
    one = node(version, box(2, 24))
    one.run()
    one.offers(mem=48)
    leaked = [one.kubelet.open_stream(resource) for resource in ALWAYS for _ in range(10)]
    assert all(stream.wait(lambda s=stream: bool(s.messages) or bool(s.ended)) for stream in leaked)  # type: ignore[misc]
    observe(0.5)
    one.offers(mem=48)
    assert len(one.allocate(MEM, list(one.ids(MEM))[:1]).container_responses) == 1
    assert one.kubelet.admit(pod("p", {MEM: 1}))
    assert not one.kubelet.ended


def test_27_a_request_of_many_ids_is_taken(node: MakeNode) -> None:
    """190,000 ids of 8 characters free and all requested: no size error on the plugin's side (they are unknown here,
    which is said); then as many real ones as one GPU has: 81,920."""
    one = node("1.36", box(1, 80))
    one.run(memory_unit=MemoryUnit(1))
    one.offers(mem=81920)
    many = [f"{n:08d}" for n in range(190_000)]
    for call in (lambda: one.prefer(MEM, many, len(many), many), lambda: one.allocate(MEM, many)):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    everything = list(one.ids(MEM))
    assert sorted(one.prefer(MEM, everything, len(everything), everything)) == sorted(everything)
    (answer,) = one.allocate(MEM, everything).container_responses
    assert answer.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "81920"


@pytest.mark.parametrize("version", VERSIONS)
def test_28_no_id_vanishes_under_a_running_allocate(node: MakeNode, version: str) -> None:
    """Allocate runs for 1 s (isolation driver), the mode is switched in the middle: no list without these ids until
    2 s after the answer; kubelet's crash detector is silent."""
    one = node(version, box(2, 24), labels={MODE_LABEL: "cgpu"})
    driver = Isolating()
    agent = one.run(driver)
    one.offers(mem=48)
    entered = threading.Event()

    def slow(_: object) -> None:
        entered.set()
        observe(1.0)

    driver.on_prepare = slow
    asked = pod("p", {MEM: 1})  # 1.18 picks at random, and a share stays on one GPU
    with in_thread(lambda: one.kubelet.admit(asked)) as result:
        assert entered.wait(PATIENCE_S)
        observe(0.3)
        one.label("topology")
        outcome = result()
    answered = agent.allocator.in_flight.now()[1]
    assert outcome, outcome.failed
    ids = outcome.containers["c0"].ids[MEM]
    assert one.kubelet.wait(lambda: not one.ids(MEM))
    without = [message for message in one.kubelet.lists(MEM)[1:] if not ids <= message.health.keys()]
    assert min(message.time for message in without) >= answered + 2.0
    assert not one.kubelet.crashes
    one.offers(whole=1)


def test_29_both_resources_agree_on_the_environment(node: MakeNode) -> None:
    """core_mem: what both answers of a container set, they set to the same value."""
    one = node("1.36", box(4, 24), seed=29, labels={MODE_LABEL: "core_mem"})
    one.run(Isolating())
    one.offers(mem=96, core=400)
    for n in range(8):
        outcome = one.kubelet.admit(one.bind(pod(f"p{n}", {MEM: 5, CORE: 20})))
        assert outcome, outcome.failed
        granted = outcome.containers["c0"]
        assert not granted.conflicts
        answers = [one.allocate(r, sorted(granted.ids[r])).container_responses[0] for r in (MEM, CORE)]
        common = answers[0].envs.keys() & answers[1].envs.keys()
        assert "NVIDIA_VISIBLE_DEVICES" in common
        assert all(answers[0].envs[name] == answers[1].envs[name] for name in common)


def test_pods_that_the_agent_has_by_name_are_named(node: MakeNode) -> None:
    """A refusal reaches the pod: in kubelet's text and as an Event on it, with need and what is free."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run()
    one.offers(mem=48)
    asked = one.bind(pod("big", {MEM: 30}))
    outcome = one.kubelet.admit(asked)
    assert not outcome
    assert outcome.reason == "UnexpectedAdmissionError"
    for text in ("default/big", "30", "GPU 0: 24", "GPU 1: 24"):
        assert text in outcome.failed
    event = one.event("GPURefused", "no single GPU has that much")
    assert event["involvedObject"]["name"] == "big"
    assert event["involvedObject"]["uid"] == asked.uid


def test_a_refusal_whose_pod_the_watch_shows_later_is_reported_on_that_pod(node: MakeNode) -> None:
    """Kubelet fails a pod that the agent has not seen yet: the Event is on that pod, and on no other of its size."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run()
    one.offers(mem=48)
    late = pod("late", {MEM: 30})
    outcome = one.kubelet.admit(late)
    assert outcome.reason == "UnexpectedAdmissionError"
    one.bind(pod("alike", {MEM: 30}))
    known = one.bind(late)
    failed = {"phase": "Failed", "reason": outcome.reason, "message": outcome.failed}
    one.server.patch_pod("late", {"status": failed}, subresource="status")
    event = one.event("GPURefused", "no single GPU has that much")
    assert event["involvedObject"]["name"] == "late"
    assert event["involvedObject"]["uid"] == known.uid


STRANGE = "deadbeefff-ms-1"
"""Of a GPU that this node does not have."""


@pytest.mark.parametrize("method", ["GetPreferredAllocation", "Allocate", "PreStartContainer"])
def test_a_refusal_of_a_pod_that_never_shows_is_reported_on_the_node(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(refusal_events, "WAIT_S", 0.0)
    monkeypatch.setattr(loop, "BEAT_S", 0.05)
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "share"})
    one.run()
    one.offers(mem=24)
    with pytest.raises(grpc.RpcError, match=STRANGE):
        match method:
            case "GetPreferredAllocation":
                one.prefer(MEM, [STRANGE], 1)
            case "Allocate":
                one.allocate(MEM, [STRANGE])
            case _:
                one.kubelet.call(MEM).PreStartContainer(dp.PreStartContainerRequest(devices_ids=[STRANGE]))
    event = one.event("GPURefused", STRANGE)
    assert event["involvedObject"]["kind"] == "Node"


def test_a_refused_start_is_reported_on_its_pod(node: MakeNode) -> None:
    one = node("1.36", box(1, 24), labels={MODE_LABEL: "cgpu"})
    driver = Isolating()
    one.run(driver)
    one.offers(mem=24)
    asked = one.bind(pod("p", {MEM: 4}))
    assert one.kubelet.admit(asked)
    driver.failures = 1
    with pytest.raises(StartError):
        one.kubelet.start_container(asked, "c0")
    event = one.event("GPURefused", "the isolation layer is not ready")
    assert event["involvedObject"]["uid"] == asked.uid
