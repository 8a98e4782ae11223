"""Amounts in every spelling: what a real API server stores, and what a real kubelet makes of it."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION, Shares, shares
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.quantity import MOST, amount
from tests.e2e.agent.allocation_audit import holdings
from tests.e2e.agent.conftest import Node
from tests.e2e.cluster import Cluster, container, pod_manifest

MEM = "aliyun.com/gpu-mem"
FOUR = ("4", "4e0", "4E+0", "4000m", "+4", "4.", "0004", "0.004k", "4000000u", "40e-1", str(2**64 + 4), "4e4294967296")
SUFFIXES = ("", *"numkMGTPE", *(f"{letter}i" for letter in "KMGTPE"))


def spellings(count: int) -> Iterator[str]:
    """Texts of the grammar of quantities, the same in every run."""
    chance = random.Random(15)  # noqa: S311 (no secret)
    for _ in range(count):
        number = f"{chance.choice(['', '+', '0'])}{chance.randrange(10 ** chance.randrange(1, 10))}"
        part = chance.choice(["", "", ".", f".{chance.randrange(1000)}", ".5", ".000"])
        exponent = f"{chance.choice('eE')}{chance.choice(['', '+', '-'])}{chance.randrange(13)}"
        yield number + part + chance.choice([*SUFFIXES, *[exponent] * len(SUFFIXES)])


def test_what_the_api_server_stores_is_read_and_what_it_refuses_is_not_whole(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    seen: Counter[int] = Counter()
    for text in (*FOUR, *spellings(400)):
        status, stored = cluster.api("POST", path, pod_manifest("spelled", {MEM: text}))
        seen[status] += 1
        exact = parse_quantity(text) if text not in FOUR else Decimal(4)
        if exact > MOST / 1000:  # the server counts in thousandths of 64 bits
            continue
        assert status == (201 if exact % 1 == 0 else 422), (text, stored)
        if status == 201:
            (spec,) = parse_pod(stored).containers
            assert spec.limits.get(MEM, 0) == exact == amount(text), (text, stored["spec"]["containers"][0])
            assert not spec.unread
    assert min(seen[201], seen[422]) > 50, seen


def test_kubelet_gives_as_many_units_as_the_agent_reads(make_node: Callable[..., Node]) -> None:
    node = make_node(mode="share")
    node.wait_amounts(mem=640)
    manifest = pod_manifest("spelled", {})
    manifest["spec"]["containers"] = [container(f"c{n}", {MEM: text}) for n, text in enumerate(FOUR)]
    pod = parse_pod(node.run(manifest))
    held = Counter[str]()
    for holding in holdings(node.pod_resources):
        if holding.owner.pod == pod.name:
            held[holding.owner.container] += len(holding.ids)
    assert held == {spec.name: spec.limits[MEM] for spec in pod.containers} == {f"c{n}": 4 for n in range(len(FOUR))}

    def annotated(found: dict[str, object]) -> bool:
        memory = shares(parse_pod(found).annotations, MEMORY_ANNOTATION)
        return isinstance(memory, Shares) and sum(memory.by_gpu.values()) == 4 * len(FOUR)

    node.cluster.wait_pod("spelled", annotated)
