"""Pods that kubelet lists and the watch has not shown are read from the API server."""

import threading
from pathlib import Path

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.cluster_sync import ClusterSync
from standin.api.server import ApiServer
from standin.waiting import PATIENCE_S


def test_an_api_server_that_hangs_costs_the_node_one_wait_and_not_one_for_each_pod(
    server: ApiServer, tmp_path: Path
) -> None:
    side = ClusterSync(server.write_kubeconfig(tmp_path / "config"), "n1", lambda _: None)
    server.create_pod("a", node="n1")
    uid = server.pods()[0]["metadata"]["uid"]
    pods = [PodName("default", "a")]
    server.pause()
    assert side.fetch(pods, 0.05) is None
    assert side.fetch(pods, PATIENCE_S) is None
    (reading,) = (thread for thread in threading.enumerate() if thread.name == "kube-fetch")
    server.resume()
    reading.join(PATIENCE_S)
    assert server.requests["list pods"] == 1, "the second read was not sent"
    assert side.fetch(pods, PATIENCE_S) == {uid}
    side.stop()
