"""A large cluster behind a local HTTP server, in a process of its own: lists in pages, gzipped as kube-apiserver does.

`python -m bench.bigcluster NODES PODS_A_NODE` prints its URL when it is ready, and serves until its stdin closes.
"""

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION, Shares, shares_text
from gpuagent.domain.sharing.mode import GPU_MEM

PAGE = 500
GPUS, GPU_GIB = 8, 80
Json = dict[str, Any]


def node(n: int) -> Json:
    """A Node as a kubelet with this agent writes it, 50 images included."""
    amounts = {
        "cpu": "96",
        "memory": "1056Gi",
        "pods": "110",
        GPU_MEM: str(GPUS * GPU_GIB),
        "aliyun.com/gpu-count": "8",
    }
    labels = {
        "ack.node.gpu.schedule": "cgpu",
        "aliyun.accelerator/nvidia_mem": "81920MiB",
        "aliyun.accelerator/nvidia_count": str(GPUS),
        "aliyun.accelerator/nvidia_name": "NVIDIA-A100-SXM4-80GB",
        **{f"example.com/label-{i}": f"value-{i}" for i in range(20)},
    }
    images = [
        {"names": [f"registry.example.com/team/image-{i}@sha256:{i:064x}", f"registry.example.com/team/image-{i}:v1"]}
        for i in range(50)
    ]
    return {
        "metadata": {"name": f"node-{n:05}", "uid": f"{n:032x}", "labels": labels, "managedFields": _fields()},
        "spec": {"providerID": f"example://{n}", "podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"}],
            "images": images,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "x" * 80}],
        },
    }


def pod(n: int, at: int) -> Json:
    """A running pod with 8 GiB of a GPU, about 7 KB, as deployments make them."""
    gpu = n % GPUS
    resources = {"limits": {GPU_MEM: "8", "cpu": "4", "memory": "16Gi"}, "requests": {GPU_MEM: "8", "cpu": "4"}}
    env = [{"name": f"SETTING_{i}", "value": f"value of setting {i}"} for i in range(25)]
    container = {"name": "main", "image": "registry.example.com/team/serve:v1", "resources": resources, "env": env}
    volumes = [{"name": f"volume-{i}", "configMap": {"name": f"config-{i}", "defaultMode": 420}} for i in range(8)]
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-31T12:00:00Z"}
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "metadata": {
            "name": f"serve-{n:06}-{n * 7919 % 100000:05}",
            "namespace": f"team-{n % 50}",
            "uid": f"{n:032x}",
            "labels": {f"label-{i}": f"value-{i}" for i in range(8)},
            "annotations": {MEMORY_ANNOTATION: shares_text(Shares({0: {gpu: 8}}))},
            "managedFields": _fields(),
        },
        "spec": {"nodeName": f"node-{at:05}", "containers": [container], "volumes": volumes},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": name, "status": "True", **times} for name in conditions],
            "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {"startedAt": "x"}}}],
        },
    }


def _fields() -> list[Json]:
    entry = {"apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubelet", "operation": "Update"}
    spec: Json = {f"f:field-{i}": {"f:part": {}, "f:other": {".": {}}} for i in range(25)}
    return [{**entry, "fieldsV1": {"f:spec": spec}} for _ in range(2)]


def pages(kind: str, items: Iterator[Json]) -> list[tuple[bytes, int]]:
    """Each page gzipped, and its size before."""
    made: list[tuple[bytes, int]] = []
    batch: list[Json] = []
    for item in items:
        batch.append(item)
        if len(batch) == PAGE:
            made.append(_page(kind, batch, len(made) + 1))
            batch = []
    if batch or not made:
        made.append(_page(kind, batch, len(made) + 1))
    last = json.loads(gzip.decompress(made[-1][0]))
    del last["metadata"]["continue"]
    made[-1] = _packed(last)
    return made


def _page(kind: str, items: list[Json], following: int) -> tuple[bytes, int]:
    metadata = {"resourceVersion": "1", "continue": str(following)}
    return _packed({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})


def _packed(page: Json) -> tuple[bytes, int]:
    data = json.dumps(page, separators=(",", ":")).encode()
    return gzip.compress(data, 1), len(data)


def serve(nodes: int, pods_a_node: int) -> None:
    """Make everything, print the URL, and serve until stdin closes."""
    lists = {
        "nodes": pages("NodeList", map(node, range(nodes))),
        "pods": pages("PodList", (pod(n, n % nodes) for n in range(nodes * pods_a_node))),
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            found = lists[url.path.rpartition("/")[2]]
            page = parse_qs(url.query).get("continue", ["0"])[-1]
            packed, plain = found[int(page)]
            accepts = "gzip" in (self.headers.get("Accept-Encoding") or "")
            body = packed if accepts else gzip.decompress(packed)
            assert accepts or len(body) == plain
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if accepts:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sizes = {name: sum(plain for _, plain in found) for name, found in lists.items()}
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}", "bytes": sizes}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
