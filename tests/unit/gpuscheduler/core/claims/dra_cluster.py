"""Nodes that publish devices as agents do, a scheduler that gives the first device that fits, and the claims."""

from itertools import count

from gpuagent.domain import events as ev
from gpuagent.domain.dra.prepare import claimed_gpus
from gpuagent.domain.dra.resource_slice import slice_specs
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import DRA_DRIVER, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuscheduler.core.claims.gpu_claims import read_claim
from gpuscheduler.core.claims.gpu_devices import read_slice
from tests.unit.domain.builders import box, in_force
from tests.unit.domain.dra.scheduler_model import Scheduler

GIB = 2**30


class AgentNode:
    """A node in mode `dra`. Its agent prepares each claim as soon as it is allocated."""

    def __init__(self, name, gpus=8, gib=80, placement="binpack"):
        self.name = name
        self.agent = in_force(Mode.DRA, box(gpus, gib), isolates=frozenset())
        self.agent.label("dra", placement).holdings()
        self.scheduler = Scheduler()
        self.prepared = {}

    @property
    def slices(self):
        return slice_specs(self.agent.state, self.name)

    def objects(self):
        for end, spec in self.slices.items():
            yield {"metadata": {"name": f"{self.name}-{DRA_DRIVER}{end}"}, "spec": spec}

    def allocate(self, uid, wanted):
        if not self.scheduler.allocate(uid, self.slices, wanted):
            return False
        gpus = self.agent.state.gpus.by_uuid
        claimed = claimed_gpus(self.scheduler.claim(uid), "n", gpus, MemoryUnit())
        self.prepared[uid] = PreparedClaim(uid=uid, namespace="ml", name=uid, layer="none", gpus=claimed)
        self._report()
        return True

    def release(self, uid):
        self.scheduler.release(uid)
        del self.prepared[uid]
        self._report()

    def results(self, uid):
        return [result | {"pool": self.name} for result in self.scheduler.results[uid]]

    def gpus_in_use(self):
        return {results[0]["device"] for results in self.scheduler.results.values()}

    def _report(self):
        self.agent.send(ev.ClaimsPrepared(tuple(self.prepared.values()), self.agent.now))


def claim_object(uid, results=(), device_class="gpu-share.gpuagent.io", count=1, **amounts):
    exactly = {"deviceClassName": device_class, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    claim = {
        "metadata": {"namespace": "ml", "name": uid, "uid": uid},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    if results:
        claim["status"] = {"allocation": {"devices": {"results": list(results)}}}
    return claim


class Cluster:
    """kube-scheduler takes the node of the highest score on which the claim fits; `view` scores.

    The watch of `view` is `lag` claims behind.
    """

    def __init__(self, view, nodes, lag=0):
        self.view = view
        self.nodes = {node.name: node for node in nodes}
        self.unseen = []
        self.lag = lag
        self.uids = count()
        for node in nodes:
            self.publish(node)

    def publish(self, node):
        for found in node.objects():
            self.view.slice_seen(read_slice(found))

    def run(self, gib=None, cores=0):
        """A pod with a claim: for a share, or for a whole GPU. The name of its node; None if it fits nowhere."""
        uid = f"u{next(self.uids)}"
        amounts = {} if gib is None else {"memory": f"{gib}Gi"} | ({"cores": str(cores)} if cores else {})
        device_class = "gpu.gpuagent.io" if gib is None else "gpu-share.gpuagent.io"
        self.view.claim_seen(read_claim(claim_object(uid, device_class=device_class, **amounts)))
        wanted = {"attributes": {"type": "gpu"}}
        if gib is not None:
            wanted["capacity"] = {"memory": gib * GIB} | ({"cores": cores} if cores else {})
        fitting = [name for name, node in self.nodes.items() if node.allocate(uid, wanted)]
        for name in fitting:
            self.nodes[name].release(uid)
        if not fitting:
            return None
        scores = self.view.scores([read_claim(claim_object(uid, **amounts)).name], fitting)
        chosen = max(fitting, key=lambda name: scores[name])
        node = self.nodes[chosen]
        assert node.allocate(uid, wanted)
        self.unseen.append(claim_object(uid, node.results(uid), device_class=device_class, **amounts))
        while len(self.unseen) > self.lag:
            self.view.claim_seen(read_claim(self.unseen.pop(0)))
        self.publish(node)
        return chosen
