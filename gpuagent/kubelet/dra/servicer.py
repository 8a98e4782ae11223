"""The services that kubelet calls: protobuf to domain and back."""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from gpuagent._pb import dra_health_v1alpha1_pb2 as health
from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent._pb import pluginregistration_v1_pb2 as reg
from gpuagent._pb import pluginregistration_v1_pb2_grpc as reg_grpc
from gpuagent.domain.dra.cdi_spec import ALL_DEVICE, cdi_name, device_names
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kubelet.dra.health_servicer import HealthServicer
from gpuagent.preparer.preparer import Preparer
from gpuagent.preparer.waits import WAIT_S

log = logging.getLogger(__name__)

SERVICES = tuple(f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin" for version in ("v1", "v1beta1"))
"""Names on the wire. The versions have the same messages, but for a field that v1beta1 ignores."""
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Names on the wire and at registration. Both have the same messages. Kubelet 1.36 calls v1alpha1 without asking,
kubelet 1.37 to 1.39 the newest version that the driver names, and later ones v1 alone."""
OF_NO_REQUEST = "*"
"""In place of a request's name, which has letters, digits and hyphens."""


class Meter(Protocol):
    """Counts the calls of the service."""

    def timer(self, method: str, resource: str) -> Callable[[float], None]:
        """Takes the seconds of each claim that was answered or refused."""

    def refused(self, method: str, resource: str, reason: Reason) -> None:
        """One claim was refused."""


class DraServicer:
    """Serves kubelet's calls about claims, and with them the health of the devices."""

    def __init__(self, preparer: Preparer, health_servicer: HealthServicer, meter: Meter) -> None:
        self._preparer = preparer
        self._health = health_servicer
        self._meter = meter

    def add_to(self, server: grpc.Server) -> None:
        """Serve every version."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self._prepare,
                request_deserializer=pb.NodePrepareResourcesRequest.FromString,
                response_serializer=pb.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self._unprepare,
                request_deserializer=pb.NodeUnprepareResourcesRequest.FromString,
                response_serializer=pb.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        # Kubelets of different versions call the same service by different names.
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers) for name in SERVICES])
        watch = grpc.unary_stream_rpc_method_handler(
            self._health.NodeWatchResources,
            request_deserializer=health.NodeWatchResourcesRequest.FromString,
            response_serializer=health.NodeWatchResourcesResponse.SerializeToString,
        )
        for name in HEALTH_SERVICES:
            handler = grpc.method_handlers_generic_handler(name, {"NodeWatchResources": watch})
            server.add_generic_rpc_handlers([handler])

    def end_streams(self) -> None:
        """End every stream that is open."""
        self._health.end_streams()

    def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> pb.NodePrepareResourcesResponse:
        answer = pb.NodePrepareResourcesResponse()
        until = time.monotonic() + WAIT_S  # for all claims together, as kubelet waits for all of them
        for claim in request.claims:
            entry = answer.claims[claim.uid]
            entry.error = self._counted(
                "NodePrepareResources",
                claim,
                lambda c=claim, e=entry: self._fill(c, e, request, context, until),  # type: ignore[misc]
            )
        return answer

    def _fill(
        self,
        claim: pb.Claim,
        entry: pb.NodePrepareResourceResponse,
        request: pb.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,
        until: float,
    ) -> None:
        # All are of one pod.
        together = frozenset([other.name for other in request.claims])
        prepared, others = self._preparer.prepare(
            claim.uid, claim.namespace, claim.name, context.is_active, until, together
        )
        names = device_names(prepared)
        devices = [(gpu.request, gpu.pool, gpu.device, gpu.share_id) for gpu in prepared.gpus]
        for name_of_request, pool, device, share_id in dict.fromkeys(devices):  # a set of GPUs is one device
            name = names[name_of_request, device]
            entry.devices.add(
                request_names=[name_of_request],
                pool_name=pool,
                device_name=device,
                cdi_device_ids=[cdi_name(claim.uid, name), *others[name_of_request, device]],
                share_id=share_id or None,
            )
        if len({gpu.request for gpu in prepared.gpus}) > 1:
            _add_whole(claim.uid, entry)

    def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, _: grpc.ServicerContext
    ) -> pb.NodeUnprepareResourcesResponse:
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry = answer.claims[claim.uid]
            entry.error = self._counted(
                "NodeUnprepareResources",
                claim,
                lambda c=claim: self._preparer.unprepare(c.uid),  # type: ignore[misc]
            )
        return answer

    def _counted(self, method: str, claim: pb.Claim, work: Callable[[], None]) -> str:
        """Do the work; why it was refused, or empty."""
        began = time.perf_counter()
        name = f"{claim.namespace}/{claim.name}"
        try:
            work()
        except Refusal as refusal:
            self._meter.refused(method, DRA_DRIVER, refusal.reason)
            log.warning("Refused claim", extra={"claim": name, "reason": refusal.message})
            return refusal.message
        except Exception as err:
            log.exception("Failed to serve a claim", extra={"claim": name})
            self._meter.refused(method, DRA_DRIVER, Reason.INTERNAL)
            return f"the agent failed: {type(err).__name__}; its log has more"
        finally:
            self._meter.timer(method, DRA_DRIVER)(time.perf_counter() - began)
        return ""


def _add_whole(uid: str, entry: pb.NodePrepareResourceResponse) -> None:
    """Add what only containers get that use all requests: no request has this name, and kubelet keeps the order.

    Kubelet shows the health of a device under the name of its first CDI device. If two devices have the same one,
    kubelets before 1.36 send it twice. Then the API server refuses the whole status, and the pod never seems to run.
    """
    whole = entry.devices.add()
    whole.CopyFrom(entry.devices[-2])
    del whole.request_names[:]
    del whole.cdi_device_ids[:]
    whole.request_names.append(OF_NO_REQUEST)
    whole.cdi_device_ids.append(cdi_name(uid, ALL_DEVICE))


class RegistrationServicer(reg_grpc.RegistrationServicer):
    """Tells kubelet where the driver is; `notified` takes why kubelet does not accept it, or None."""

    def __init__(self, endpoint: str, notified: Callable[[str | None], None]) -> None:
        self._info = reg.PluginInfo(
            type="DRAPlugin",
            name=DRA_DRIVER,
            endpoint=endpoint,
            supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH_SERVICES],
        )
        self._notified = notified

    def GetInfo(self, request: reg.InfoRequest, context: grpc.ServicerContext) -> reg.PluginInfo:
        return self._info

    def NotifyRegistrationStatus(
        self, request: reg.RegistrationStatus, context: grpc.ServicerContext
    ) -> reg.RegistrationStatusResponse:
        self._notified(None if request.plugin_registered else request.error or "kubelet gave no reason")
        return reg.RegistrationStatusResponse()
