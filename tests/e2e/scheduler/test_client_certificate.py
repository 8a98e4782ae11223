"""A real kube-scheduler with the documented certificates, and others on its machine that have none of them."""

import http.client
import json
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE
from tests.documented_certificates import make_certificates
from tests.e2e.cluster.manifests import Json
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations
from tests.e2e.scheduler.nodes import share_node, whole_node
from tests.e2e.scheduler.pods import job, pod
from tests.e2e.scheduler.replica import Replica


@pytest.fixture
def replica(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Replica]:
    made = Replica(control_plane, "certificate", certificates=make_certificates(tmp_path / "gpuscheduler"))
    made.start()
    yield made
    made.stop()


def test_kube_scheduler_is_answered_and_no_other_program_is(
    control_plane: ControlPlane,
    make_allocations: Callable[[Iterable[Json]], Allocations],
    replica: Replica,
    tmp_path: Path,
) -> None:
    allocations = make_allocations([share_node("share"), whole_node("whole")])
    # One that kube-scheduler leaves alone, so that whoever binds it is another.
    gated = pod("gated", {GPU_MEM: 5}, schedulingGates=[{"name": "test/gate"}])
    names = control_plane.add_pods([pod("share", {GPU_MEM: 10}), *job("job", 2, {GPU_WHOLE: 2})])
    control_plane.add_pods([gated])
    found = control_plane.pods.wait(
        lambda pods: (
            "gated" in pods and all(name in pods and pods[name]["status"]["phase"] == "Running" for name in names)
        )
    )
    metadata = found["gated"]["metadata"]
    bind = {"PodName": "gated", "PodNamespace": "default", "PodUID": metadata["uid"], "Node": "share"}
    strangers = make_certificates(tmp_path / "strangers")
    ours = tmp_path / "gpuscheduler"
    for certificate in (None, strangers / "caller", ours / "server"):
        for path, body in (("/filter", {"Pod": found["gated"], "NodeNames": ["share"]}), ("/bind", bind)):
            assert not _is_answered(replica.port, ours / "ca.crt", certificate, path, body)
    assert not _is_answered(replica.port, None, None, "/bind", bind)
    assert "nodeName" not in control_plane.pods.wait(lambda pods: "gated" in pods)["gated"]["spec"]
    assert allocations.used() == {GPU_MEM: 10, GPU_CORE: 0, GPU_WHOLE: 4}
    # Nothing is reserved for the pod of the strangers' calls.
    assert "default/gated" not in replica.holders()
    # Those that run may have been, until the watch shows them.
    replica.wait_for_holders("share", "job-0", "job-1")
    # With the certificate, the very same call is answered.
    assert _is_answered(
        replica.port, ours / "ca.crt", ours / "caller", "/filter", {"Pod": found["share"], "NodeNames": ["share"]}
    )


def _is_answered(port: int, ca: Path | None, certificate: Path | None, path: str, body: Json) -> bool:
    """Whether a call with this certificate, or over plain HTTP without a CA, is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    if ca:
        tls = ssl.create_default_context(cafile=ca)
        if certificate:
            tls.load_cert_chain(certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=tls)
    with closing(connection):
        try:
            connection.request("POST", path, json.dumps(body))
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
