"""The agent as a whole, with both stand-ins: what is written on pods, over crashes and with an API server that is away."""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from gpuagent.agent import effects
from gpuagent.agent.agent import Agent
from gpuagent.domain.pods.annotations import CORE_ANNOTATION, DECIDED_ANNOTATION, MEMORY_ANNOTATION, V1_KEYS
from gpuagent.domain.reconcile import pod_annotations
from gpuagent.domain.sharing.mode import GROUP_ANNOTATION, MODE_LABEL
from gpuagent.domain.sharing.units import MemoryUnit
from standin.kubelet import checkpoint
from standin.kubelet.pods import Pod
from standin.waiting import PATIENCE_S
from tests.contract.harness import CORE, MEM, WHOLE, Isolating, Node, box, pod, terminate, wait_for

MakeNode = Callable[..., Node]
INDEX, UNITS, GPU_UNITS, ASSUMED, ASSIGNED = (
    f"ALIYUN_COM_GPU_MEM_{part}" for part in ("IDX", "POD", "DEV", "ASSUME_TIME", "ASSIGNED")
)
PATCH, LONG_AGO = "patch pods", "1700000000000000000"


def decided(gpu: int, units: int, **more: str) -> dict[str, str]:
    """What the gpushare scheduler extender writes when it binds."""
    return {INDEX: str(gpu), UNITS: str(units), GPU_UNITS: "24", ASSIGNED: "false", ASSUMED: LONG_AGO, **more}


def shared(node: MakeNode, mode: str = "share", **named: Any) -> Node:
    return node("1.36", box(2, 24), labels={MODE_LABEL: mode}, **named)


def written(one: Node, name: str) -> dict[str, str]:
    (found,) = (found for found in one.server.pods() if found["metadata"]["name"] == name)
    annotations: dict[str, str] = found["metadata"].get("annotations") or {}
    return annotations


def wait_written(one: Node, name: str, **texts: str) -> dict[str, str]:
    """Wait until the pod's annotations have these, given without what all begin with."""
    wanted = {f"ALIYUN_COM_GPU_MEM_{key}": text for key, text in texts.items()}
    assert one.server.wait(lambda: wanted.items() <= written(one, name).items()), (wanted, written(one, name))
    return written(one, name)


def quiet(one: Node) -> None:
    """Wait until every agent of this process has no write left; what it wrote has come back to it by the watch."""
    version = max(int(found["metadata"]["resourceVersion"]) for found in one.server.pods())

    def settled() -> bool:
        return all(
            max(int(seen.version) for seen in agent.state.pods.seen) >= version
            and agent.kube is not None
            and not pod_annotations.writes(agent.state)
            and agent.kube.flush(0)
            for agent in one.agents
        )

    wait_for(settled)


def start(one: Node, made: Pod, annotations: Mapping[str, str] | None = None) -> Pod:
    """Bound, admitted, its containers started."""
    bound = one.bind(made, annotations=annotations)
    assert one.kubelet.admit(bound)
    for container in bound.containers:
        one.kubelet.start_container(bound, container.name)
    return bound


def problems(agent: Agent) -> list[str]:
    return [problem["reason"] for problem in agent.status()["problems"]]


def events(one: Node) -> list[str]:
    return [found["message"] for found in one.server.events() if found["reason"] == "AnnotationCorrected"]


def test_a_pod_of_the_gpushare_extender_is_completed_once(node: MakeNode) -> None:
    """ASSIGNED and ASSUME_TIME as the open plugin writes them; nothing else, no Event, one PATCH and no list of pods."""
    one = shared(node)
    agent = one.run()
    one.offers(mem=48)
    wait_for(lambda: agent.state.pods.known)  # its first list is not counted
    lists = one.server.requests["list pods"]
    start(one, pod("p", {MEM: 6}), decided(0, 6))
    found = wait_written(one, "p", ASSIGNED="true")
    quiet(one)
    assert int(found[ASSUMED]) > int(LONG_AGO)
    assert {key: found[key] for key in (INDEX, UNITS, GPU_UNITS)} == {INDEX: "0", UNITS: "6", GPU_UNITS: "24"}
    assert MEMORY_ANNOTATION not in found
    assert one.server.requests[PATCH] == 1
    assert one.server.requests["list pods"] == lists
    assert events(one) == []


def test_annotation_and_environment_name_the_same_gpu_whatever_a_scheduler_chose(node: MakeNode) -> None:
    one = shared(node)
    one.run()
    one.offers(mem=48)
    for n, (gpu, units) in enumerate([(1, 6), (0, 7), (1, 8), (0, 9)]):
        made = one.bind(pod(f"p{n}", {MEM: units}), annotations=decided(gpu, units))
        env = one.kubelet.admit(made).containers["c0"].env
        one.kubelet.start_container(made, "c0")
        wait_written(one, f"p{n}", ASSIGNED="true", IDX=env[INDEX], POD=str(units))


def test_nothing_is_written_before_kubelet_has_it_in_its_checkpoint(node: MakeNode) -> None:
    """A pod that is bound and not admitted, and one that was refused, are left alone."""
    one = shared(node)
    one.run()
    one.offers(mem=48)
    one.bind(pod("waits", {MEM: 6}), annotations=decided(0, 6))
    large = one.bind(pod("large", {MEM: 30}))
    assert not one.kubelet.admit(large)
    start(one, pod("p", {MEM: 5}))
    wait_written(one, "p", ASSIGNED="true")
    quiet(one)
    assert written(one, "waits")[ASSIGNED] == "false"
    assert written(one, "large") == {}


def test_a_checkpoint_that_kubelet_writes_late_delays_no_annotation(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet lists an allocation before its write to disk has ended; the agent reads both again soon."""
    monkeypatch.setattr(effects, "QUIET_PERIOD_S", 10 * PATIENCE_S)
    one = shared(node)
    agent = one.run()
    one.offers(mem=48)
    start(one, pod("earlier", {MEM: 1}))
    wait_written(one, "earlier", ASSIGNED="true")
    write, late = checkpoint.write, list[Callable[[], None]]()
    monkeypatch.setattr(checkpoint, "write", lambda *of, **how: late.append(partial(write, *of, **how)))
    start(one, pod("p", {MEM: 6}))
    wait_for(lambda: any(held.owner.pod.name == "p" for held in agent.state.holdings.listed or ()))
    assert written(one, "p") == {}
    late[-1]()
    wait_written(one, "p", ASSIGNED="true")


def test_a_pod_without_annotations_is_annotated(node: MakeNode) -> None:
    """In both families, with the numbers its environment has."""
    one = shared(node)
    one.run()
    one.offers(mem=48)
    made = start(one, pod("p", {MEM: 6}))
    found = wait_written(one, "p", IDX="0", POD="6", DEV="24", ASSIGNED="true")
    assert json.loads(found[MEMORY_ANNOTATION]) == {"0": {"0": 6}}
    env = one.kubelet.admit(made).containers["c0"].env
    assert (env[INDEX], env[GPU_UNITS]) == (found[INDEX], found[GPU_UNITS])


def test_the_setting_leaves_pods_alone_without_annotations(node: MakeNode) -> None:
    one = shared(node)
    one.run(annotate_pods=False)
    one.offers(mem=48)
    start(one, pod("silent", {MEM: 6}))
    start(one, pod("decided", {MEM: 5}), decided(0, 5))
    wait_written(one, "decided", ASSIGNED="true")
    quiet(one)
    assert written(one, "silent") == {}


def test_memory_and_compute_and_whole_gpus_are_reported(node: MakeNode) -> None:
    one = shared(node, "core_mem")
    one.run(Isolating())
    one.offers(mem=48, core=200)
    start(one, pod("p", {MEM: 6, CORE: 20}))
    assert one.server.wait(lambda: CORE_ANNOTATION in written(one, "p"))
    assert json.loads(written(one, "p")[CORE_ANNOTATION]) == {"0": {"0": 20}}
    two = shared(node, "topology")
    two.run()
    two.offers(whole=2)
    made = start(two, pod("p", {WHOLE: 2}))
    assert two.server.wait(lambda: written(two, "p") == {GROUP_ANNOTATION: "0,1", DECIDED_ANNOTATION: made.uid})


def test_a_forged_annotation_of_a_running_pod_is_corrected_with_an_event(node: MakeNode) -> None:
    one = shared(node)
    one.run()
    one.offers(mem=48)
    start(one, pod("p", {MEM: 6}), decided(0, 6))
    wait_written(one, "p", ASSIGNED="true")
    one.server.patch_pod("p", {"metadata": {"annotations": {INDEX: "1", UNITS: "24", "theirs": "x"}}})
    wait_written(one, "p", IDX="0", POD="6")
    found = one.event("AnnotationCorrected")
    assert (found["involvedObject"]["kind"], found["involvedObject"]["name"], found["type"]) == ("Pod", "p", "Warning")
    assert "says 1, with 24 units" in found["message"]
    assert written(one, "p")["theirs"] == "x"
    one.server.patch_pod("p", {"metadata": {"annotations": {MEMORY_ANNOTATION: '{"0":{"1":6}}'}}})
    assert one.server.wait(lambda: written(one, "p")[MEMORY_ANNOTATION] == '{"0":{"0":6}}')
    one.event("AnnotationCorrected", MEMORY_ANNOTATION)


def test_what_somebody_removes_is_put_back(node: MakeNode) -> None:
    one = shared(node)
    one.run()
    one.offers(mem=48)
    start(one, pod("p", {MEM: 6}))
    full = wait_written(one, "p", ASSIGNED="true")
    for gone in (*V1_KEYS, [*V1_KEYS, MEMORY_ANNOTATION]):
        keys = [gone] if isinstance(gone, str) else gone
        one.server.patch_pod("p", {"metadata": {"annotations": dict.fromkeys(keys)}})
        assert one.server.wait(lambda: written(one, "p").keys() == full.keys()), (gone, written(one, "p"))
    assert {**written(one, "p"), ASSUMED: ""} == {**full, ASSUMED: ""}
    assert events(one) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_an_agent_that_dies_between_grant_and_write_leaves_it_to_the_next(node: MakeNode, number: int) -> None:
    """The API server answers nothing while kubelet admits the pods, and the agent is killed; the next one completes."""
    one = shared(node)
    kubeconfig = str(one.server.write_kubeconfig(one.root / "kubeconfig"))
    first = one.spawn("--kubeconfig", kubeconfig)
    one.offers(mem=48)
    bound = [one.bind(pod(f"p{n}", {MEM: 6 + n}), annotations=decided(0, 6 + n) if n else None) for n in range(3)]
    start(one, pod("later", {MEM: 1}))
    wait_written(one, "later", ASSIGNED="true")  # so the agent has seen the others
    one.server.pause()
    for made in bound:
        assert one.kubelet.admit(made)
        one.kubelet.start_container(made, "c0")
    terminate(first, number)
    assert [written(one, f"p{n}").get(ASSIGNED) for n in range(3)] == [None, "false", "false"]
    one.server.resume()  # what the first one had asked may be done now
    one.spawn("--kubeconfig", kubeconfig)
    for n in range(3):
        wait_written(one, f"p{n}", ASSIGNED="true", POD=str(6 + n))


def test_an_api_server_that_is_away_gets_everything_afterwards(node: MakeNode) -> None:
    """Pods are granted, started and run meanwhile; each is completed, with one PATCH that succeeds."""
    one = shared(node)
    agent = one.run()
    one.offers(mem=48)
    bound = [one.bind(pod(f"p{n}", {MEM: 1 + n}), annotations=decided(0, 1 + n)) for n in range(6)]
    one.server.stop()
    for made in bound:
        assert one.kubelet.admit(made)
        one.kubelet.start_container(made, "c0")
    wait_for(lambda: len(agent.state.holdings.listed or ()) == 6 and "PodsUnavailable" in problems(agent))
    one.server.start()
    for n in range(6):
        wait_written(one, f"p{n}", ASSIGNED="true", POD=str(1 + n))
    quiet(one)
    assert one.server.requests[PATCH] == 6
    assert events(one) == []


def test_a_pod_that_changes_all_the_time_is_written_nevertheless(node: MakeNode) -> None:
    one = shared(node)
    one.run()
    one.offers(mem=48)
    with storm(one, "p0", "p1"):
        for n in range(2):
            start(one, pod(f"p{n}", {MEM: 6 + n}), decided(0, 6 + n))
        for n in range(2):
            wait_written(one, f"p{n}", ASSIGNED="true")
    quiet(one)
    assert events(one) == []


@contextmanager
def storm(one: Node, *names: str) -> Iterator[None]:
    """Somebody writes on these pods all the time."""
    over = threading.Event()

    def write() -> None:
        n = 0
        while not over.wait(0.05):
            n += 1
            for name in {p["metadata"]["name"] for p in one.server.pods()} & set(names):
                one.server.patch_pod(name, {"metadata": {"labels": {"n": str(n)}}})

    thread = threading.Thread(target=write, name="storm")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_write_against_an_old_version_waits_for_the_watch(node: MakeNode) -> None:
    """The watch is silent and the pod changes: the API server refuses the write, and nothing of the change is lost."""
    one = shared(node)
    agent = one.run()
    one.offers(mem=48)
    made = one.bind(pod("p", {MEM: 6}), annotations=decided(0, 6))
    one.server.silence()
    one.server.patch_pod("p", {"metadata": {"annotations": {MEMORY_ANNOTATION: '{"0":{"1":6}}'}}})
    assert one.kubelet.admit(made)  # last: the agent may write as soon as kubelet lists the pod's allocation
    one.kubelet.start_container(made, "c0")
    wait_for(lambda: one.server.requests[PATCH] == 1)
    assert written(one, "p")[ASSIGNED] == "false"
    one.server.resume()
    wait_written(one, "p", ASSIGNED="true")
    assert json.loads(written(one, "p")[MEMORY_ANNOTATION]) == {"0": {"0": 6}}
    assert problems(agent) == []


def test_a_missing_right_is_a_problem_and_stops_nothing(node: MakeNode) -> None:
    one = shared(node)
    agent = one.run()
    one.server.deny("patch", "pods")
    one.offers(mem=48)
    start(one, pod("p", {MEM: 6}))
    one.event("AnnotationsNotWritten", 'allow verb "patch" on resource "pods"')

    def condition() -> dict[str, str]:
        (found,) = (c for c in one.server.node()["status"]["conditions"] if c["type"] == "GPUAgentReady")
        return dict(found)

    assert one.server.wait(lambda: 'allow verb "patch"' in condition()["message"]), condition()
    assert (condition()["status"], condition()["reason"]) == ("True", "Ready")
    one.server.allow("patch", "pods")
    wait_written(one, "p", ASSIGNED="true")
    wait_for(lambda: problems(agent) == [])


def test_a_pod_made_again_under_its_name_gets_its_own(node: MakeNode) -> None:
    """As a StatefulSet makes it: kubelet's allocations may still have the one before."""
    one = shared(node)
    one.run()
    one.offers(mem=48)
    for n in range(8):
        made = start(one, pod("web-0", {MEM: 6}), decided(0, 6, run=str(n)))
        assert wait_written(one, "web-0", ASSIGNED="true")["run"] == str(n)
        one.end(made)
    assert one.server.requests[PATCH] == 8
    assert events(one) == []


@pytest.mark.parametrize("annotate", [True, False])
def test_a_changed_unit_under_a_running_pod_is_reported(node: MakeNode, annotate: bool) -> None:
    one = shared(node)
    first = one.run(annotate_pods=annotate)
    one.offers(mem=48)
    start(one, pod("p", {MEM: 6}))
    if annotate:
        wait_written(one, "p", DEV="24")
    one.stop(first)
    second = one.run(memory_unit=MemoryUnit(2048), annotate_pods=annotate)
    one.offers(mem=24)
    wait_for(lambda: problems(second) == ["UnitsChanged"])
    assert "default/p" in second.status()["problems"][0]["message"]
    if annotate:
        assert written(one, "p")[GPU_UNITS] == "24"
    one.event("UnitsChanged")


@pytest.mark.parametrize("version", ["1.18", "1.36", "1.37"])
def test_gpu_count_comes_back_when_kubelet_resets_the_node(node: MakeNode, version: str) -> None:
    """A kubelet that registers its Node again forgets what others wrote into its status."""
    one = node(version, box(2, 24), labels={MODE_LABEL: "share"})
    one.run()

    def shown() -> list[str | None]:
        status = one.server.node()["status"]
        return [status[side].get("aliyun.com/gpu-count") for side in ("capacity", "allocatable")]

    for _ in range(3):
        assert one.server.wait(lambda: shown() == ["2", "2"]), shown()
        one.kubelet.stop()
        one.server.patch_node_status({side: {"aliyun.com/gpu-count": None} for side in ("capacity", "allocatable")})
        assert one.server.wait(lambda: shown() == ["2", "2"]), shown()
        one.kubelet.start()
        one.server.patch_node_status({"capacity": {"aliyun.com/gpu-count": "0"}})
    assert one.server.wait(lambda: shown() == ["2", "2"]), shown()


STEERING = "\x1b]0;owned\x07\x9b2J\u202e\x7f\nforged"


def test_an_annotation_steers_no_terminal_by_an_event(node: MakeNode) -> None:
    """A tenant edits a pod that runs; the Event of the correction repeats what it said."""
    one = shared(node, "topology")
    one.run()
    one.offers(whole=2)
    start(one, pod("p", {WHOLE: 1}))
    assert one.server.wait(lambda: GROUP_ANNOTATION in written(one, "p"))
    one.server.patch_pod("p", {"metadata": {"annotations": {GROUP_ANNOTATION: STEERING}}})
    message = one.event("AnnotationCorrected", "owned")["message"]
    assert message.isprintable()


def test_an_annotation_steers_no_terminal_by_a_refusal(node: MakeNode) -> None:
    """Kubelet puts the refusal into the pod's status, which `kubectl describe` shows."""
    one = shared(node, "topology")
    one.run()
    one.offers(whole=2)
    admitted = one.kubelet.admit(one.bind(pod("p", {WHOLE: 1}), annotations={GROUP_ANNOTATION: STEERING}))
    assert "owned" in admitted.failed
    assert admitted.failed.isprintable()
    assert one.event("GPURefused")["message"].isprintable()
