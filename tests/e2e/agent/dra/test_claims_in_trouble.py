"""Claims while agent and kubelet end at any moment: no GPU is given beyond its memory, and nothing is left."""

import os
import random
import time

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import (
    CLAIMS,
    SLICE,
    SLICES,
    audit_claims,
    claiming,
    devices,
    of,
    sharing,
    wait_files,
    wait_prepared,
)
from tests.e2e.amounts import SEED, count
from tests.e2e.cluster import WAIT_S

KILLS = int(os.environ.get("CLAIM_KILLS", count(30, 200)))
"""A multiple of ten."""


def test_a_burst_of_pods(node: Node) -> None:
    names = [f"burst-{n}" for n in range(20)]
    create(node, names)
    for name in names:
        node.cluster.wait_phase(name, "Running")
    assert sum(audit_claims(node).values()) == 20
    wait_files(node, 20)


def test_160_shares_fill_eight_gpus(node: Node) -> None:
    """One claim a pod: with several, kube-controller-manager 1.36 may add and remove them in its status for minutes."""
    wait_no_claims(node)  # of the test before: there is room for no other share
    names = [f"pod-{n}" for n in range(160)]
    create(node, names, "share-4g")
    for name in names:
        node.cluster.wait_phase(name, "Running")
    assert [*audit_claims(node).values()] == [20] * 8
    node.end(*names)
    wait_files(node, 0)


def test_spread_takes_one_gpu_after_the_other(node: Node) -> None:
    node.label("dra", "spread")
    for number in range(8):
        node.run(claiming(f"pod-{number}", "share-8g"))
        wait_last(node, set(audit_claims(node)))
    assert set(audit_claims(node)) == set(order(node))


def test_two_pods_share_one_claim(node: Node) -> None:
    node.cluster.apply(of("ResourceClaim", "ours", devices("gpu-share.gpuagent.io", memory="8Gi"), "default"))
    try:
        for name in ("one", "two"):
            node.pods.append(name)
            node.cluster.create_pod(sharing(name, "ours"))
        for name in ("one", "two"):
            node.cluster.wait_phase(name, "Running")
        assert node.gpus_of("one") == node.gpus_of("two")
        wait_files(node, 1)
        node.end("one")
        wait_files(node, 1)
        node.end("two")
        wait_files(node, 0)
    finally:
        node.cluster.api("DELETE", f"{CLAIMS}/ours")


def test_pods_that_are_forced_away_while_the_agent_is_gone_leave_nothing(node: Node) -> None:
    names = [f"pod-{n}" for n in range(3)]
    for name in names:
        node.run(claiming(name, "share-8g"))
    node.agent.kill()
    for name in names:
        node.cluster.delete_pod(name, grace=0, timeout=0)
        node.pods.remove(name)
    node.agent.start()
    wait_files(node, 0)
    node.run(claiming("next", "share-8g"))


def test_killed_at_random_moments_no_gpu_is_given_twice_and_nothing_is_left(node: Node) -> None:
    rng = random.Random(SEED)
    node.run(claiming("constant", "share-8g"))
    constant = node.cluster.container("constant")
    longest = 0.0
    for number in range(KILLS):
        # Few whole GPUs: kubelet unprepares a pod again only 10 to 15 s after it failed to.
        create(node, [f"churn-{number}"], "two" if number % 10 == 0 else rng.choice(["share-8g", "share-4g"]))
        time.sleep(rng.uniform(0, 2))  # the agent takes about a second to register
        node.agent.kill()
        if number % 10 == 5:
            node.cluster.kill_kubelet()
            node.cluster.start_kubelet(wait=False)
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.5))
        node.agent.start()
        if len(node.pods) > 4:
            gone = node.pods.pop(1)
            node.cluster.delete_pod(gone, grace=rng.choice([0, 1]), timeout=0)
        if number % 10 == 9:
            node.agent.wait_ready()
            longest = max(longest, wait_prepared(node))
            wait_running(node)
            audit_claims(node)
    print(f"{KILLS} kills of the agent; the longest wait for a claim was {longest:.1f} s")
    assert node.cluster.container("constant") == constant
    node.end(*node.pods)
    wait_files(node, 0)
    wait_no_claims(node)
    for number in range(4):
        node.run(claiming(f"full-{number}", "two"))


def create(node: Node, names: list[str], template: str = "share-8g") -> None:
    for name in names:
        node.pods.append(name)
        node.cluster.create_pod(claiming(name, template))


def wait_running(node: Node) -> None:
    """Wait for all pods."""
    end = time.monotonic() + WAIT_S
    for name in node.pods:
        node.cluster.wait_phase(name, "Running", timeout=max(0.5, end - time.monotonic()))


def wait_no_claims(node: Node) -> None:
    """Wait until the claims of pods that are gone have gone too."""
    end = time.monotonic() + WAIT_S
    while audit_claims(node):
        assert time.monotonic() < end, audit_claims(node)
        time.sleep(0.05)


def wait_last(node: Node, names: set[str]) -> None:
    """Wait until these devices are the last ones of the slice."""
    end = time.monotonic() + WAIT_S
    while {*order(node)[-len(names) :]} != names:
        assert time.monotonic() < end, order(node)
        time.sleep(0.05)


def order(node: Node) -> list[str]:
    found = node.cluster.client.expect("GET", f"{SLICES}/{SLICE}")
    return [one["name"] for one in found["spec"]["devices"]]
