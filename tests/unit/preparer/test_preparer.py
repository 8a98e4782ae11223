"""Claims are prepared and unprepared; their files outlive the agent, and the claim."""

import contextlib
import errno
import json
import os
import threading
import time
from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_taints import FENCED_TAINT, UNHEALTHY_TAINT
from gpuagent.domain.dra.resource_slice import device_name
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import UnreadableGpu
from gpuagent.domain.gpus.health_verdict import HealthReading
from gpuagent.domain.pods.holdings import NVIDIA_GPU
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import GPU_MEM, Isolates, Kind, Mode
from gpuagent.isolation.interface import CannotIsolateError, IsolationError
from gpuagent.kube.api.claim_fields import CLAIM_FIELDS
from gpuagent.kube.api.client import _decoded
from gpuagent.preparer import claim_files, waits
from gpuagent.preparer.claim_files import ClaimFiles
from gpuagent.preparer.preparer import Preparer
from standin.waiting import PATIENCE_S
from tests.unit.domain.builders import NodeUnderTest, box, holding, node_json, pod_json, unit_ids
from tests.unit.domain.dra.prepared_claims import claiming
from tests.unit.domain.dra.test_prepare import claim, result

GPUS = box(4, 16)
UID = "0a1b2c3d-0000-4000-8000-000000000001"


class Driver:
    """An isolation driver that fails as often as a test sets."""

    def __init__(self):
        self.failures, self.never = 0, ""
        self.tried = threading.Event()

    def prepare(self, grant):
        if self.never:
            raise CannotIsolateError(self.never)
        return replace(grant, env={**grant.env, "ISOLATED": "yes"})

    def verify(self, grant, starting):
        self.tried.set()
        if self.failures:
            self.failures -= 1
            raise IsolationError("the layer is not ready")


@pytest.fixture
def one(tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "RETRY_S", 0.01)
    return Prepared(tmp_path)


class Prepared:
    """A preparer, the claims that the API server has, and the directories."""

    def __init__(self, directory, pods=()):
        """With `pods` None, the pods of the node are not known yet."""
        self.directory, self.driver, self.claims = directory, Driver(), {}
        self.forgotten, self.asked = set(), []
        self.node = NodeUnderTest(Mode.DRA, GPUS, isolates=frozenset())
        self.layer = Layer(driver="all", installed=True, isolates=frozenset(Isolates), modes=frozenset(Mode))
        self.node.send(ev.LayerSeen(self.layer, 0.0))
        if pods is not None:
            self.node.pods(*pods)
        self.begin()

    def begin(self):
        self.changes, self.seen, self.events = [], [], []
        self.arguments = {
            "pool": "n",
            "read_claim": self.read,
            "isolation": {"all": self.driver, "none": Driver()},
            "strategy": DeviceStrategy.DEVICE_NODES,
            "files": ClaimFiles(self.directory / "state", self.directory / "cdi"),
            "changed": self.change,
            "send_event": self.events.append,
            "is_forgotten": lambda claim: claim.uid in self.forgotten,
            "is_of_administrators": self.is_of_administrators,
        }
        self.preparer = Preparer(**self.arguments)
        self.preparer.start()
        self.preparer.publish(self.node.state)

    def read(self, namespace, name):
        if (namespace, name) not in self.claims:
            raise Refusal(Reason.INTERNAL, f"cannot read claim {namespace}/{name}")
        text = json.dumps(self.claims[namespace, name]).encode()
        return _decoded(200, text, CLAIM_FIELDS)

    def is_of_administrators(self, namespace):
        self.asked.append(namespace)
        return None if namespace == "unreadable" else namespace == "operators"

    def change(self, claims):
        self.seen.append(claims)
        self.changes.append([one.uid for one in claims])

    def add(self, *results, name="c", uid=UID, namespace="default", **given):
        self.claims[namespace, name] = claim(*results, **given) | {"metadata": {"uid": uid}}

    def prepare(self, name="c", uid=UID, is_wanted=lambda: True, namespace="default"):
        return self.preparer.prepare(uid, namespace, name, is_wanted)

    @contextlib.contextmanager
    def waiting(self, is_wanted=lambda: True):
        """While a call waits for the layer; the refusals of that call, once it has ended."""
        self.driver.failures, refused = 10**9, []

        def call():
            try:
                self.prepare(is_wanted=is_wanted)
            except Refusal as refusal:
                refused.append(refusal)

        thread = threading.Thread(target=call)
        thread.start()
        assert self.driver.tried.wait(PATIENCE_S)
        yield refused
        thread.join(PATIENCE_S)

    def edits(self, uid=UID):
        """By device of the claim."""
        (path,) = (self.directory / "cdi").glob(f"*{uid}.json")
        devices = json.loads(path.read_text())["devices"]
        return {device["name"].removeprefix(f"{uid}-"): device["containerEdits"] for device in devices}

    def env(self, uid=UID):
        (edits,) = self.edits(uid).values()
        return dict(text.split("=", 1) for text in edits["env"])

    def files(self):
        return [len([*(self.directory / name).glob("*.json")]) for name in ("state/claims", "cdi")]


def test_a_claim_is_prepared_with_isolation_and_unprepared(one):
    one.add(result(1))
    prepared, names = one.prepare()
    assert (prepared.layer, [*names.values()]) == ("all", [()])
    assert one.env()["NVIDIA_VISIBLE_DEVICES"] == GPUS[1].uuid
    assert one.env()["ISOLATED"] == "yes"
    assert one.changes[-1] == [UID]
    one.preparer.unprepare(UID)
    assert (one.files(), one.changes[-1]) == ([0, 0], [])
    one.preparer.unprepare(UID)


def test_each_container_with_gpus_in_its_limits_gets_its_own(one):
    """The scheduler makes one claim for the GPUs of all containers of a pod, with a request for each container."""
    first = [result(n, "16Gi", request="container-0-request-0") for n in (2, 0)]
    one.add(*first, result(1, "16Gi", request="container-1-request-0"), device_class="gpu.gpuagent.io")
    made = one.claims["default", "c"]
    made["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    made["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    pod = pod_json("p", {}, {})
    pod["metadata"]["namespace"] = "default"
    mappings = [
        {"containerName": name, "requestName": f"container-{n}-request-0"} for n, name in enumerate(("main", "main-1"))
    ]
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c", "requestMappings": mappings}
    one.node.pods(pod)
    one.preparer.publish(one.node.state)
    one.prepare()
    seen = {device: edits["env"] for device, edits in one.edits().items()}
    visible = {
        device: dict(text.split("=", 1) for text in env)["NVIDIA_VISIBLE_DEVICES"] for device, env in seen.items()
    }
    both = f"{GPUS[0].uuid},{GPUS[2].uuid}"
    every = ",".join(GPUS[n].uuid for n in range(3))
    assert visible == {
        device_name(GPUS[0]): both,
        device_name(GPUS[2]): both,
        device_name(GPUS[1]): GPUS[1].uuid,
        "all": every,
    }
    nodes = [one["path"] for one in one.edits()[device_name(GPUS[1])]["deviceNodes"]]
    assert [path for path in nodes if path[-1].isdecimal()] == ["/dev/nvidia1"]


def test_files_are_written_again_after_a_reboot_emptied_the_folder(one):
    one.add(result(1))
    first = one.prepare()
    for path in (one.directory / "cdi").iterdir():
        path.unlink()
    assert one.prepare() == first
    assert one.files() == [1, 1]


def test_another_agent_has_the_claims_of_the_former_one_also_when_they_are_gone(one):
    one.add(result(1))
    one.prepare()
    (one.directory / "state/claims/odd.json").write_text("{")
    one.claims.clear()
    one.begin()
    assert one.changes == [[UID, "odd"]]
    one.preparer.unprepare(UID)
    assert one.files() == [1, 0], "the record that cannot be read stays for people to look at"


@pytest.mark.parametrize("text", ["", "{", '{"gpus": 5}', "[" * 100_000, "\0\xff"])
def test_a_record_that_cannot_be_read_is_a_claim_that_may_have_any_gpu(one, text):
    one.add(result(1))
    one.prepare()
    (record,) = (one.directory / "state/claims").iterdir()
    record.write_text(text, encoding="latin-1")
    one.begin()
    assert [[claim.gpus for claim in claims] for claims in one.seen] == [[()]]
    one.prepare()
    assert [len(claim.gpus) for claim in one.seen[-1]] == [1]
    one.preparer.unprepare(UID)
    assert one.files() == [0, 0]


def test_what_an_agent_left_that_ended_amid_a_write_is_removed_later(one):
    one.add(result(1))
    one.prepare()
    scratch = [one.directory / "state/claims/.x.json.a1", one.directory / f"cdi/.gpu.gpuagent.io-claim-{UID}.json.b2"]
    others = [one.directory / "cdi/.of-another.json.c3"]
    for path in (*scratch, *others):
        path.write_text("{")
    one.begin()
    assert all(path.exists() for path in scratch), "another agent may be writing them"
    for path in (*scratch, *others):
        os.utime(path, (0, 0))
    one.begin()
    assert not any(path.exists() for path in scratch)
    assert all(path.exists() for path in others)


def test_a_call_waits_for_the_layer_that_is_coming(one):
    one.add(result(1))
    one.driver.failures = 3
    one.prepare()
    assert one.driver.failures == 0


def test_a_layer_that_does_not_come_is_a_sentence(one, monkeypatch):
    monkeypatch.setattr(waits, "WAIT_S", 0.05)
    one.add(result(1))
    one.node.send(ev.LayerSeen(replace(one.layer, problem="the daemon is dead"), 0.0))
    one.preparer.publish(one.node.state)
    with pytest.raises(
        Refusal, match="isolation driver all does not serve the claim now: the daemon is dead"
    ) as caught:
        one.prepare()
    assert caught.value.reason is Reason.ISOLATION
    assert one.files() == [0, 0]
    one.add(result(1), device_class="gpu-share.gpuagent.io")
    assert one.prepare()[0].layer == "none"


def test_a_gpu_that_cannot_be_isolated_is_shared_without_isolation_alone(one, monkeypatch):
    """One GPU of the node is too old for MPS, for example. Its device has the attribute ``isolation: none``."""
    monkeypatch.setattr(waits, "WAIT_S", 0.05)
    one.node.send(ev.LayerSeen(replace(one.layer, left_out={GPUS[1].uuid: "it is too old"}), 0.0))
    one.preparer.publish(one.node.state)
    one.add(result(1))
    with pytest.raises(Refusal, match="all does not serve the claim now: it is too old"):
        one.prepare()
    one.add(result(1), device_class="gpu-share.gpuagent.io")
    assert one.prepare()[0].layer == "none"
    one.add(result(2), device_class="gpu-share.gpuagent.io")
    assert one.prepare()[0].layer == "all"


def test_the_end_of_the_agent_ends_waiting_calls(one):
    one.add(result(1))
    with one.waiting() as refused:
        one.preparer.stop()
    assert [refusal.reason for refusal in refused] == [Reason.ISOLATION]


def test_a_call_that_kubelet_gave_up_ends_and_leaves_nothing(one):
    """Else it would delay the end of its pod, or prepare the claim after it was unprepared."""
    one.add(result(1))
    wanted = threading.Event()
    wanted.set()
    with one.waiting(wanted.is_set) as refused:
        wanted.clear()
    assert [refusal.reason for refusal in refused] == [Reason.ISOLATION]
    one.driver.failures = 0
    with pytest.raises(Refusal, match="kubelet no longer waits"):
        one.prepare(is_wanted=wanted.is_set)
    assert (one.files(), one.changes, one.events) == ([0, 0], [[]], [])


def test_a_gpu_that_is_given_otherwise_during_a_wait_is_not_given_again(one):
    one.add(result(1))
    with one.waiting() as refused:
        one.node.holdings(holding("p", unit_ids(1, Kind.MEMORY_SHARE, 0), GPU_MEM))
        one.preparer.publish(one.node.state)
        one.driver.failures = 0
    assert [refusal.reason for refusal in refused] == [Reason.STILL_HELD]
    assert (one.files(), one.changes) == ([0, 0], [[]])


def test_a_gpu_that_pods_of_another_mode_have_is_not_given_again(one):
    one.node.holdings(holding("p", unit_ids(1, Kind.MEMORY_SHARE, 0), GPU_MEM))
    one.preparer.publish(one.node.state)
    one.add(result(1))
    with pytest.raises(Refusal, match="GPU 1 is still in use by pods of another mode"):
        one.prepare()
    assert [event.reason for event in one.events] == ["GPURefused"]
    one.node.holdings()
    one.preparer.publish(one.node.state)
    one.prepare()


def offered_elsewhere(node):
    """NVIDIA's own plugin advertises the GPUs. The claim tolerates the taint of the device."""
    node.send(ev.NodeSeen({**node_json("dra"), "status": {"allocatable": {NVIDIA_GPU: "4"}}}, 1.0))


def held_in_mode_default(node):
    """A pod of NVIDIA's own plugin has it, after the node was given back."""
    node.label("default").holdings(holding("p", [GPUS[1].uuid], NVIDIA_GPU), began=1.0)


def held_without_a_list(node):
    """A pod of the mode in force has it, and the mode advertises nothing for want of isolation."""
    node.label("cgpu").holdings(holding("p", unit_ids(1, Kind.MEMORY_CGPU, 0), GPU_MEM), began=1.0)


def offered_in_mode_share(node):
    """Nobody has it, and kubelet may give it at any moment. So no pod ends for which the claim could wait."""
    node.label("share").holdings(began=20.0)


OF_DRA = "The claim is prepared as soon as no other pod can have the GPU"
OF_OTHERS = "The node has left mode dra for mode {}, which gives its GPUs to other pods: delete every pod of the claim"


@pytest.mark.parametrize(
    ("happen", "reason", "text"),
    [
        (offered_elsewhere, Reason.STILL_HELD, f"another plugin, which advertises nvidia.com/gpu. {OF_DRA}"),
        (
            held_in_mode_default,
            Reason.NOT_OFFERED,
            "still in use by pods of another mode. " + OF_OTHERS.format("default"),
        ),
        (held_without_a_list, Reason.NOT_OFFERED, "still in use by pods of another mode. " + OF_OTHERS.format("cgpu")),
        (offered_in_mode_share, Reason.NOT_OFFERED, "offered to pods of another mode. " + OF_OTHERS.format("share")),
    ],
)
def test_a_claim_that_comes_late_gets_no_gpu_that_others_have_or_may_get(one, happen, reason, text):
    one.node.send(ev.LayerSeen(replace(one.layer, problem="the daemon is dead"), 0.0))
    happen(one.node)
    one.preparer.publish(one.node.state)
    one.add(result(1), device_class="gpu-share.gpuagent.io")
    with pytest.raises(Refusal) as caught:
        one.prepare()
    assert caught.value.reason is reason
    assert text in caught.value.message


def fenced_there(one):
    fenced(one.node.label("default").holdings(began=1.0))


def lost_there(one):
    lost(one.node.label("default").holdings(began=1.0))


def without_a_layer_there(one):
    one.node.send(ev.LayerSeen(replace(one.layer, problem="the daemon is dead"), 0.0))
    one.node.label("default").holdings(began=1.0)


def in_use_there(one):
    """Another claim has the GPU whole, so the other mode does not offer it yet."""
    one.add(result(1, "16Gi"), name="d", uid=OTHER_UID, device_class="gpu.gpuagent.io")
    one.prepare("d", OTHER_UID)
    one.node.send(ev.ClaimsPrepared(one.seen[-1], one.node.now))
    one.node.label("share").holdings(began=20.0)


@pytest.mark.parametrize(
    ("happen", "reason", "text"),
    [
        (fenced_there, Reason.GPU_UNUSABLE, "is fenced"),
        (lost_there, Reason.GPU_UNUSABLE, "cannot be used now"),
        (without_a_layer_there, Reason.ISOLATION, "does not serve the claim now"),
        (in_use_there, Reason.STILL_HELD, "The claim is prepared when that ends"),
    ],
)
def test_whatever_a_claim_waits_for_people_learn_that_its_node_has_left_the_mode(
    one, monkeypatch, happen, reason, text
):
    """Its GPU goes to pods of the other mode, maybe before the claim gets what it waits for."""
    monkeypatch.setattr(waits, "WAIT_S", 0.0)
    happen(one)
    one.preparer.publish(one.node.state)
    one.add(result(1))
    with pytest.raises(Refusal) as caught:
        one.prepare()
    assert caught.value.reason is reason
    assert text in caught.value.message
    mode = one.node.state.node.mode
    assert OF_OTHERS.format(mode) in caught.value.message
    assert caught.value.message in one.events[-1].message


def test_a_claim_that_is_prepared_keeps_its_pods_after_its_node_has_left_the_mode(one, monkeypatch):
    """Kubelet has it prepared again, for example after a restart. Its pods run, so the sentence must not say to delete them."""
    monkeypatch.setattr(waits, "WAIT_S", 0.0)
    one.add(result(1))
    one.prepare()
    one.node.send(ev.LayerSeen(replace(one.layer, problem="the daemon is dead"), 0.0))
    one.node.label("default").holdings(began=1.0)
    one.preparer.publish(one.node.state)
    with pytest.raises(Refusal) as caught:
        one.prepare()
    assert "delete every pod" not in caught.value.message


def test_no_claim_is_answered_before_the_mode_of_the_node_is_known(one, monkeypatch):
    """Without it, a refusal would name a mode that the node may not have."""
    monkeypatch.setattr(waits, "WAIT_S", 0.0)
    one.node.holdings(holding("p", unit_ids(1, Kind.MEMORY_SHARE, 0), GPU_MEM))
    state = one.node.state
    one.preparer.publish(replace(state, node=replace(state.node, mode=Mode.DEFAULT, mode_known=False)))
    one.add(result(1))
    with pytest.raises(Refusal, match="has not read the node's mode"):
        one.prepare()


def test_another_claim_of_the_same_name_is_refused(one):
    one.add(result(1), uid="another")
    with pytest.raises(Refusal, match="has UID another by now"):
        one.prepare()


@pytest.mark.parametrize("uid", ["../x", "", "a/b", "x" * 64])
def test_a_uid_that_cannot_be_a_file_name_is_refused(one, uid):
    one.add(result(1), uid=uid)
    for call in (lambda: one.prepare(uid=uid), lambda: one.preparer.unprepare(uid)):
        with pytest.raises(Refusal, match="is not the UID of a claim"):
            call()


def test_people_learn_while_a_call_waits_for_what_it_waits(one, monkeypatch):
    """Kubelet says nothing until it has the answer. One Event is enough for the call."""
    monkeypatch.setattr(waits, "EVENT_AFTER_S", 0.0)
    one.add(result(1))
    with one.waiting() as refused:
        end = time.monotonic() + PATIENCE_S
        while not one.events and time.monotonic() < end:
            time.sleep(0.01)
        one.driver.failures = 0
    assert not refused
    (event,) = one.events
    assert "the layer is not ready" in event.message


def test_two_pods_of_one_claim_are_prepared_at_once(one):
    one.add(result(1))
    one.driver.failures = 20
    threads = [threading.Thread(target=one.prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert one.files() == [1, 1]
    assert one.changes[-1] == [UID]


def test_a_claim_is_held_while_its_files_are_written(one, monkeypatch):
    """Another claim's record may come meanwhile, and have the agent read all of them."""
    write = ClaimFiles.write

    def written(files, *given):
        one.preparer.refresh()
        write(files, *given)

    monkeypatch.setattr(ClaimFiles, "write", written)
    one.add(result(1))
    one.prepare()
    one.preparer.refresh()
    assert one.changes == [[], [UID]]


OTHER_UID = "0a1b2c3d-0000-4000-8000-000000000002"


def two_claims(one, *, containers):
    """Two claims of a pod: each container uses these of them."""
    pod = claiming("p", "c", "d", containers=len(containers))
    pod["metadata"]["namespace"] = "default"
    for container, used in zip(pod["spec"]["containers"], containers, strict=True):
        container["resources"]["claims"] = [{"name": f"c{n}"} for n in used]
    for name, uid, gpu in (("c", UID, 1), ("d", OTHER_UID, 2)):
        one.add(result(gpu), name=name, uid=uid)
        one.claims["default", name]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    return pod


def test_a_container_with_two_claims_beside_one_with_one_of_them_is_refused(one):
    """Both get the CDI device of the first claim, and it can name the limit of one of them."""
    one.node.pods(two_claims(one, containers=[[0], [0, 1]]))
    one.preparer.publish(one.node.state)
    for _ in range(2):
        one.prepare()
        with pytest.raises(Refusal, match="both use claim c, and differ in what else they use") as caught:
            one.prepare("d", OTHER_UID)
        assert caught.value.reason is Reason.MIXED_RESOURCES
    assert one.files() == [1, 1]


def test_two_containers_of_a_pod_have_a_claim_each(one):
    one.node.pods(two_claims(one, containers=[[0], [1]]))
    one.preparer.publish(one.node.state)
    one.prepare()
    one.prepare("d", OTHER_UID)
    assert one.files() == [2, 2]


def test_a_claim_waits_until_its_pod_was_seen(one, monkeypatch):
    """Kubelet may see the pod first. Without the pod, nothing shows that its container has another claim."""
    pod = two_claims(one, containers=[[0, 1]])

    def wait(*_):
        one.node.pods(pod)
        one.preparer.publish(one.node.state)
        return True

    monkeypatch.setattr(threading.Condition, "wait", wait)
    one.prepare()
    one.prepare("d", OTHER_UID)
    assert one.env()["NVIDIA_VISIBLE_DEVICES"] == f"{GPUS[1].uuid},{GPUS[2].uuid}"


def test_a_pod_that_is_never_seen_delays_a_whole_gpu_only(one, monkeypatch):
    monkeypatch.setattr(waits, "SEEN_S", 0.05)
    one.add(result(1, "16Gi"), device_class="gpu.gpuagent.io")
    one.claims["default", "c"]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    one.prepare()
    assert one.files() == [1, 1]


def test_each_of_two_agents_has_the_claims_of_the_other(one):
    other = Prepared(one.directory)
    one.add(result(1))
    one.prepare()
    other.preparer.refresh()
    assert other.changes[-1] == [UID]
    other.preparer.unprepare(UID)
    one.preparer.refresh()
    one.preparer.refresh()
    assert one.changes == [[], [UID], []], "what is known already is no change"


# The last line of defense between claims.


def whole_gpu_of_two(one):
    """Two claims whose status names the same GPU; the first is prepared."""
    whole = result(1, "16Gi")
    for name, uid in (("c", UID), ("d", OTHER_UID)):
        one.add(whole, name=name, uid=uid, device_class="gpu.gpuagent.io")
    one.prepare()


def used_by_pods(one, *claims):
    """Living pods of these claims."""
    pods = [claiming(f"of-{name}", name) for name in claims]
    for pod in pods:
        pod["metadata"]["namespace"] = "default"
    one.node.pods(*pods)
    one.preparer.publish(one.node.state)


def test_a_gpu_that_another_claim_has_whole_is_refused_by_the_name_of_that_claim(one, monkeypatch):
    monkeypatch.setattr(waits, "SEEN_S", 0.05)
    whole_gpu_of_two(one)
    used_by_pods(one, "c", "d")
    with pytest.raises(Refusal, match="GPU 1 is still prepared as a whole GPU for claim default/c") as caught:
        one.prepare("d", OTHER_UID)
    assert caught.value.reason is Reason.STILL_HELD
    assert (one.files(), one.changes[-1]) == ([1, 1], [UID])
    assert [event.message for event in one.events][-1].startswith("claim default/d: GPU 1 is still prepared")


def test_claims_of_one_name_in_two_namespaces_are_two_claims(one, monkeypatch):
    monkeypatch.setattr(waits, "SEEN_S", 0.05)
    whole_gpu_of_two(one)
    one.claims["other", "c"] = one.claims["default", "d"]
    used_by_pods(one, "c")
    with pytest.raises(Refusal, match="for claim default/c"):
        one.preparer.prepare(OTHER_UID, "other", "c")


def test_a_call_waits_for_a_claim_that_is_just_being_unprepared(one):
    """Its pod was deleted by force: the API server has forgotten it, and its container still ends."""
    whole_gpu_of_two(one)
    used_by_pods(one, "d")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(one.prepare("d", OTHER_UID)))
    thread.start()
    thread.join(0.1)
    assert not answers, "the container of the other claim still runs"
    one.preparer.unprepare(UID)
    thread.join(PATIENCE_S)
    assert len(answers) == 1
    assert (one.files(), one.changes[-1]) == ([1, 1], [OTHER_UID])


def test_a_wait_for_another_claim_ends_with_the_call(one):
    whole_gpu_of_two(one)
    for until in (0.0, time.monotonic() + 0.05):
        with pytest.raises(Refusal, match="for claim default/c"):
            one.preparer.prepare(OTHER_UID, "default", "d", until=until)


def test_a_claim_that_kubelet_and_the_api_server_forgot_is_dropped_at_once(one):
    whole_gpu_of_two(one)
    used_by_pods(one, "d")
    one.forgotten.add(UID)
    one.prepare("d", OTHER_UID)
    assert (one.files(), one.changes[-1]) == ([1, 1], [OTHER_UID])


def test_a_forgotten_claim_whose_files_stay_still_holds_its_gpu(one, monkeypatch):
    whole_gpu_of_two(one)
    one.forgotten.add(UID)
    monkeypatch.setattr(ClaimFiles, "remove", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    with pytest.raises(Refusal, match="for claim default/c"):
        one.preparer.prepare(OTHER_UID, "default", "d", until=time.monotonic() + 0.05)


def test_a_prepared_claim_is_prepared_again_whatever_others_have(one):
    """A container starts again, or the node did. An earlier agent may have prepared both."""
    whole_gpu_of_two(one)
    record = one.directory / f"state/claims/{UID}.json"
    twin = record.with_name(f"{OTHER_UID}.json")
    twin.write_text(record.read_text().replace(UID, OTHER_UID).replace('"c"', '"d"'))
    one.begin()
    one.prepare()
    one.prepare("d", OTHER_UID)
    assert sorted(one.changes[-1]) == [UID, OTHER_UID]


def test_a_former_agents_claim_is_in_the_way_after_a_restart(one):
    whole_gpu_of_two(one)
    one.begin()
    with pytest.raises(Refusal, match="for claim default/c"):
        one.preparer.prepare(OTHER_UID, "default", "d", until=0.0)


def test_two_agents_never_prepare_one_gpu_for_two_claims(one):
    """One replaces the other, and both have a call in progress. Their files show each what the other has."""
    other = Prepared(one.directory)
    for agent, name, uid in ((one, "c", UID), (other, "d", OTHER_UID)):
        agent.add(result(1, "16Gi"), name=name, uid=uid, device_class="gpu.gpuagent.io")
    one.prepare()
    with pytest.raises(Refusal, match="for claim default/c"):
        other.preparer.prepare(OTHER_UID, "default", "d", until=0.0)


def test_many_claims_at_once_get_no_more_than_there_is(one):
    """Sixteen claims of 4 GiB each for one GPU of 16 GiB."""
    uids = [f"0a1b2c3d-0000-4000-8000-0000000001{n:02}" for n in range(16)]
    for n, uid in enumerate(uids):
        one.add(result(1), name=f"c{n}", uid=uid)
    refused = []

    def call(n, uid):
        try:
            one.preparer.prepare(uid, "default", f"c{n}", until=0.0)
        except Refusal as refusal:
            refused.append(refusal.reason)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(uids)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (refused, len(one.changes[-1])) == ([Reason.STILL_HELD] * 12, 4)


def test_a_monitor_uses_nothing_and_waits_for_nothing(one):
    """With adminAccess it sees a GPU that another claim has whole, or a pod of another mode, without limits."""
    whole_gpu_of_two(one)
    one.node.holdings(holding("p", unit_ids(2, Kind.MEMORY_SHARE, 0), GPU_MEM))
    one.preparer.publish(one.node.state)
    one.driver.failures = 10**9
    watched = [result(n, "16Gi", adminAccess=True) for n in (1, 2)]
    one.add(*watched, name="monitor", uid=OTHER_UID)
    prepared, _ = one.prepare("monitor", OTHER_UID)
    assert (prepared.layer, prepared.used) == ("none", ())
    seen = one.edits(OTHER_UID)[device_name(GPUS[1])]["env"]
    assert f"NVIDIA_VISIBLE_DEVICES={GPUS[1].uuid},{GPUS[2].uuid}" in seen
    assert not any(text.startswith("ALIYUN") for text in seen)
    one.begin()
    assert [len(claim.used) for claim in one.seen[-1]] == [1, 0]


def test_a_share_that_can_never_be_isolated_is_refused_at_once(one):
    """MPS forgets the caps of several GPUs. No wait would help."""
    one.driver.never = "ask for one GPU per container"
    one.add(result(0), result(1))
    with pytest.raises(Refusal, match="ask for one GPU per container") as caught:
        one.prepare()
    assert caught.value.reason is Reason.ISOLATION
    assert not one.driver.tried.is_set()
    one.add(result(0, "16Gi"), result(1, "16Gi"))
    assert one.prepare()[0].layer == "none", "whole GPUs have no caps"


def test_a_claim_of_another_namespace_is_no_second_claim_of_a_container(one):
    """A pod there has the same name, and its container uses a claim of the same name."""
    one.node.pods(two_claims(one, containers=[[0], [1]]))
    one.preparer.publish(one.node.state)
    one.prepare()
    for name in ("c", "d"):
        one.add(result(3), name=name, namespace="other", uid=f"{name}-other")
        one.prepare(name, f"{name}-other", namespace="other")
        one.preparer.unprepare(f"{name}-other")
    pod = claiming("p", "c", "d")
    pod["metadata"] |= {"namespace": "other", "uid": "uid-other-p"}
    one.node.pods(pod, two_claims(one, containers=[[0], [1]]))
    one.preparer.publish(one.node.state)
    one.prepare("d", OTHER_UID)
    assert len(one.changes[-1]) == 2


# GPUs that became unusable after the scheduler had given them to a claim.

TOLERATES_FAULTS = {"key": UNHEALTHY_TAINT, "operator": "Exists"}
TOLERATES_ALL = {"operator": "Exists"}


def without_driver(node):
    node.send(ev.DriverUnavailable("nvmlInit: Driver Not Loaded", node.now)).wait(4)


def in_mig_mode(node):
    node.inventory(*(replace(each, mig=each.index == 1) for each in GPUS))


def unlisted(node):
    node.inventory(GPUS[0], *GPUS[2:])


def unread(node):
    node.inventory(GPUS[0], *GPUS[2:], unreadable=(UnreadableGpu(1, "Unknown Error"),))


def lost(node):
    node.send(ev.GpuLost(GPUS[1].uuid, "GPU is lost", node.now))


def fenced(node):
    node.send(ev.FenceRead(Fence(uuids=frozenset({GPUS[1].uuid})), node.now))


def faulty(node):
    node.send(ev.XidRaised(GPUS[1].uuid, 79, node.now))


def driver_is_back(node):
    node.inventory(*GPUS)


def answers_again(node):
    node.send(ev.HealthRead(GPUS[1].uuid, HealthReading(action=0), node.now, returned=True))


UNUSABLE = {
    without_driver: "cannot be used now: NVIDIA driver: nvmlInit: Driver Not Loaded",
    in_mig_mode: "is in MIG mode",
    unlisted: "cannot be used now: the driver does not list it any more",
    unread: "cannot be used now: it cannot be read: Unknown Error",
    lost: "cannot be used now: GPU is lost",
    fenced: r"is fenced by file \(its UUID\)",
    faulty: "cannot be used now: XID 79",
}


def happens(one, *changes):
    for change in changes:
        change(one.node)
    one.preparer.publish(one.node.state)


@pytest.mark.parametrize(("change", "words"), UNUSABLE.items())
def test_a_new_claim_never_gets_a_gpu_that_is_not_usable(one, monkeypatch, change, words):
    monkeypatch.setattr(waits, "WAIT_S", 0.05)
    happens(one, change)
    one.add(result(1))
    with pytest.raises(Refusal, match=rf"GPU 1 \({GPUS[1].uuid}\) {words}") as caught:
        one.prepare()
    assert caught.value.reason is Reason.GPU_UNUSABLE
    assert (one.files(), one.changes) == ([0, 0], [[]])
    one.add(result(2))
    if change is not without_driver:
        assert [gpu.uuid for gpu in one.prepare()[0].gpus] == [GPUS[2].uuid], "the other GPUs serve on"


@pytest.mark.parametrize("change", UNUSABLE)
def test_a_prepared_claim_keeps_a_gpu_that_is_not_usable_any_more(one, change):
    """Its containers run, or kubelet starts one of them again."""
    one.add(result(1))
    first = one.prepare()
    happens(one, change)
    assert one.prepare() == first
    one.begin()
    assert one.prepare() == first, "another agent knows of it too"


@pytest.mark.parametrize("change", UNUSABLE)
def test_a_monitor_gets_every_gpu(one, change):
    happens(one, change)
    one.add(result(1, adminAccess=True))
    assert [gpu.uuid for gpu in one.prepare()[0].gpus] == [GPUS[1].uuid]


@pytest.mark.parametrize("toleration", [TOLERATES_FAULTS, TOLERATES_ALL])
@pytest.mark.parametrize("change", UNUSABLE)
def test_a_claim_can_tolerate_a_fault_and_nothing_with_which_it_cannot_run(one, monkeypatch, change, toleration):
    monkeypatch.setattr(waits, "WAIT_S", 0.05)
    happens(one, change)
    one.add(result(1, tolerations=[toleration]))
    if change is faulty:
        one.prepare()
        return
    with pytest.raises(Refusal) as caught:
        one.prepare()
    assert caught.value.reason is Reason.GPU_UNUSABLE


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": FENCED_TAINT, "operator": "Exists"},
        {"key": UNHEALTHY_TAINT, "operator": "Equal", "value": "xid-48"},
        {"key": UNHEALTHY_TAINT, "value": "xid-48"},
        {"key": UNHEALTHY_TAINT, "operator": "Exists", "effect": "NoExecute"},
        {"key": UNHEALTHY_TAINT, "operator": "odd", "value": "xid-79"},
        {},
        [],
        {"key": ["odd"], "operator": {}, "effect": 5, "value": None},
    ],
)
def test_a_toleration_of_something_else_does_not_count(one, monkeypatch, toleration):
    monkeypatch.setattr(waits, "WAIT_S", 0.05)
    happens(one, faulty)
    one.add(result(1, tolerations=[toleration]))
    with pytest.raises(Refusal, match="XID 79"):
        one.prepare()


@pytest.mark.parametrize("more", [{}, {"operator": "Equal"}, {"operator": "", "effect": "NoSchedule"}])
def test_a_toleration_may_name_the_fault(one, more):
    happens(one, faulty)
    one.add(result(1, tolerations=[{"key": UNHEALTHY_TAINT, "value": "xid-79", **more}]))
    one.prepare()


def test_a_fault_that_has_ended_is_no_reason_to_wait(one):
    """The scheduler gave the GPU before the fault, and during the settle time the GPU works."""
    happens(one, lost, answers_again)
    assert GPUS[1].uuid in one.node.state.health.faults
    one.add(result(1))
    one.prepare()


@pytest.mark.parametrize(
    ("change", "end"), [(without_driver, driver_is_back), (unlisted, driver_is_back), (lost, answers_again)]
)
def test_a_call_waits_for_a_gpu_that_comes_back(one, monkeypatch, change, end):
    happens(one, change)
    wait = threading.Condition.wait

    def comes_back(news, *given):
        happens(one, end)
        return wait(news, 0.01)

    monkeypatch.setattr(threading.Condition, "wait", comes_back)
    one.add(result(1))
    one.prepare()


@pytest.mark.parametrize("change", [in_mig_mode, fenced])
def test_no_call_waits_for_what_only_an_operator_changes(one, monkeypatch, change):
    happens(one, change)
    monkeypatch.setattr(threading.Condition, "wait", lambda *_: pytest.fail("it waits"))
    one.add(result(1))
    with pytest.raises(Refusal):
        one.prepare()


TOLERATES_FENCE = {"key": "gpu.gpuagent.io/fenced", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize("toleration", [TOLERATES_FENCE, {"operator": "Exists"}])
def test_a_toleration_lifts_the_fence_in_a_namespace_of_administrators_only(one, toleration):
    """Every tenant can write the toleration, and nobody but an administrator the label of a namespace."""
    happens(one, fenced)
    one.add(result(1, tolerations=[toleration]), namespace="operators")
    one.prepare(namespace="operators")
    one.add(result(1, tolerations=[toleration]), name="d", uid=OTHER_UID)
    with pytest.raises(Refusal, match=r"is fenced by file .*admin-access=true"):
        one.prepare("d", OTHER_UID)
    assert one.asked == ["operators", "default"]


def test_a_refusal_says_that_the_namespace_of_a_tolerating_claim_cannot_be_read(one):
    """Its namespace may have the label. A claim without the toleration has nothing to do with that."""
    happens(one, fenced)
    one.add(result(1, tolerations=[TOLERATES_FENCE]), namespace="unreadable")
    with pytest.raises(Refusal, match="is fenced by file .* cannot read whether its namespace has that label"):
        one.prepare(namespace="unreadable")
    one.add(result(2, tolerations=[TOLERATES_FENCE]), namespace="unreadable", name="d", uid=OTHER_UID)
    one.prepare("d", OTHER_UID, namespace="unreadable")


@pytest.mark.parametrize("tolerations", [[], [{**TOLERATES_FENCE, "key": "gpu.gpuagent.io/unhealthy"}]])
def test_the_fence_holds_for_administrators_whose_claims_do_not_tolerate_it(one, tolerations):
    happens(one, fenced)
    one.add(result(1, tolerations=tolerations), namespace="operators")
    with pytest.raises(Refusal, match="is fenced by file"):
        one.prepare(namespace="operators")
    assert one.asked == [], "no call asks without need"


def test_a_tolerated_fence_does_not_lift_a_fault(one, monkeypatch):
    monkeypatch.setattr(waits, "WAIT_S", 0.05)
    happens(one, fenced, faulty)
    one.add(result(1, tolerations=[TOLERATES_FENCE]), namespace="operators")
    with pytest.raises(Refusal, match="XID 79"):
        one.prepare(namespace="operators")


@pytest.mark.parametrize("change", [in_mig_mode, fenced])
def test_a_gpu_that_becomes_unusable_while_the_call_waits_for_the_layer_is_not_given(one, change):
    one.add(result(1))
    with one.waiting() as refused:
        happens(one, change)
        one.driver.failures = 0
    assert [refusal.reason for refusal in refused] == [Reason.GPU_UNUSABLE]
    assert (one.files(), one.changes) == ([0, 0], [[]])


def test_a_gpu_that_becomes_unusable_while_the_call_waits_for_another_claim_is_not_given(one, monkeypatch):
    whole_gpu_of_two(one)
    used_by_pods(one, "d")

    def ends(*_):
        happens(one, fenced)
        one.preparer.unprepare(UID)

    monkeypatch.setattr(threading.Condition, "wait", ends)
    with pytest.raises(Refusal) as caught:
        one.prepare("d", OTHER_UID)
    assert caught.value.reason is Reason.GPU_UNUSABLE
    assert (one.files(), one.changes[-1]) == ([0, 0], [])


@pytest.mark.parametrize(
    "folder, of_another",
    [
        ("state/claims", "cannot write the claim's files"),
        ("cdi", "is still prepared as a whole GPU for claim default/c"),
    ],
)
def test_a_claim_whose_files_cannot_be_written_is_refused_and_prepared_when_they_can(
    one, monkeypatch, folder, of_another
):
    """The disk is full. With its record, a claim keeps its GPU: kubelet tries again, or unprepares it."""
    full = one.directory / folder
    write = claim_files.write_whole

    def fails(path, text, **given):
        if path.parent == full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, text, **given)

    one.add(result(1, "16Gi"), device_class="gpu.gpuagent.io")
    one.add(result(1, "4Gi"), name="d", uid=OTHER_UID)
    with monkeypatch.context() as patched:
        patched.setattr(claim_files, "write_whole", fails)
        patched.setattr(waits, "WAIT_S", 0.0)
        with pytest.raises(Refusal, match="cannot write the claim's files: .*No space left") as caught:
            one.prepare()
        assert caught.value.message in one.events[-1].message
        with pytest.raises(Refusal, match=of_another):
            one.prepare("d", OTHER_UID)
    one.prepare()
    assert one.files() == [1, 1]
    one.preparer.unprepare(UID)
    one.prepare("d", OTHER_UID)
    assert one.files() == [1, 1]


@pytest.mark.parametrize("folder", ["state/claims", "cdi"])
def test_what_was_written_of_a_claim_before_the_disk_was_full_goes_with_it(one, monkeypatch, folder):
    """Also if the agent ends meanwhile: kubelet has the next one unprepare the claim."""
    full = one.directory / folder
    write = claim_files.write_whole

    def fails(path, text, **given):
        if path.parent == full:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        write(path, text, **given)

    one.add(result(1))
    with monkeypatch.context() as patched:
        patched.setattr(claim_files, "write_whole", fails)
        with pytest.raises(Refusal, match="Read-only file system"):
            one.prepare()
    one.begin()
    one.preparer.unprepare(UID)
    assert one.files() == [0, 0]


def test_a_claim_whose_files_cannot_be_removed_keeps_its_gpu_until_they_can(one, monkeypatch):
    """Otherwise an agent that starts again would have the claim, and the GPU would be given twice or never."""
    one.add(result(1))
    one.prepare()

    def fails(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.unlink", fails)
        with pytest.raises(Refusal, match="cannot remove the claim's files: .*Read-only"):
            one.preparer.unprepare(UID)
    assert one.changes[-1] == [UID]
    one.preparer.unprepare(UID)
    assert (one.files(), one.changes[-1]) == ([0, 0], [])
