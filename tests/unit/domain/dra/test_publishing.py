"""Properties of what a node publishes, whatever happens to it: names, limits, order, and that no GPU is given twice."""

import re
from collections import Counter
from itertools import count

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuagent.domain import events as ev
from gpuagent.domain.dra.gpu_sets import SIZES
from gpuagent.domain.dra.prepare import claimed_gpus
from gpuagent.domain.dra.resource_slice import slice_specs
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.domain.sharing.claim import PreparedClaim
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.sharing.units import MemoryUnit
from tests.unit.domain.builders import DGX1V, gpu, in_force, uuid
from tests.unit.domain.dra.scheduler_model import Scheduler, consumes, counters

GIB = 2**30
MEMORY = {n: 81559 if n == 3 else 16384 for n in range(8)}

gpus = st.integers(0, 7)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("share"), st.integers(1, 20), st.sampled_from([0, 10, 30, 100])),
        st.tuples(st.just("whole")),
        st.tuples(st.just("fill")),
        st.tuples(st.just("set"), st.sampled_from(SIZES)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("lost"), gpus),
        st.tuples(st.just("back"), gpus),
        st.tuples(st.just("xid"), gpus),
        st.tuples(st.just("mig"), gpus),
        st.tuples(st.just("placement"), st.sampled_from(["binpack", "spread"])),
        st.tuples(st.just("restart"), st.booleans(), st.sets(gpus, max_size=2)),
        st.tuples(st.just("wait"), st.sampled_from([1, 100])),
    ),
    min_size=4,
    max_size=30,
)


class Life:
    """A node, the scheduler, and the claims that are prepared as soon as they are allocated."""

    def __init__(self, *, sets: bool):
        self.scheduler, self.uids, self.names = Scheduler(), count(), dict[str, frozenset[str]]()
        self.prepared: dict[str, PreparedClaim] = {}
        self.mig: set[int] = set()
        self.start(sets=sets, missing=set())

    def start(self, *, sets: bool, missing: set[int]):
        self.sets, self.missing = sets, missing
        self.node = in_force(Mode.DRA, (), gpu_sets=sets, isolates=frozenset())
        self.look()

    def look(self):
        there = [gpu(n, memory_mib=MEMORY[n], mig=n in self.mig) for n in range(8) if n not in self.missing]
        self.node.inventory(*there, wiring={uuid(n): DGX1V[uuid(n)] for n in range(8) if n not in self.missing})
        self.node.holdings().send(ev.ClaimsPrepared(tuple(self.prepared.values()), self.node.now))

    @property
    def slices(self):
        return slice_specs(self.node.state, "n")

    def step(self, kind, *args):
        match kind:
            case "share":
                amounts = {"memory": args[0] * GIB} | ({"cores": args[1]} if args[1] else {})
                self.claim({"attributes": {"type": "gpu"}, "capacity": amounts})
            case "whole":
                self.claim({"attributes": {"type": "gpu"}})
            case "fill":
                for _ in range(8):
                    self.claim({"attributes": {"type": "gpu"}})
            case "set":
                self.claim({"attributes": {"type": "gpu-set", "gpus": args[0]}})
            case "end" if self.prepared:
                uid = [*self.prepared][args[0] % len(self.prepared)]
                self.scheduler.release(uid)
                del self.prepared[uid]
            case "lost":
                self.node.send(ev.GpuLost(uuid(args[0]), "gone", self.node.now))
            case "back":
                self.missing.discard(args[0])
                self.look()
                self.node.send(ev.HealthRead(uuid(args[0]), HealthReading(), self.node.now, returned=True))
            case "xid":
                self.node.send(ev.XidRaised(uuid(args[0]), 79, self.node.now))
            case "mig" if not self.held(args[0]):
                self.mig ^= {args[0]}
                self.look()
            case "placement":
                self.node.label("dra", args[0])
            case "restart":
                self.start(sets=args[0], missing=set(args[1]))
            case "wait":
                self.node.wait(args[0])
        self.node.send(ev.ClaimsPrepared(tuple(self.prepared.values()), self.node.now))

    def held(self, n):
        return any(one.uuid == uuid(n) for claim in self.prepared.values() for one in claim.gpus)

    def claim(self, wanted):
        uid = f"u{next(self.uids)}"
        if self.scheduler.allocate(uid, self.slices, wanted):
            found = claimed_gpus(self.scheduler.claim(uid), "n", self.node.state.gpus.by_uuid, MemoryUnit())
            self.prepared[uid] = PreparedClaim(uid=uid, namespace="ml", name=uid, layer="none", gpus=found)

    # -- what always holds

    def check(self):
        slices = self.slices
        devices = [device for spec in slices.values() for device in spec.get("devices", ())]
        assert len({device["name"] for device in devices}) == len(devices), "no two devices of one name"
        for device in devices:
            members = frozenset(consumes(device)) or frozenset({device["name"]})
            assert self.names.setdefault(device["name"], members) == members, "a name is of one thing for ever"
            assert consumes(device).keys() <= counters(slices).keys()
            self.check_limits(device)
        self.check_slices(slices)
        assert slice_specs(self.node.state, "n") == slices, "the order follows from the state alone"
        self.check_sold()

    def check_slices(self, slices):
        for name, spec in slices.items():
            assert ("devices" in spec) != ("sharedCounters" in spec)
            assert len(spec.get("devices", ())) <= 64
            assert all(len(one["counters"]) <= 32 for one in spec.get("sharedCounters", ()))
            assert spec["pool"]["resourceSliceCount"] == len(slices)
            assert re.fullmatch(r"[a-z0-9-]*", name)

    def check_limits(self, device):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"])
        assert len(device["attributes"]) + len(device.get("capacity", {})) <= 32
        assert all(len(str(next(iter(value.values())))) <= 64 for value in device["attributes"].values())
        keys = [taint["key"] for taint in device.get("taints", ())]
        assert len(set(keys)) == len(keys) <= 16

    def check_sold(self):
        """No GPU is given beyond what it has, and whole to one claim alone."""
        used, sharers = Counter[str](), Counter[str]()
        for claim in self.prepared.values():
            for one in claim.gpus:
                used[one.uuid] += one.memory_mib
                sharers[one.uuid] += 1
        whole = {one.uuid for claim in self.prepared.values() for one in claim.gpus if one.whole}
        assert all(mib <= MEMORY[int(name[-1])] for name, mib in used.items()), used
        assert all(sharers[name] == 1 for name in whole)
        assert all(number <= 20 for number in sharers.values())


@settings(deadline=None, max_examples=100)
@example(sets=True, happens=[("set", 4), ("restart", False, set()), ("fill",)])
@example(sets=True, happens=[("set", 4), ("restart", True, {0}), ("fill",), ("restart", True, set()), ("fill",)])
@given(st.booleans(), steps)
def test_no_gpu_is_given_twice_and_every_slice_is_one_that_the_api_takes(sets, happens):
    life = Life(sets=sets)
    life.check()
    for step in happens:
        life.step(*step)
        life.check()
