"""What people do with ResourceClaims. Each method is the kind of an action."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuagent.domain.sharing.mode import PLACEMENT_LABEL
from simworld.claim_shapes import SET_CLASS, SHARE_CLASS, Amount, Shape, devices_of, shape_of, share
from simworld.history import WHOLE
from simworld.parts.amounts import BY_CLASS, has_claims
from simworld.parts.claim_scheduler import SimulatedClaimScheduler
from simworld.runtime.kernel import kernel
from standin.api.objects import Json
from standin.api.refusal import Refusal
from standin.scheduler.device_classes import create_classes

if TYPE_CHECKING:
    from simworld.world import World

ENDS_S = (0.0, 0.01, 0.5, 3.0)
"""Seconds that containers take to end. Meanwhile a pod that was deleted by force is gone at the API server."""
CLAIM = "gpu"
"""What pods call their claim."""
FIRST_GIB = 4
SECOND_GIB = 9
"""Of the two shares of a claim that pods have together."""


class ClaimPeople:
    """Makes pods with claims, and ends them.

    Attributes:
        scheduler: allocates for them.
        refused: UIDs of pods that never run, because the runtime would mix up what its containers have.
        watches_all: UIDs of pods that have to see all GPUs of their node.
        ends_s: seconds that containers take to end, of which one is drawn each time.
        gates_ever_off: feature gates of the API server that are off, or were.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._objects = world.api.objects
        self._history = world.history
        self._pods = 0
        self.refused: set[str] = set()
        self.watches_all: set[str] = set()
        self.ends_s: Sequence[float] = ENDS_S
        self.gates_ever_off = set(world.scenario.gates_off)
        boxes = {node.name: node.box for node in world.nodes}
        self.scheduler = SimulatedClaimScheduler(world.api, world.history, boxes)

    def start(self) -> None:
        """Install the classes, and start the scheduler, if the scenario has claims."""
        scenario = self._world.scenario
        if not scenario.has_claims:
            return
        self._objects.gates_off = set(scenario.gates_off)
        create_classes(self._objects)
        self.scheduler.start()
        chance = random.Random(f"{scenario.seed}/claims/ends")
        for node in self._world.nodes:
            node.runtime.ends_after = lambda: chance.choice(self.ends_s)

    def drop_fields_of(self, gate: str) -> None:
        """The API server drops the fields of a feature gate from now on."""
        self._objects.gates_off.add(gate)
        self.gates_ever_off.add(gate)

    # -- actions --------------------------------------------------------------------------------------------------

    def create_claim_pod(self, device_class: str, count: int, gib: int, containers: int) -> None:
        self._new_pod(device_class, count, gib, containers)

    def create_claim_job_pod(self, device_class: str, count: int, gib: int, seconds: float) -> None:
        """A pod that ends by itself some time after it has started."""
        pod = self._new_pod(device_class, count, gib, 1)
        self._world.end_later(pod, seconds)

    def create_pod_by_class(self, count: int, containers: int, seconds: float) -> None:
        """A pod with whole GPUs in its limits, for which the scheduler makes a claim. With 0 seconds, it never ends."""
        self._pods += 1
        amounts = {WHOLE: str(count)}
        resources = {"limits": amounts, "requests": amounts}
        body: Json = {
            "metadata": {"name": f"claim-pod-{self._pods}"},
            "spec": {
                "schedulerName": BY_CLASS,
                "containers": [
                    {"name": f"main-{number}", "image": "work", "resources": resources} for number in range(containers)
                ],
            },
            "status": {"phase": "Pending"},
        }
        pod = self._create_body(body, f"{containers} x {count} {WHOLE} by the class")
        if seconds:
            self._world.end_later(pod, seconds)

    def create_shaped_claim_pod(self, shape: str, gib: int, cores: int, seconds: float) -> None:
        """A pod of one of the shapes of `claim_shapes`; it ends by itself after the seconds, or with 0 never."""
        self._pods += 1
        name = f"claim-pod-{self._pods}"
        shaped = shape_of(shape, Amount(gib, cores, self._world.scenario.isolates))
        pod = self._create_shaped(name, shaped, f"{shape} of {gib} GiB and {cores} %")
        if shaped.refused:
            self.refused.add(pod["metadata"]["uid"])
        if shaped.watches_all:
            self.watches_all.add(pod["metadata"]["uid"])
        if seconds:
            self._world.end_later(pod, seconds)

    def create_pod_of_standing_claim(self, number: int, device_class: str, count: int, gib: int) -> None:
        """A pod with a claim that outlives it, and that other pods may use at the same time."""
        name = f"standing-{number}"
        if self._claim(name) is None:
            self._objects.create(
                "resourceclaims", "default", {"metadata": {"name": name}, "spec": _spec(device_class, count, gib)}
            )
            self._history.note("user", f"creates claim {name}: {_asks(device_class, count, gib)}")
        self._pods += 1
        self._create(f"claim-pod-{self._pods}", {"resourceClaimName": name}, 1, name)

    def create_pod_of_shared_claim(self, number: int, request: str) -> None:
        """A pod that uses one request, `first` or `second`, of a claim of two shares that pods have together."""
        name = f"standing-{number}"
        if self._claim(name) is None:
            requests = [share("first", Amount(FIRST_GIB)), share("second", Amount(SECOND_GIB))]
            body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
            self._objects.create("resourceclaims", "default", body)
            self._history.note("user", f"creates claim {name} of {FIRST_GIB} GiB and {SECOND_GIB} GiB")
        self._pods += 1
        source = {CLAIM: {"resourceClaimName": name}}
        used = [[f"{CLAIM}/{request}"]]
        self._create_pod(f"claim-pod-{self._pods}", source, used, f"request {request} of {name}")

    def delete_standing_claim(self, number: int) -> None:
        """Delete the claim's pods by force, and the claim at once, so that the next one has its name."""
        name = f"standing-{number}"
        if self._claim(name) is None:
            return
        for pod in list(self._objects.peek("pods")):
            references = pod["spec"].get("resourceClaims") or ()
            if any(reference.get("resourceClaimName") == name for reference in references):
                self._world.delete(pod, 0)
        self._history.note("user", f"deletes claim {name}")
        self._objects.delete(("resourceclaims", "default", name))

    def replace_by_claim_pod(self, which: int, device_class: str, count: int, gib: int) -> None:
        """Delete any pod by force, and create one with its name and a claim."""
        pods = [pod for pod in self._objects.peek("pods") if pod["metadata"]["namespace"] == "default"]
        if not pods:
            return
        pod = pods[which % len(pods)]
        name = pod["metadata"]["name"]
        self._world.delete(pod, 0)
        self._create_with_template(name, device_class, count, gib, 1)

    def delete_claim_pod(self, which: int, grace_s: int) -> None:
        pods = [pod for pod in self._objects.peek("pods") if has_claims(pod)]
        if pods:
            self._world.delete(pods[which % len(pods)], grace_s)

    def set_placement(self, which: int, placement: str) -> None:
        nodes = self._world.nodes
        node = nodes[which % len(nodes)].name
        self._history.note("operator", f"labels {node} {placement}")
        patch: Json = {"metadata": {"labels": {PLACEMENT_LABEL: placement}}}
        self._objects.patch(("nodes", "", node), "", patch, strategic=False)

    def probe_device(self, node: str, device: Json) -> Json:
        """Create a pod for a set, for the least share of one GPU, or for all of it where there are no shares."""
        uuid = device["attributes"]["uuid"]["string"]
        if not uuid:
            minors = device["attributes"]["minors"]["string"]
            selector = f'device.attributes["gpu.gpuagent.io"].minors == "{minors}"'
            return self._create_with_template(f"claim-probe-{node}-{minors}", SET_CLASS, 1, 0, 1, selector)
        selector = f'device.attributes["gpu.gpuagent.io"].uuid == "{uuid}"'
        is_shared = device.get("allowMultipleAllocations", False)
        gib = 1 if is_shared else 0
        device_class = SHARE_CLASS if is_shared else "gpu.gpuagent.io"
        return self._create_with_template(f"claim-probe-{node}", device_class, 1, gib, 1, selector)

    # -- pods -----------------------------------------------------------------------------------------------------

    def _new_pod(self, device_class: str, count: int, gib: int, containers: int) -> Json:
        self._pods += 1
        return self._create_with_template(f"claim-pod-{self._pods}", device_class, count, gib, containers)

    def _create_with_template(  # noqa: PLR0913 (what a claim has)
        self, name: str, device_class: str, count: int, gib: int, containers: int, selector: str = ""
    ) -> Json:
        source = self._create_template(name, _spec(device_class, count, gib, selector))
        return self._create(name, source, containers, _asks(device_class, count, gib))

    def _create_template(self, name: str, spec: Json) -> Json:
        """Create a template for a pod; the field of the pod that names it."""
        template = f"{name}-{kernel().chance.getrandbits(20):05x}"
        body = {"metadata": {"name": template}, "spec": {"spec": spec}}
        self._objects.create("resourceclaimtemplates", "default", body)
        return {"resourceClaimTemplateName": template}

    def _create(self, name: str, source: Json, containers: int, asks: str) -> Json:
        return self._create_pod(name, {CLAIM: source}, [[CLAIM]] * containers, f"a claim for {asks}")

    def _create_shaped(self, name: str, shape: Shape, asks: str) -> Json:
        sources = {
            claim: self._create_template(name, {"devices": devices}) for claim, devices in devices_of(shape).items()
        }
        return self._create_pod(name, sources, shape.containers, f"claims of shape {asks}")

    def _create_pod(
        self, name: str, sources: Mapping[str, Json], containers: Sequence[Sequence[str]], asks: str
    ) -> Json:
        """Create a pod whose containers name claims, or a request of one as `claim/request`."""
        body: Json = {
            "metadata": {"name": name},
            "spec": {
                "containers": [_container(number, named) for number, named in enumerate(containers)],
                "resourceClaims": [{"name": claim, **source} for claim, source in sources.items()],
            },
            "status": {"phase": "Pending"},
        }
        return self._create_body(body, asks)

    def _create_body(self, body: Json, asks: str) -> Json:
        name = body["metadata"]["name"]
        pod = self._objects.create("pods", "default", body)
        uid = pod["metadata"]["uid"]
        self._history.pods[uid] = name
        self._history.note("user", f"creates {name} ({uid[:8]}) with {asks}")
        return pod

    def _claim(self, name: str) -> Json | None:
        try:
            return self._objects.get(("resourceclaims", "default", name))
        except Refusal:
            return None


def _container(number: int, named: Iterable[str]) -> Json:
    claims: list[Json] = []
    for name in named:
        claim, _, request = name.partition("/")
        claims.append({"name": claim, "request": request} if request else {"name": claim})
    return {"name": f"main-{number}", "image": "work", "resources": {"claims": claims}}


def _spec(device_class: str, count: int, gib: int, selector: str = "") -> Json:
    exactly: Json = {"deviceClassName": device_class, "count": count}
    if gib:
        exactly["capacity"] = {"requests": {"memory": f"{gib}Gi"}}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def _asks(device_class: str, count: int, gib: int) -> str:
    amount = f"{gib} GiB" if gib else "a whole GPU"
    return f"{count} x {amount}" if device_class else amount
