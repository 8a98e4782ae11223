"""One agent replaces another on a node in mode `dra`, as in an upgrade where both run for a while."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import audit_claims, claiming, wait_files
from tests.e2e.agent.dra.test_claims_late_agent import failures
from tests.e2e.agent.process import AgentProcess
from tests.e2e.cluster import Cluster

MOST = 100
"""Pods: on a slow machine there would be more than the GPUs have room for."""


def test_pods_are_prepared_at_the_first_try_while_agents_are_replaced(node: Node, cluster: Cluster) -> None:
    for number in range(2):
        former, node.agent = node.agent, newer(node.agent, cluster, number)
        try:
            with ThreadPoolExecutor(1) as pool:
                for act in (node.agent.start, node.agent.wait_ready, former.stop):
                    doing = pool.submit(act)
                    while not doing.done():
                        if len(node.pods) < MOST:
                            create(node)
                        time.sleep(0.2)
                    doing.result()
        finally:
            former.stop()
        create(node)
    for name in node.pods:
        node.cluster.wait_phase(name, "Running")
    assert not failures(node.cluster)
    assert sum(audit_claims(node).values()) == len(node.pods)
    wait_files(node, len(node.pods))


def newer(former: AgentProcess, cluster: Cluster, number: int) -> AgentProcess:
    """An agent with the same mode and claims. As two simulators cannot take faults at one socket, its folder is new."""
    workdir = former.state_dir.parents[1] / f"n{number}"  # short: the path of a socket has at most 107 bytes
    made = AgentProcess(cluster, workdir, "dgx-a100")
    made.state_dir.mkdir()
    shutil.copy(former.state_dir / "mode.json", made.state_dir)
    (made.state_dir / "claims").symlink_to(former.state_dir / "claims")
    return made


def create(node: Node) -> None:
    name = f"pod-{len(node.pods)}"
    node.pods.append(name)
    node.cluster.create_pod(claiming(name, "share-4g"))
