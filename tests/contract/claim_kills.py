"""Kills of the agent at random moments of a node's life, counted: `make claim-kills`.

Pods with claims and pods with units come and go, and the node changes its mode. Meanwhile the agent is killed. Sometimes
kubelet restarts as well, amid its calls or while the agent is away, and the agent has no API server for a while. No GPU
may be given twice, nothing may be lost or left, and no pod may wait for long.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpuagent.domain.sharing.mode import GPU_MEM
from standin.api.objects import Json
from standin.kubelet.dra.periods import Periods
from standin.kubelet.pods import Admission, Pod
from standin.scheduler.scheduler import claim_names
from standin.waiting import PATIENCE_S
from tests.contract.claim_node import PREPARE, SHARE, UNPREPARE, WHOLE, ClaimNode
from tests.contract.claim_witness import LONGEST_S, ClaimWitness
from tests.contract.harness import box, pod

GPUS, GIB = 4, 80
MOST_PODS = 8
ROUNDS = 10
"""Kills from one look at everything to the next."""
KINDS = (
    (SHARE, 1, {"memory": "4Gi"}),
    (SHARE, 1, {"memory": "8Gi"}),
    (SHARE, 1, {"memory": "30Gi"}),
    (WHOLE, 1, {}),
    (WHOLE, 2, {}),
)


@dataclass
class Figures:
    """What happened so far."""

    kills: int = 0
    kubelet_restarts: int = 0
    api_outages: int = 0
    pods: int = 0
    unit_pods: int = 0
    switches: int = 0


class KilledNode:
    """A node whose agent is killed again and again.

    Args:
        node: in mode dra.
        rng: chooses what happens, and when.
    """

    def __init__(self, node: ClaimNode, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.figures = Figures()
        self.witness = ClaimWitness(node)
        self.mode = "dra"
        self.pods: list[str] = []
        self.ended: list[str] = []
        self.units: dict[str, Pod] = {}
        self._admitting = ThreadPoolExecutor(1)

    def start(self) -> None:
        """Start the agent, and a pod that runs until the end."""
        self.witness.start()
        self._start_agent()
        self.node.registered()
        self.node.published()
        self.constant = self.node.run_pod("constant", SHARE, memory="8Gi")

    def close(self) -> None:
        """End what is no part of the node."""
        self._admitting.shutdown()
        self.witness.stop()

    def run(self, kills: int) -> None:
        """Kill the agent so often."""
        for number in range(1, kills + 1):
            self._kill_once()
            if number % ROUNDS == 0 or number == kills:
                self.look()

    def _kill_once(self) -> None:
        is_served = self.rng.random() < 0.7
        if is_served:
            self._wait_for_driver()
        for _ in range(self.rng.randint(1, 4)):
            self._change()
        lacks_api = self.rng.random() < 0.1
        if lacks_api:
            self.node.server.stop()
            self.figures.api_outages += 1
        if self.rng.random() < 0.1:
            # Kubelet is preparing and unpreparing what has changed.
            time.sleep(10 ** self.rng.uniform(-3, 0))
            self._restart_kubelet()
        # A call takes some milliseconds, and a start about a second.
        time.sleep(10 ** self.rng.uniform(-3, 0) if is_served else self.rng.uniform(0, 2))
        self._kill_agent()
        if self.rng.random() < 0.3:
            self._change()
        if self.rng.random() < 0.1:
            self._restart_kubelet()
        if self.rng.random() < 0.3:
            time.sleep(self.rng.uniform(0, 0.5))
        self._start_agent()
        if lacks_api:
            time.sleep(self.rng.uniform(0, 2))
            self.node.server.start()
            self.witness.away()

    def _restart_kubelet(self) -> None:
        """Restart kubelet, unless there are pods with units, which a test would have to admit again."""
        if self.units:
            return
        self.node.kubelet.restart()
        self.witness.away()
        self.figures.kubelet_restarts += 1

    def _kill_agent(self) -> None:
        process = self.node.processes[-1]
        process.kill()
        process.wait()
        self.witness.killed()
        self.figures.kills += 1

    def _start_agent(self) -> None:
        self.node.spawn(*self.node.claim_flags(), wait=False)

    def _wait_for_driver(self) -> None:
        """Wait until kubelet has the driver, which a node in another mode may not have."""
        if self.mode == "dra":
            wait_seldom(lambda: bool(self.node.instances() and self.node.slice()), "there is no driver, or no slice")
        else:
            wait_seldom(lambda: bool(self.node.kubelet.streams(GPU_MEM)), "kubelet does not read the units")

    # What happens on the node.

    def _change(self) -> None:
        changes: list[tuple[Callable[[], None], int]] = [(self._create, 6), (self._end, 5), (self._switch, 1)]
        if self.mode != "dra":
            changes += [(self._create_unit_pod, 6), (self._end_unit_pod, 3), (self._switch, 2)]
        actions = [action for action, _ in changes]
        (action,) = self.rng.choices(actions, [weight for _, weight in changes])
        action()

    def _create(self) -> None:
        if len(self.pods) >= MOST_PODS:
            return
        device_class, count, amounts = self.rng.choice(KINDS)
        name = f"pod-{self.figures.pods}"
        self.figures.pods += 1
        self.node.create(name, device_class, count=count, **amounts)
        self.pods.append(name)

    def _end(self) -> None:
        if not self.pods:
            return
        name = self.pods.pop(self.rng.randrange(len(self.pods)))
        way = self.rng.choice(["deleted", "deleted by force", "exited"])
        if way == "exited" and self.node.phase(name) != "Running":
            way = "deleted"
        self.witness.ends(self.node.pod(name), is_deleted=way == "deleted")
        if way == "exited":
            self.node.exit(name)
            self.ended.append(name)
            return
        if way == "deleted by force" and claim_names(self.node.pod(name)):
            self.witness.forced.add(self._claim(name))
        self.node.delete(name, grace_s=0 if way == "deleted by force" else None)

    def _switch(self) -> None:
        self._set_mode("share" if self.mode == "dra" else "dra")

    def _set_mode(self, mode: str) -> None:
        if mode == self.mode:
            return
        self.mode = mode
        self.node.label(mode)
        self.figures.switches += 1
        self.witness.away()

    def _create_unit_pod(self) -> None:
        units = self.rng.choice([8, 40])
        name = f"units-{self.figures.unit_pods}"
        self.figures.unit_pods += 1
        bound = self.node.bind(pod(name, {GPU_MEM: units}))
        self.units[name] = bound
        self._admitting.submit(self._admit, bound)

    def _admit(self, bound: Pod) -> None:
        admission: Admission = self.node.kubelet.admit(bound)
        if admission:
            self.witness.admitted(admission)

    def _end_unit_pod(self) -> None:
        if self.units:
            self._remove_unit_pod(self.rng.choice([*self.units]))

    def _remove_unit_pod(self, name: str) -> None:
        self._admitting.submit(int).result()  # it may be being admitted
        ended = self.units.pop(name)
        self.witness.unit_pod_ends(ended)
        self.node.end(ended)

    # Looks at everything.

    def look(self) -> None:
        """Wait until every pod that is bound runs, every pod that ends is gone, and compare what there is."""
        self._set_mode("dra")
        for name in [*self.units]:
            self._remove_unit_pod(name)
        self.witness.away()
        self._wait_for_driver()
        wait_seldom(lambda: not self._waiting(), "bound pods do not run")
        wait_seldom(lambda: not self.witness.ending, "deleted pods stay")
        running = {self._claim(name) for name, found in self._pods().items() if name in self.pods and runs(found)}
        records = {path.stem for path in (self.node.root / "state" / "claims").glob("*.json")}
        lost = {uid for uid in running if not any(uid in stem for stem in records)}
        assert not lost, f"no record of {lost} in {records}"
        assert not self.witness.faults, self.witness.faults
        there = self._pods()
        for name in self.ended:
            if there[name]["status"]["phase"] in ("Succeeded", "Failed"):
                self.node.delete(name, grace_s=0)
        left = self._pods()
        self.ended = [name for name in self.ended if name in left]

    def _claim(self, name: str) -> str:
        return str(self.node.claim_of(name)["metadata"]["uid"])

    def _pods(self) -> dict[str, Json]:
        """The pods of the API server by name."""
        return {found["metadata"]["name"]: found for found in self.node.server.pods()}

    def _waiting(self) -> list[str]:
        """Pods that have a node, and do not run."""
        there = self._pods()
        return [name for name in self.pods if there[name]["spec"].get("nodeName") and not runs(there[name])]

    def finish(self) -> None:
        """End every pod: nothing is left, and each GPU can be given whole."""
        self.look()
        constant = self.node.pod("constant")["metadata"]["uid"]
        assert self.node.kubelet.claims.container(constant, "main") is self.constant, "it was started again"
        for name in ["constant", *self.pods, *self.ended]:
            self.node.delete(name)
        wait_seldom(lambda: not self._pods(), "pods stay")
        wait_seldom(lambda: self.node.files() == (0, 0) and not self.node.checkpoint(), "files of claims stay")
        self.node.published()
        self.node.run_pod("all", WHOLE, count=GPUS)
        assert not self.witness.faults, self.witness.faults

    def scene(self) -> str:
        """What a reader of a fault needs."""
        claims = self.node.kubelet.claims
        last = self.node.processes[-1]
        return (
            f"mode {self.mode}, pods {[(name, self.node.phase(name)) for name in self.pods]}, units {[*self.units]}\n"
            f"registrations {claims.registrations[-5:]}, instances {self.node.instances()}\n"
            f"slice {'there' if self.node.slice() else 'missing'}, files {self.node.files()}, last calls {claims.calls[-5:]}\n"
            f"agent {last.poll()}: {self.node.stderr(last)[-6000:]}"
        )

    def report(self) -> str:
        """The figures as lines."""
        calls = Counter[tuple[str, bool]]((call.method, not call.error) for call in self.node.kubelet.claims.calls)
        counted = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in vars(self.figures).items())
        return (
            f"{counted}\n  {calls[PREPARE, True]} calls prepared claims and {calls[PREPARE, False]} failed; "
            f"{calls[UNPREPARE, True]} unprepared and {calls[UNPREPARE, False]} failed\n  {self.witness.report()}"
        )


def wait_seldom(condition: Callable[[], bool], what: str) -> None:
    """Wait for something. Each look copies many objects, and agent, kubelet and API server need the time of this process."""
    end = time.monotonic() + 2 * PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def runs(found: Json) -> bool:
    return bool(found["status"]["phase"] == "Running")


def run(seed: int, kills: int, *, every: int = 25, **periods: float) -> KilledNode:
    """So many kills; the node as it was left. The first fault ends it, as an exception.

    Args:
        seed: of what happens.
        kills: how often the agent is killed.
        every: kills from one report to the next.
        periods: of kubelet, those of the real one if none are given.
    """
    given = periods or {name: getattr(Periods(), name) for name in Periods.__slots__}
    with ClaimNode(gpus=box(GPUS, GIB), **given) as node:
        killed = KilledNode(node, random.Random(seed))
        try:
            killed.start()
            for done in range(0, kills, every):
                killed.run(min(every, kills - done))
                print(killed.report(), flush=True)
            killed.finish()
        except AssertionError:
            print(killed.report(), killed.scene(), sep="\n", flush=True)
            raise
        finally:
            killed.close()
        return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of what happens (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=1000, help="how often (default: %(default)s)")
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="wait in seconds (default: %(default)s)")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    killed = run(given.seed, given.kills)
    print(killed.report())
    if killed.witness.longest_start_s > given.longest:
        sys.exit(f"A pod waited for {killed.witness.longest_start_s:.1f} s. Is the machine busy?")
    print(
        "Nothing was lost, nothing was given twice, and no wait was long, "
        "but for GPUs of pods that were deleted by force."
    )


if __name__ == "__main__":
    main()
