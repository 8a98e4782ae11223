"""One agent replaces another on a node in mode `dra`, as in an upgrade where both run for a while."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.dra.claims import audit_claims, claiming, wait_files
from tests.e2e.agent.dra.test_claims_late_agent import failures
from tests.e2e.agent.process import AgentProcess
from tests.e2e.cluster import Cluster


def test_pods_are_prepared_at_the_first_try_while_agents_are_replaced(node: Node, cluster: Cluster) -> None:
    for _ in range(2):
        former, node.agent = node.agent, newer(node.agent, cluster)
        try:
            with ThreadPoolExecutor(1) as pool:
                for act in (node.agent.start, node.agent.wait_ready, former.stop):
                    doing = pool.submit(act)
                    while not doing.done():
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


def newer(former: AgentProcess, cluster: Cluster) -> AgentProcess:
    """An agent with the same mode and claims. As two simulators cannot take faults at one socket, its folder is new."""
    made = AgentProcess(cluster, former.state_dir.parent / "newer", "dgx-a100")
    made.state_dir.mkdir()
    shutil.copy(former.state_dir / "mode.json", made.state_dir)
    (made.state_dir / "claims").symlink_to(former.state_dir / "claims")
    return made


def create(node: Node) -> None:
    name = f"pod-{len(node.pods)}"
    node.pods.append(name)
    node.cluster.create_pod(claiming(name, "share-4g"))
