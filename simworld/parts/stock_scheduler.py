"""A kube-scheduler without an extender, as far as amounts go: it binds each pod to a node whose amounts have room."""

from simworld.history import History
from simworld.parts.amounts import fits
from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import Process, kernel
from standin.api.objects import Json
from standin.api.podrules import bound
from standin.api.refusal import Refusal

LOOK_S = 5.0


class StockScheduler:
    """Its cache has every binding of its own at once, and everything else as the API server has it."""

    def __init__(self, api: SimulatedApi, history: History) -> None:
        self._api = api
        self._objects = api.objects
        self._history = history
        self.process = Process("kube-scheduler")

    def start(self) -> None:
        kernel().spawn(self._run, "kube-scheduler", self.process)

    def _run(self) -> None:
        seen = 0
        while True:
            with self._objects.updated:
                if self._objects.version == seen:
                    self._objects.updated.wait(LOOK_S)
                seen = self._objects.version
            for pod in [] if self._api.is_away else self._waiting():
                kernel().sleep(kernel().chance.random() * 0.01)
                self._schedule(pod)

    def _waiting(self) -> list[Json]:
        pods = self._objects.peek("pods")
        return [pod for pod in pods if _waits(pod)]

    def _schedule(self, pod: Json) -> None:
        pods = self._objects.peek("pods")
        nodes = [node for node in self._objects.peek("nodes") if fits(pod, node, pods)]
        if not nodes:
            return
        meta = pod["metadata"]
        name = kernel().chance.choice(nodes)["metadata"]["name"]
        binding = {"metadata": {"name": meta["name"], "uid": meta["uid"]}, "target": {"name": name}}
        try:
            self._objects.update(("pods", meta["namespace"], meta["name"]), lambda now: bound(now, binding))
        except Refusal:
            return
        self._history.note("kube-scheduler", f"bound {meta['name']} to {name}")


def _waits(pod: Json) -> bool:
    spec = pod["spec"]
    is_bound = bool(spec.get("nodeName"))
    is_for_another = bool(spec.get("schedulingGates") or spec.get("resourceClaims") or spec.get("schedulerName"))
    return not is_bound and not is_for_another and "deletionTimestamp" not in pod["metadata"]
