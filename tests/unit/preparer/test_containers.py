"""Each container gets what it names of all claims: in every order of kubelet's, with other pods, and after a restart.

`Kubelet` follows k8s.io/kubernetes v1.36.3, pkg/kubelet/cm/dra: it prepares the claims of a pod that are not prepared
yet, keeps the devices of the answers, and hands them out by the requests that a container names.
"""

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent.domain import events as ev
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import Isolates, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.isolation.mps.share import share
from gpuagent.kubelet.dra.servicer import DraServicer
from gpuagent.preparer import waits
from gpuagent.preparer.preparer import Preparer
from tests.unit.domain.builders import pod_json
from tests.unit.domain.dra.test_prepare import result
from tests.unit.preparer.test_preparer import GPUS, Driver, Prepared

WHOLE = "16Gi"


class Limits(Driver):
    """It limits from outside, whatever the container's environment says."""

    def prepare(self, grant):
        return grant


class Mps(Driver):
    def prepare(self, grant):
        return share(grant, unit=MemoryUnit(), pipe_dir=Path("/mps"), shm=None)


DRIVERS = {"limits": Limits, "mps": Mps, "cgpu": Limits, "none": Limits}


class Meter:
    def timer(self, _method, _resource):
        return lambda _seconds: None

    def refused(self, *_):
        """Nothing is counted."""


class Context:
    def is_active(self):
        return True


class Node(Prepared):
    """A preparer behind its service, with one isolation driver."""

    def __init__(self, directory, driver="none"):
        self.name = driver
        super().__init__(directory)
        self.driver = DRIVERS[driver]()
        self.layer = Layer(
            driver=driver,
            installed=driver != "none",
            isolates=frozenset(Isolates) if driver != "none" else frozenset(),
            modes=frozenset({Mode.SHARE} if driver == "none" else {Mode.CGPU, Mode.MPS, Mode.CORE_MEM}),
        )
        self.node.send(ev.LayerSeen(Layer(driver="all", installed=False), 0.0))
        self.node.send(ev.LayerSeen(self.layer, 0.0))
        self.begin()

    def begin(self):
        super().begin()
        self.preparer = Preparer(**{**self.arguments, "isolation": {"none": Limits(), self.name: self.driver}})
        self.preparer.start()
        self.preparer.publish(self.node.state)
        self.service = DraServicer(self.preparer, None, Meter())

    def see(self, *pods):
        self.node.pods(*pods)
        self.preparer.publish(self.node.state)

    def claim(self, name, *results, pods=(), device_class=None):
        """A claim with these devices, reserved for these pods."""
        default = "gpu-share.gpuagent.io" if self.name == "none" else "gpu-isolated.gpuagent.io"
        self.add(*results, name=name, uid=f"uid-{name}", device_class=device_class or default)
        made = self.claims["default", name]
        names = dict.fromkeys(one["request"].partition("/")[0] for one in results)
        given = made["spec"]["devices"]["requests"][0]
        made["spec"]["devices"]["requests"] = [{**given, "name": request} for request in names]
        made["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]


@dataclass
class Kubelet:
    node: Node
    devices: dict = field(default_factory=dict)
    prepared: set = field(default_factory=set)
    pods: dict = field(default_factory=dict)

    def prepare(self, made):
        """Prepare the claims of a pod that are not prepared yet; the error, and whether the driver was asked."""
        new = [claim for claim in claims_of(made).values() if claim not in self.prepared]
        request = pb.NodePrepareResourcesRequest()
        for claim in dict.fromkeys(new):
            request.claims.add(uid=f"uid-{claim}", name=claim, namespace="default")
        if not new:
            return "", False
        answer = self.node.service._prepare(request, Context())  # noqa: SLF001 (what gRPC calls)
        errors = [entry.error for entry in answer.claims.values() if entry.error]
        if errors:
            return errors[0], True
        for claim in dict.fromkeys(new):
            shown = [device.cdi_device_ids[0] for device in answer.claims[f"uid-{claim}"].devices]
            assert len({*shown}) == len(shown), (
                "kubelet 1.35 shows these in the pod's status, and none may be there twice"
            )
            for device in answer.claims[f"uid-{claim}"].devices:
                self.devices.setdefault(claim, []).append(device)
        self.prepared.update(new)
        return "", True

    def unprepare(self, made):
        kept = {claim for other in self.pods.values() for claim in claims_of(other).values()}
        for claim in {*claims_of(made).values()} - kept:
            self.node.preparer.unprepare(f"uid-{claim}")
            self.devices.pop(claim, None)
            self.prepared.discard(claim)

    def names(self, made, container, order):
        """The CDI devices of a container, if kubelet walks its claims in this order."""
        requests = {}
        names = claims_of(made)
        for one in container["resources"]["claims"]:
            requests.setdefault(names[one["name"]], []).append(one.get("request", ""))
        found = []
        for claim in sorted(requests, key=order.index):
            for request in requests[claim]:
                for device in self.devices.get(claim, ()):
                    if not request or request in device.request_names:
                        found += device.cdi_device_ids
        return found


def claims_of(made):
    """Each name in the pod to the claim."""
    return {one["name"]: one["resourceClaimName"] for one in made["spec"]["resourceClaims"]}


def container(name, *named):
    """`named`: a claim, or a claim and a request of it."""
    claims = [dict(zip(("name", "request"), one.split("/"), strict=False)) for one in named]
    return {"name": name, "resources": {"claims": claims}}


def pod(name, *containers, init=()):
    made = pod_json(name, {})
    made["metadata"]["namespace"] = "default"
    made["spec"]["containers"] = list(containers)
    made["spec"]["initContainers"] = list(init)
    every = [one["name"] for given in (*init, *containers) for one in given["resources"]["claims"]]
    made["spec"]["resourceClaims"] = [{"name": one, "resourceClaimName": one} for one in dict.fromkeys(every)]
    return made


def runtime(directory, names, *, dedupes=True):
    """What a runtime makes of CDI devices: environment, device nodes, mounts."""
    known = {}
    for path in (directory / "cdi").glob("*.json"):
        for one in json.loads(path.read_text())["devices"]:
            assert one["containerEdits"], "the runtime refuses a device without edits"
            known[f"gpu.gpuagent.io/claim={one['name']}"] = one["containerEdits"]
    env, nodes, mounts = {}, set(), set()
    for name in dict.fromkeys(names) if dedupes else names:
        edits = known[name]
        env |= dict(text.split("=", 1) for text in edits.get("env", ()))
        nodes |= {one["path"] for one in edits.get("deviceNodes", ())}
        mounts |= {one["containerPath"] for one in edits.get("mounts", ())}
    return env, nodes, mounts


def wanted(node, made, given):
    """GPU index to the GiB of a container, or None for a whole GPU."""
    names = claims_of(made)
    memory = {}
    taken = set()
    for one in given["resources"]["claims"]:
        claim = names[one["name"]]
        results = node.claims["default", claim]["status"]["allocation"]["devices"]["results"]
        for place, found in enumerate(results):
            if one.get("request") not in {None, found["request"].partition("/")[0]} or (claim, place) in taken:
                continue
            taken.add((claim, place))
            index = next(n for n in range(len(GPUS)) if result(n)["device"] == found["device"])
            if found.get("adminAccess") or found["consumedCapacity"]["memory"] == WHOLE:
                memory.setdefault(index, None)
            else:
                gib = int(found["consumedCapacity"]["memory"].removesuffix("Gi"))
                memory[index] = (memory.get(index) or 0) + gib
    return memory


def seen(env, nodes):
    """The same as the container sees it."""
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
    indexes = [n for uuid in visible for n, gpu in enumerate(GPUS) if gpu.uuid == uuid]
    assert indexes == sorted(set(indexes)), "in the order of the bus, each once"
    assert {f"/dev/nvidia{n}" for n in indexes} == {path for path in nodes if path[-1].isdecimal()}
    memory = dict.fromkeys(indexes)
    shares = [int(n) for n in env.get("ALIYUN_COM_GPU_MEM_IDX", "").split(",") if n]
    amounts = env.get("ALIYUN_COM_GPU_MEM_CONTAINER", "").split(",")
    amounts = amounts * len(shares) if len(amounts) == 1 else amounts
    memory |= dict(zip(shares, map(int, filter(None, amounts)), strict=True)) if shares else {}
    if shares:
        assert env["ALIYUN_COM_GPU_MEM_POD"] == str(sum(memory[n] for n in shares))
    return memory


def check(kubelet, made, rng=None):
    """Every container of a pod has what it names, in every order of its claims."""
    every = [*made["spec"].get("initContainers", ()), *made["spec"]["containers"]]
    claims = [*dict.fromkeys(claims_of(made).values())]
    orders = [*itertools.permutations(claims)]
    if rng:
        orders = rng.sample(orders, min(4, len(orders)))
    for given, order in itertools.product(every, orders):
        for dedupes in (True, False):
            names = kubelet.names(made, given, order)
            env, nodes, _ = runtime(kubelet.node.directory, names, dedupes=dedupes)
            memory = wanted(kubelet.node, made, given)
            assert seen(env, nodes) == memory if memory else not env, (given["name"], order)
            caps = [gib for gib in memory.values() if gib]
            if kubelet.node.name == "mps" and caps:
                assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={caps[0] * 1024}M"


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "RETRY_S", 0.01)
    monkeypatch.setattr(waits, "SEEN_S", 0.01)
    monkeypatch.setattr(waits, "WAIT_S", 0.0)
    numbers = itertools.count()

    def make(driver="none"):
        return Node(tmp_path / str(next(numbers)), driver)

    return make


def runs(node, *pods):
    """The pods run, and each container has what it names."""
    node.see(*pods)
    kubelet = Kubelet(node)
    for made in pods:
        assert kubelet.prepare(made)[0] == ""
    for made in pods:
        check(kubelet, made)
    return kubelet


def refused(node, *pods):
    """The text with which one of the pods is refused."""
    node.see(*pods)
    kubelet = Kubelet(node)
    texts = [kubelet.prepare(made)[0] for made in pods]
    return next(text for text in texts if text)


def whole(index, request="gpu"):
    return result(index, WHOLE, request=request)


@pytest.mark.parametrize("driver", DRIVERS)
def test_two_requests_of_a_claim_go_to_two_containers(make, driver):
    node = make(driver)
    node.claim("c", result(0, "4Gi", request="a"), result(1, "6Gi", request="b"), pods=["p"])
    runs(node, pod("p", container("x", "c/a"), container("y", "c/b")))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_share_and_a_whole_gpu_go_to_two_containers(make, driver):
    node = make(driver)
    node.claim("c", result(0, "4Gi", request="a"), whole(1, "b"), pods=["p"])
    runs(node, pod("p", container("x", "c/a"), container("y", "c/b")))


@pytest.mark.parametrize("driver", ["none", "limits"])
def test_a_share_and_a_whole_gpu_are_side_by_side_in_a_container(make, driver):
    node = make(driver)
    node.claim("c", result(1, "4Gi"), pods=["p"])
    node.claim("d", whole(0), pods=["p"])
    runs(node, pod("p", container("x", "c", "d")))


@pytest.mark.parametrize("driver", DRIVERS)
def test_two_shares_of_one_gpu_are_one_share_of_a_container(make, driver):
    node = make(driver)
    node.claim("c", result(2, "4Gi"), pods=["p"])
    node.claim("d", result(2, "6Gi"), pods=["p"])
    runs(node, pod("p", container("x", "c", "d"), init=[container("i", "d", "c")]))


def test_two_whole_gpus_of_two_claims(make):
    """One of them is of `aliyun.com/gpu` in the limits."""
    node = make("mps")
    node.claim("c", whole(0), pods=["p"])
    node.claim("d", whole(1), pods=["p"])
    made = pod("p", container("x", "c", "d"))
    made["spec"]["resourceClaims"].pop()
    mappings = [{"containerName": "x", "resourceName": "aliyun.com/gpu", "requestName": "gpu"}]
    made["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "d", "requestMappings": mappings}
    node.see(made)
    kubelet = Kubelet(node)
    made["spec"]["resourceClaims"].append({"name": "d", "resourceClaimName": "d"})
    assert kubelet.prepare(made)[0] == ""
    check(kubelet, made)


def test_one_container_has_a_claim_whole_and_two_others_have_a_request_of_it(make):
    node = make()
    node.claim("c", result(0, "4Gi", request="a"), whole(1, "b"), pods=["p"])
    runs(node, pod("p", container("x", "c"), container("y", "c/a"), container("z", "c/b")))


def test_containers_with_a_claim_in_common_and_claims_of_their_own(make):
    """As kubernetes' `must map configs and devices to the right containers`."""
    node = make()
    for place, name in enumerate("cde"):
        node.claim(name, *[result(n, f"{place + 1}Gi", request=f"r{n}") for n in range(3)], pods=["p"])
    runs(node, pod("p", container("x", "c", "d"), container("y", "c", "e/r1")))


def test_a_container_names_two_of_three_requests(make):
    node = make()
    node.claim("c", *[result(n, f"{n + 1}Gi", request=f"r{n}") for n in range(3)], pods=["p"])
    runs(node, pod("p", container("x", "c/r2", "c/r0"), container("y", "c/r1")))


def test_an_alternative_is_named_by_its_request(make):
    node = make()
    node.claim("c", result(0, request="a/linked"), result(1, request="b/any"), pods=["p"])
    requests = node.claims["default", "c"]["spec"]["devices"]["requests"]
    for request, alternative in zip(requests, ("linked", "any"), strict=True):
        exactly = request.pop("exactly")
        request["firstAvailable"] = [{**exactly, "name": alternative}]
    runs(node, pod("p", container("x", "c/a"), container("y", "c/b")))


def test_a_claim_that_a_pod_has_by_two_names_is_one_claim(make):
    node = make()
    node.claim("c", result(0, request="a"), result(1, request="b"), pods=["p"])
    made = pod("p", container("x", "c/a", "again"))
    made["spec"]["resourceClaims"][1]["resourceClaimName"] = "c"
    runs(node, made)


def test_requests_of_other_drivers_and_without_devices_give_nothing(make):
    node = make()
    node.claim("c", result(0, request="a"), result(1, request="nic", driver="nic.example.com"), pods=["p"])
    node.see(pod("p", container("x", "c/a"), container("y", "c/nic"), container("z", "c/typo"), container("w", "c")))
    kubelet = Kubelet(node)
    made = pod("p", container("x", "c/a"), container("w", "c"))
    assert kubelet.prepare(made)[0] == ""
    env, _, _ = runtime(node.directory, kubelet.names(made, container("w", "c"), ["c"]))
    assert env["NVIDIA_VISIBLE_DEVICES"] == GPUS[0].uuid


def test_pods_that_share_a_claim_in_the_same_way(make):
    node = make("mps")
    node.claim("c", result(0, "4Gi", request="a"), result(1, "6Gi", request="b"), pods=["p", "q"])
    pods = [pod(name, container("x", "c/a"), container("y", "c/b")) for name in "pq"]
    kubelet = runs(node, *pods)
    assert len(kubelet.devices["c"]) == 3


def test_a_later_pod_of_which_the_driver_hears_nothing_gets_what_it_names(make):
    """Its claim is prepared already, so kubelet does not call. The devices for other uses are there from the start."""
    node = make()
    node.claim("c", result(0, "4Gi", request="a"), result(1, "6Gi", request="b"), pods=["p", "q"])
    kubelet = runs(node, pod("p", container("x", "c/a")))
    later = pod("q", container("y", "c/b"), container("z", "c"))
    assert kubelet.prepare(later) == ("", False)
    check(kubelet, later)


def test_a_later_container_that_the_driver_could_not_limit_does_not_start(make):
    node = make("mps")
    node.claim("c", result(0, "4Gi", request="a"), result(1, "6Gi", request="b"), pods=["p", "q"])
    kubelet = runs(node, pod("p", container("x", "c/a"), container("y", "c/b")))
    later = pod("q", container("z", "c"))
    assert kubelet.prepare(later) == ("", False)
    with pytest.raises(KeyError, match="all"):
        runtime(node.directory, kubelet.names(later, later["spec"]["containers"][0], ["c"]))


def test_monitors_are_in_containers_of_their_own(make):
    node = make("mps")
    monitor = [result(n, request="all", adminAccess=True) for n in range(4)]
    node.claim("c", result(1, "4Gi", request="a"), *monitor, pods=["p"])
    kubelet = runs(node, pod("p", container("x", "c/a"), container("y", "c/all")))
    env, _, mounts = runtime(
        node.directory, kubelet.names(pod("p", container("y", "c/all")), container("y", "c/all"), ["c"])
    )
    assert env.keys() == {"NVIDIA_VISIBLE_DEVICES"}
    assert not mounts


REFUSED = {
    "two claims and one of them": (["c"], ["c", "d"]),
    "a chain": (["c", "d"], ["d", "e"], ["e"]),
    "two requests and one of them": (["c/a", "c/b"], ["c/a"]),
    "a claim whole in two unions, and a request": (["c", "d"], ["c", "e"], ["c/a"]),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_what_the_runtime_cannot_express_is_refused(make, shape):
    node = make()
    node.claim("c", result(0, request="a"), result(1, request="b"), pods=["p"])
    node.claim("d", result(2), pods=["p"])
    node.claim("e", result(3), pods=["p"])
    containers = [container(f"x{n}", *named) for n, named in enumerate(REFUSED[shape])]
    text = refused(node, pod("p", *containers))
    assert "The container runtime would mix up their variables" in text
    assert "default/p[x" in text


@pytest.mark.parametrize("driver", ["mps", "cgpu"])
def test_a_driver_that_limits_by_variables_takes_one_size(make, driver):
    node = make(driver)
    node.claim("c", result(0, "4Gi"), pods=["p"])
    node.claim("d", whole(1), pods=["p"])
    assert f"isolation driver {driver} takes one size" in refused(node, pod("p", container("x", "c", "d")))


def test_a_monitor_and_a_share_in_one_container_are_refused(make):
    node = make()
    node.claim("c", result(0), pods=["p"])
    node.claim("d", result(1, adminAccess=True), pods=["p"])
    assert "use them in two containers" in refused(node, pod("p", container("x", "c", "d")))


def test_a_claim_whose_limits_are_variables_is_never_without_them(make):
    """A later pod with this claim alone would not be limited."""
    node = make("mps")
    for name in "cde":
        node.claim(name, result(0, "2Gi"), pods=["p"])
    assert "mix up their variables" in refused(node, pod("p", container("x", "c", "d"), container("y", "c", "e")))


# Random pods.


def random_claims(node, rng):
    """Claims with shares and whole GPUs that fit on the node."""
    free = dict.fromkeys(range(len(GPUS)), 16)
    claims = {}
    for name in "cdef"[: rng.randint(1, 4)]:
        results = []
        for request in "abc"[: rng.randint(1, 3)]:
            index = rng.randrange(len(GPUS))
            if rng.random() < 0.1:
                results.append(result(index, request=request, adminAccess=True))
            elif free[index] == 16 and rng.random() < 0.3:
                results.append(whole(index, request))
                free[index] = 0
            elif free[index] >= 2:
                results.append(result(index, "2Gi" if rng.random() < 0.6 else "1Gi", request=request))
                free[index] -= 2
        if results:
            node.claim(name, *results, pods=["p", "q"])
            claims[name] = [one["request"] for one in results]
    return claims


def random_pod(name, claims, rng):
    def named():
        claim = rng.choice(sorted(claims))
        requests = claims[claim]
        if len(requests) == 1 or rng.random() < 0.4:
            return [rng.choice([claim, f"{claim}/{requests[0]}"] if len(requests) == 1 else [claim])]
        return [f"{claim}/{request}" for request in rng.sample(requests, rng.randint(1, len(requests)))]

    containers = []
    for number in range(rng.randint(1, 3)):
        chosen = {}
        for _ in range(rng.randint(1, 3)):
            uses = named()
            chosen.setdefault(uses[0].partition("/")[0], uses)
        containers.append(container(f"x{number}", *itertools.chain.from_iterable(chosen.values())))
    split = rng.randint(0, len(containers) - 1)
    return pod(name, *containers[split:], init=containers[:split])


def can_be_refused(node, pods):
    """Whether a container watches and uses, or shares a claim with one that has other GPUs."""
    given = []
    for made in pods:
        for one in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
            names = [claims_of(made)[named["name"]] for named in one["resources"]["claims"]]
            given.append((frozenset(names), parts_of(node, made, one)))
    is_mixed = any(len({is_admin for *_, is_admin in parts}) > 1 for _, parts in given)
    pairs = itertools.combinations(given, 2)
    return is_mixed or any(first[0] & second[0] and first[1] != second[1] for first, second in pairs)


def parts_of(node, made, given):
    parts = set()
    for one in given["resources"]["claims"]:
        claim = claims_of(made)[one["name"]]
        results = node.claims["default", claim]["status"]["allocation"]["devices"]["results"]
        for place, found in enumerate(results):
            if one.get("request") in {None, found["request"]}:
                parts.add((claim, place, bool(found.get("adminAccess"))))
    return parts


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("start", range(3))
def test_random_pods_get_exactly_what_they_name(make, driver, start):
    outcomes = Counter()
    for number in range(start * 100, start * 100 + 25):
        rng = random.Random(number)
        node = make(driver)
        claims = random_claims(node, rng)
        if not claims:
            continue
        pods = [random_pod(name, claims, rng) for name in "pq"]
        outcomes[life(node, pods, rng)] += 1
    assert outcomes["ran"] > 5, outcomes


def life(node, pods, rng):
    """Pods come, the agent starts again, the node too, and pods go. What runs always has what it names."""
    kubelet = Kubelet(node)
    outcome = "refused"
    for place, made in enumerate(pods):
        node.see(*pods[: place + 1])
        rng.shuffle(made["spec"]["resourceClaims"])
        error, is_asked = kubelet.prepare(made)
        is_told = is_asked or not place
        if error:
            assert can_be_refused(node, pods[: place + 1]) or node.name in {"mps", "cgpu"}, error
            node.see(*kubelet.pods.values())
        elif is_told:
            kubelet.pods[made["metadata"]["name"]] = made
            outcome = "ran"
        for running in kubelet.pods.values():
            check(kubelet, running, rng)
    node.begin()
    node.see(*kubelet.pods.values())
    for path in (node.directory / "cdi").glob("*.json"):
        path.unlink()
    kubelet.prepared.clear()
    for made in rng.sample([*kubelet.pods.values()], len(kubelet.pods)):
        assert kubelet.prepare(made)[0] == ""
    for running in kubelet.pods.values():
        check(kubelet, running, rng)
    for name in rng.sample([*kubelet.pods], len(kubelet.pods)):
        made = kubelet.pods.pop(name)
        node.see(*kubelet.pods.values())
        kubelet.unprepare(made)
        for running in kubelet.pods.values():
            check(kubelet, running, rng)
    return outcome
