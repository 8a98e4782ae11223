"""A stand-in API server, and schedulers on it that a test calls as kube-scheduler does."""

import asyncio
import http.client
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from gpuagent.domain.scheduling.node_gpus import NODE_GPUS_ANNOTATION, NodeGpu, NodeGpus, node_gpus_text
from gpuagent.domain.sharing.mode import GPU_MEM, GPU_WHOLE, JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.app import App
from gpuscheduler.scheduler_settings import SchedulerSettings
from standin.api.server import ApiServer, node_body
from standin.waiting import PATIENCE_S


class Cluster:
    """The API server, its nodes and pods, and the running schedulers."""

    def __init__(self, directory):
        self.directory = directory
        self.api = ApiServer("control-plane")
        self.schedulers = []

    def close(self):
        for one in self.schedulers:
            one.stop()
        self.api.stop()

    def share_node(self, name, gpus=2, memory=10):
        self.node(name, [NodeGpu(n, memory=memory) for n in range(gpus)])

    def whole_node(self, name, gpus=8, **given):
        self.node(name, [NodeGpu(n, whole=True) for n in range(gpus)], **given)

    def node(self, name, gpus, **given):
        body = node_body(name, {}, "")
        body["metadata"]["annotations"] = {NODE_GPUS_ANNOTATION: node_gpus_text(NodeGpus(tuple(gpus), **given))}
        self.api.objects.create("nodes", "", body)

    def pod(self, name="p", mem=4, **given):
        return self.api.create_pod(name, {GPU_MEM: str(mem)}, node="", **given)

    def whole_pod(self, name="p", gpus=1):
        return self.api.create_pod(name, {GPU_WHOLE: str(gpus)}, node="")

    def job(self, name, replicas, gpus):
        labels = {JOB_LABEL: name, REPLICAS_LABEL: str(replicas)}
        names = [f"{name}-{n}" for n in range(replicas)]
        return [self.api.create_pod(one, {GPU_WHOLE: str(gpus)}, node="", labels=labels) for one in names]

    def found(self, name):
        """A pod as the API server has it; None if it is gone."""
        return next((pod for pod in self.api.pods() if pod["metadata"]["name"] == name), None)

    def node_of(self, name):
        return self.found(name)["spec"].get("nodeName")

    def names(self):
        found, _ = self.api.objects.all("nodes")
        return [node["metadata"]["name"] for node in found]

    def start(self, *, ready=True, **settings):
        settings.setdefault("kubeconfig", self.api.write_kubeconfig(self.directory / "kubeconfig"))
        one = RunningScheduler(self, **settings)
        self.schedulers.append(one)
        if ready:
            one.wait_until_ready()
        return one


class RunningScheduler:
    """A scheduler in a thread. Its calls are those of kube-scheduler."""

    def __init__(self, cluster, **settings):
        self.cluster = cluster
        self.loop = asyncio.new_event_loop()
        alone = {"listen": ("127.0.0.1", 0), "http_address": ("127.0.0.1", 0), "lease": ""}
        self.app = self.loop.run_until_complete(app(SchedulerSettings(**(alone | settings))))
        self.pool = ThreadPoolExecutor(16)
        self.thread = threading.Thread(target=self.run, name="scheduler")
        self.thread.start()

    def run(self):
        self.loop.run_until_complete(self.app.run())
        self.loop.close()

    def wait_until_ready(self):
        asyncio.run_coroutine_threadsafe(self.app.ready.wait(), self.loop).result(PATIENCE_S)

    def stop(self):
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.app.stop)
        self.thread.join()
        self.pool.shutdown()

    def get(self, path):
        return request(self.app.pages, "GET", path)

    def post(self, path, body):
        return request(self.app.address, "POST", path, body)

    def call(self, path, body):
        status, body = self.post(path, json.dumps(body))
        assert status == 200, body
        return json.loads(body)

    def filter(self, pod, names=None):
        names = self.cluster.names() if names is None else names
        return self.call("/filter", {"Pod": pod, "Nodes": None, "NodeNames": names})

    def bind(self, pod, node):
        """The error; empty if the pod is bound."""
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return self.call("/bind", body)["Error"]

    def begin_bind(self, pod, node) -> Future:
        return self.pool.submit(self.bind, pod, node)

    def place(self, pod):
        """Filter and bind as kube-scheduler does, until the pod is bound; the node."""
        return until(lambda: self.place_once(pod))

    def place_once(self, pod):
        found = self.filter(pod)
        nodes = found["NodeNames"] if not found["Error"] else None
        return nodes[0] if nodes and not self.bind(pod, nodes[0]) else None

    def metric(self, line):
        """Value of the metric whose name and labels are `line`; 0 before its first count."""
        lines = self.get("/metrics")[1].splitlines()
        return next((float(one.rpartition(" ")[2]) for one in lines if one.startswith(f"{line} ")), 0.0)


async def app(settings):
    """It is created on its loop."""
    return App(settings)


def request(address, method, path, body=None):
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()


def until(condition):
    """Ask until the condition holds; its value."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.01)
    return found
