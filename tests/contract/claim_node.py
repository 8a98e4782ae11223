"""A node whose pods use ResourceClaims: stand-ins of kubelet, API server and scheduler around agents in mode `dra`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuagent.domain.sharing.mode import DRA_DRIVER, MODE_LABEL
from standin.kubelet.dra.claim_infos import FILE_NAME
from standin.kubelet.dra.driver import DriverCall
from standin.kubelet.dra.periods import Periods
from standin.kubelet.pods import Granted
from standin.scheduler.device_classes import CLASSES, create_classes
from standin.scheduler.scheduler import ClaimScheduler, claim_names
from tests.contract.harness import MEM, NODE, Node, box, ids_on, wait_for

WHOLE, SHARE, ISOLATED, _, SET = CLASSES
SLICE = f"{NODE}-{DRA_DRIVER}"
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
Json = dict[str, Any]


def quick(**given: float) -> Periods:
    """Kubelet's periods, short where a test would have to wait; those between two tries of a pod are the real ones."""
    return replace(Periods(), **{"registry": 0.1, "registration": 0.1, "wipe": 3.0, **given})


class ClaimNode(Node):
    """By default two GPUs of 80 GiB. Attributes: ``scheduler``, the stand-in that allocates."""

    def __init__(self, version: str = "1.36", *, mode: str = "dra", gpus: Any = None, **periods: float) -> None:
        super().__init__(version, gpus or box(), labels={MODE_LABEL: mode}, periods=quick(**periods))
        create_classes(self.server.objects)
        self.scheduler = ClaimScheduler(self.server.objects)
        self.scheduler.start()

    def close(self) -> None:
        self.scheduler.stop()
        super().close()

    def claim_flags(self) -> list[str]:
        """More flags for a process than `flags`."""
        kubeconfig = str(self.server.write_kubeconfig(self.root / "kubeconfig"))
        return ["--kubeconfig", kubeconfig, "--cdi-dir", str(self.cdi)]

    # Pods.

    def create(self, name: str, device_class: str = SHARE, *, count: int = 1, claim: str = "", **amounts: str) -> str:
        """Create a pod with a claim from a template of its own, or with the claim of that name; returns its UID."""
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": name}
        if not claim:
            spec = self.spec(device_class, count=count, **amounts)
            self.server.objects.create(
                "resourceclaimtemplates", "default", {"metadata": {"name": name}, "spec": {"spec": spec}}
            )
        container = {"name": "main", "image": "work", "resources": {"claims": [{"name": "gpu"}]}}
        body = {
            "metadata": {"name": name},
            "spec": {"containers": [container], "resourceClaims": [{"name": "gpu", **source}]},
            "status": {"phase": "Pending"},
        }
        created: str = self.server.objects.create("pods", "default", body)["metadata"]["uid"]
        return created

    @staticmethod
    def spec(device_class: str = SHARE, *, count: int = 1, **amounts: str) -> Json:
        """Of a claim with one request."""
        exactly: Json = {"deviceClassName": device_class, "count": count}
        if amounts:
            exactly["capacity"] = {"requests": amounts}
        return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}

    def run_pod(self, name: str, device_class: str = SHARE, **given: Any) -> Granted:
        """Create a pod and wait until it runs; the grant of its container."""
        self.create(name, device_class, **given)
        return self.running(name)

    def running(self, name: str) -> Granted:
        """The grant of the pod's container; waits for it."""
        uid = self.pod(name)["metadata"]["uid"]
        wait_for(
            lambda: self.phase(name) == "Running" and self.kubelet.claims.container(uid, "main"),
            what=lambda: f"{name} does not run: {self.texts()}",
        )
        found = self.kubelet.claims.container(uid, "main")
        assert found
        return found

    def delete(self, name: str, grace_s: int | None = None) -> None:
        """Delete a pod; kubelet ends it."""
        self.server.delete_pod(name, grace_s=grace_s)

    def exit(self, name: str) -> None:
        """The pod's container ends by itself."""
        self.kubelet.claims.exit(self.pod(name)["metadata"]["uid"])

    def pod(self, name: str) -> Json:
        return self.server.objects.get(("pods", "default", name))

    def gone(self, name: str) -> None:
        """Wait until the pod is gone."""
        wait_for(lambda: not self.phase(name), what=lambda: f"{name} stays: {self.kubelet.claims.calls[-3:]}")

    def phase(self, name: str) -> str:
        """The pod's phase; empty if there is no such pod."""
        return next((str(one["status"]["phase"]) for one in self.server.pods() if one["metadata"]["name"] == name), "")

    def texts(self) -> list[str]:
        """Reason and message of every Event."""
        return [f"{one['reason']}: {one['message']}" for one in self.server.events()]

    def on(self, uuid: str) -> list[str]:
        """Units of a GPU in the newest list."""
        return ids_on(uuid, self.ids(MEM))

    # Claims.

    def claim_of(self, name: str) -> Json:
        """The first claim of a pod."""
        return self.server.objects.get(("resourceclaims", "default", claim_names(self.pod(name))[0]))

    def calls(self, method: str) -> list[DriverCall]:
        return [call for call in self.kubelet.claims.calls if call.method == method]

    def forget_claims(self) -> None:
        """Remove kubelet's state of claims, while kubelet is stopped; its containers are gone, too."""
        self.kubelet.claims.lose_containers()
        (self.root / "k" / FILE_NAME).unlink()

    def files(self) -> tuple[int, int]:
        """Records of the agent, and CDI specifications."""
        return len([*(self.root / "state" / "claims").glob("*.json")]), len([*self.cdi.glob("*.json")])

    @property
    def cdi(self) -> Path:
        return self.kubelet.claims.cdi_dir

    def checkpoint(self) -> list[Json]:
        """The claims of kubelet's checkpoint."""
        found: list[Json] = json.loads(json.loads((self.root / "k" / FILE_NAME).read_text())["Data"])[
            "ClaimInfoStateList"
        ]
        return found

    # Slices.

    def slice(self) -> Json | None:
        found = self.server.objects.all("resourceslices")[0]
        return next((one for one in found if one["metadata"]["name"] == SLICE), None)

    def published(self) -> Json:
        """The node's slice; waits until every device of it can be allocated."""
        assert self.server.wait(lambda: self.slice() is not None and not self.tainted())
        found = self.slice()
        assert found
        return found

    def tainted(self) -> list[str]:
        """Devices that nothing can be allocated of."""
        return [
            one["name"] for one in (self.slice() or {"spec": {"devices": []}})["spec"]["devices"] if "taints" in one
        ]

    def instances(self) -> list[str]:
        return self.kubelet.claims.instances(DRA_DRIVER)

    def registered(self, count: int = 1) -> list[str]:
        """The sockets of the registered agents; waits until there are `count`."""
        wait_for(lambda: len(self.instances()) == count, what=lambda: self.kubelet.claims.registrations)
        return self.instances()
