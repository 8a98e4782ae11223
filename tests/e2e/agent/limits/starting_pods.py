"""Pods whose containers find out, with their first instruction, whether the limit of their pod is in force."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import count

from gpuagent.domain.sharing.mode import GPU_MEM
from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.attacks import ATTACKER, MIB, Json, mount_driver, share
from tests.e2e.agent.limits.helper import Helper
from tests.e2e.cluster import container, pod_manifest

LIMITED, UNLIMITED = "limited", "UNLIMITED"
_OVER = 4 * MIB
"""So much more than all containers of a pod may have together."""
_numbers = count()
"""Of pods over the whole run: the node keeps the logs of a pod for a while, and finds them by its name."""


class StartingPods:
    """Makes pods of few shapes and sizes, and counts what their containers found out."""

    def __init__(self, node: Node, helper: Helper, rng: random.Random) -> None:
        self._node = node
        self._helper = helper
        self._rng = rng
        self.starts: Counter[str] = Counter()
        self.refused = 0
        """Pods that kubelet did not admit, because the agent was away."""
        self.unlimited: list[str] = []

    def create(self, pods: int) -> list[str]:
        names = []
        for _ in range(pods):
            manifest = self._manifest(f"start-{next(_numbers)}")
            names.append(manifest["metadata"]["name"])
            self._node.pods.append(names[-1])
            self._node.cluster.create_pod(manifest)
        return names

    def collect(self, names: Sequence[str]) -> None:
        """Wait until the pods have ended, and count. They are gone afterwards, or nearly so."""
        for name in names:
            pod = self._node.cluster.wait_phase(name, "Succeeded", "Failed")
            if pod["status"]["phase"] == "Failed" and not pod["status"].get("containerStatuses"):
                self.refused += 1
            for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
                said = self._node.cluster.pod_log(name, each["name"])
                assert "failed" not in said, said
                self.starts.update({LIMITED, UNLIMITED}.intersection(said.split()))
                if UNLIMITED in said:
                    self.unlimited.append(f"{name} ({pod['metadata']['uid']}), container {each['name']}")
            self._node.cluster.delete_pod(name, timeout=0)

    def _manifest(self, name: str) -> Json:
        sizes = [self._rng.randint(1, 4) for _ in range(2)]
        shape = self._rng.randrange(3)
        if shape == 0:
            return self._pod(name, mains=sizes[:1])
        if shape == 1:
            return self._pod(name, mains=sizes[:1], inits=sizes)
        return self._pod(name, mains=sizes, inits=sizes[:1], sidecars=[1])

    def _pod(self, name: str, mains: list[int], inits: Sequence[int] = (), sidecars: Sequence[int] = ()) -> Json:
        # Init containers run before the others, beside sidecars.
        total = sum(sidecars) + max(sum(mains), *inits, 0)
        over = str(share(total) + _OVER)
        made = pod_manifest(name, {})
        start = [ATTACKER, "start", "own", over]
        made["spec"]["containers"] = [
            container(f"main-{place}", {GPU_MEM: units}, command=start) for place, units in enumerate(mains)
        ]
        made["spec"]["initContainers"] = [
            *(
                container(
                    f"side-{place}", {GPU_MEM: units}, command=[ATTACKER, "stay", "own", over], restart_policy="Always"
                )
                for place, units in enumerate(sidecars)
            ),
            *(container(f"init-{place}", {GPU_MEM: units}, command=start) for place, units in enumerate(inits)),
        ]
        mount_driver(made, self._helper)
        return made
