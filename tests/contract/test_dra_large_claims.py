"""Conformance check 90: large claims do not make the agent large."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent.domain.sharing.mode import DRA_DRIVER
from standin.kubelet.dra.driver import SERVICES, open_channel, unary
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import ClaimNode
from tests.contract.harness import NODE, box

MakeNode = Callable[..., ClaimNode]

CLAIMS, SIZE = 110, 896 * 1024
MOST_MIB = CLAIMS * SIZE / 2**20 / 2
"""How much the agent may grow: much less than the claims together, which are never all in memory."""
SELECTOR = 10 * 1024
"""The longest expression of a claim."""


def with_selectors() -> dict[str, Any]:
    """As people could write it: long expressions."""
    return {
        "selectors": [
            {"cel": {"expression": f"true || '{'x' * (SELECTOR - 20)}' == ''"}} for _ in range(SIZE // SELECTOR)
        ]
    }


def large_claim(number: int, device: str, more: dict[str, Any]) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu-share.gpuagent.io", "capacity": {"requests": {"memory": "1Gi"}}, **more}
    result = {"request": "gpu", "driver": DRA_DRIVER, "pool": NODE, "device": device, "shareID": f"share-{number}"}
    result["consumedCapacity"] = {"memory": "1Gi", "sharers": "1"}
    return {
        "metadata": {"name": f"large-{number}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def peak_mib(pid: int) -> float:
    """The largest resident size that the process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def test_90_large_claims_that_are_prepared_at_once_do_not_make_the_agent_large(claim_node: MakeNode) -> None:
    """A hundred and ten pods, each with a claim of 896 KiB, start on one node."""
    one = claim_node(gpus=box(8))
    process = one.spawn(*one.claim_flags())
    one.registered()
    devices = [device["name"] for device in one.published()["spec"]["devices"]]
    claims = []
    for number in range(CLAIMS):
        body = large_claim(number, devices[number % len(devices)], with_selectors())
        assert len(json.dumps(body, separators=(",", ":"))) > 0.9 * SIZE
        made = one.server.objects.create("resourceclaims", "default", body)
        claims.append(pb.Claim(namespace="default", name=made["metadata"]["name"], uid=made["metadata"]["uid"]))
    before = peak_mib(process.pid)
    (socket,) = (one.root / "k" / "plugins" / DRA_DRIVER).glob("dra-*.sock")
    errors = []

    def prepare(claim: pb.Claim) -> None:
        path = f"/{SERVICES['v1.DRAPlugin']}/NodePrepareResources"
        request = pb.NodePrepareResourcesRequest(claims=[claim])
        answer = unary(channel, path, request, pb.NodePrepareResourcesResponse, PATIENCE_S)
        errors.append(answer.claims[claim.uid].error)

    channel = open_channel(socket)
    threads = [threading.Thread(target=prepare, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    channel.close()
    assert errors == [""] * CLAIMS
    peak = peak_mib(process.pid)
    print(f"peak {peak:.0f} MiB, {before:.0f} MiB before")
    assert peak - before < MOST_MIB
