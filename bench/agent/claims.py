"""Mode `dra`: the start, claims that are prepared, slices that were wiped or have a new order, and an early pod."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

from bench.agent.calls import Server
from bench.node import NODE, Node
from bench.result import Results, Say
from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kubelet.dra.servicer import SERVICES
from standin.scheduler.device_classes import CLASSES, create_classes
from standin.scheduler.scheduler import ClaimScheduler, claim_names

BOX = "dgx-a100"
START_BAR_MS, PREPARE_BAR_MS, OWN_BAR_MS, WIPE_BAR_MS, LATE_BAR_MS = 2000.0, 50.0, 5.0, 1000.0, 10_000.0
ORDER_BAR_MS = 1000.0
WHOLE, SHARE, *_ = CLASSES
SLICE = f"{NODE}-{DRA_DRIVER}"


def measure(results: Results, runs: int, calls: int, say: Say) -> None:
    """All of it."""
    with claim_node() as node:
        say(f"claims: {runs} starts and wipes")
        starts, wipes, lates = [], [], []
        for number in range(runs):
            name = f"late-{number}"
            _create(node, name)
            time.sleep(1)  # kubelet has found no driver by then
            node.start_agent()
            starts.append(_until(node, lambda: bool(_instances(node)), node.started))
            lates.append(_until(node, lambda n=name: _phase(node, n) == "Running", node.started))  # type: ignore[misc]
            before = str(_published(node)["metadata"]["uid"])
            began = time.monotonic()
            node.api.objects.delete(("resourceslices", "", SLICE))
            wipes.append(_until(node, lambda b=before: _published(node)["metadata"]["uid"] not in {"", b}, began))  # type: ignore[misc]
            node.stop_agent()
            _until(node, lambda: not _instances(node), began)
        results.reaction("dra: start to registered", "dra start", starts, START_BAR_MS)
        results.reaction("dra: agent's start to running, of a pod that waits", "dra late agent", lates, LATE_BAR_MS)
        results.reaction("dra: wiped slice is back", "dra wipe", wipes, WIPE_BAR_MS)
        say(f"claims: {calls} preparations")
        node.start_agent()
        _until(node, lambda: bool(_instances(node)), node.started)
        _prepare(node, results, calls)
        say(f"claims: {runs} changes of the order")
        _order(node, results, runs)


@contextmanager
def claim_node() -> Iterator[Node]:
    """A node in mode `dra`, with a scheduler that allocates claims."""
    with Node(BOX, "dra", claims=True) as node:
        create_classes(node.api.objects)
        with ClaimScheduler(node.api.objects):
            yield node


def _prepare(node: Node, results: Results, calls: int) -> None:
    """NodePrepareResources and NodeUnprepareResources of one share, and the GET of its claim by itself."""
    prepare, unprepare = _requests(node, "timed", _claim(node, "late-0")["status"]["allocation"])
    server, times, gets, ends = Server(Path(_instances(node)[-1])), list[float](), list[float](), list[float]()
    pool = urllib3.PoolManager(ca_certs=str(node.authority))
    url = f"{node.api.url}/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/timed"
    for number in range(-20, calls):
        answer, took = _timed(server.method("NodePrepareResources", SERVICES[0]), prepare.SerializeToString())
        (one,) = pb.NodePrepareResourcesResponse.FromString(answer).claims.values()
        if one.error:
            raise node.fail(f"a claim was not prepared: {one.error}")
        _, ended = _timed(server.method("NodeUnprepareResources", SERVICES[0]), unprepare.SerializeToString())
        if number >= 0:
            times.append(took)
            ends.append(ended)
            gets.append(_get(pool, url))
    server.close()
    got = results.keep("dra prepare", times)
    alone = results.keep("dra get", gets)
    value = f"p50 {got['p50']:.1f} ms, p99 {got['p99']:.1f} ms"
    results.row("dra: NodePrepareResources", value, f"p99 < {PREPARE_BAR_MS:.0f} ms", got["p99"] < PREPARE_BAR_MS)
    own = got["p50"] - alone["p50"]
    results.row(
        "dra: of it, without reading the claim", f"p50 {own:.1f} ms", f"< {OWN_BAR_MS:.0f} ms", own < OWN_BAR_MS
    )
    undone = results.keep("dra unprepare", ends)
    results.row("dra: NodeUnprepareResources", f"p50 {undone['p50']:.1f} ms, p99 {undone['p99']:.1f} ms")


def _order(node: Node, results: Results, runs: int) -> None:
    """How soon the slice has its new order when a claim came to an empty GPU, and went."""
    allocation = copy.deepcopy(_claim(node, "late-0")["status"]["allocation"])
    before = _devices(node)
    allocation["devices"]["results"][0]["device"] = before[-2]  # the first is being filled, the last full
    prepare, unprepare = _requests(node, "ordered", allocation)
    server, times = Server(Path(_instances(node)[-1])), list[float]()
    for _ in range(runs):
        for method, request in (("NodePrepareResources", prepare), ("NodeUnprepareResources", unprepare)):
            now, began = _devices(node), time.monotonic()
            _timed(server.method(method, SERVICES[0]), request.SerializeToString())
            times.append(_until(node, lambda former=now: _devices(node) != former, began))  # type: ignore[misc]
        if _devices(node) != before:
            raise node.fail("the order is another than before the claim came")
    server.close()
    results.reaction("dra: new order is published", "dra order", times, ORDER_BAR_MS)


def _requests(
    node: Node, name: str, allocation: dict[str, Any]
) -> tuple[pb.NodePrepareResourcesRequest, pb.NodeUnprepareResourcesRequest]:
    """Kubelet's calls for a new claim with this allocation."""
    spec = _claim(node, "late-0")["spec"]
    made = node.api.objects.create("resourceclaims", "default", {"metadata": {"name": name}, "spec": spec})
    status = {"allocation": allocation}
    node.api.objects.update(("resourceclaims", "default", name), lambda now: {**now, "status": status})
    request = {"claims": [pb.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])]}
    return pb.NodePrepareResourcesRequest(**request), pb.NodeUnprepareResourcesRequest(**request)


def _timed(call: Callable[[bytes], bytes], request: bytes) -> tuple[bytes, float]:
    began = time.perf_counter()
    answer = call(request)
    return answer, (time.perf_counter() - began) * 1000


def _get(pool: urllib3.PoolManager, url: str) -> float:
    """Milliseconds of one GET, on a kept connection as the agent has one."""
    began = time.perf_counter()
    pool.request("GET", url)
    return (time.perf_counter() - began) * 1000


def _create(node: Node, name: str) -> None:
    """A pod with a claim of 8 GiB."""
    exactly = {"deviceClassName": SHARE, "count": 1, "capacity": {"requests": {"memory": "8Gi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    node.api.objects.create("resourceclaimtemplates", "default", {"metadata": {"name": name}, "spec": {"spec": spec}})
    container = {"name": "main", "image": "work", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": name}]
    body = {
        "metadata": {"name": name},
        "spec": {"containers": [container], "resourceClaims": claims},
        "status": {"phase": "Pending"},
    }
    node.api.objects.create("pods", "default", body)


def _claim(node: Node, pod: str) -> dict[str, Any]:
    (name,) = claim_names(node.api.objects.get(("pods", "default", pod)))
    found: dict[str, Any] = node.api.objects.get(("resourceclaims", "default", name))
    return found


def _phase(node: Node, pod: str) -> str:
    return str(node.api.objects.get(("pods", "default", pod))["status"].get("phase"))


def _instances(node: Node) -> list[str]:
    return node.kubelet.claims.instances(DRA_DRIVER)


def _published(node: Node) -> dict[str, Any]:
    """The node's slice; without a UID while it is gone."""
    found = [one for one in node.api.objects.all("resourceslices")[0] if one["metadata"]["name"] == SLICE]
    return found[0] if found else {"metadata": {"uid": ""}}


def _devices(node: Node) -> list[str]:
    """Names of the devices in the node's slice, in its order."""
    return [device["name"] for device in _published(node)["spec"]["devices"]]


def _until(node: Node, met: Callable[[], bool], began: float) -> float:
    """Milliseconds from `began` until `met` is true."""
    end = time.monotonic() + 30
    while not met():
        if time.monotonic() > end:
            raise node.fail("the node did not come to the state to measure")
        time.sleep(0.002)
    return (time.monotonic() - began) * 1000
