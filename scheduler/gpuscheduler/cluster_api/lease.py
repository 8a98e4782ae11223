"""Whether the kube-scheduler beside this process leads: it holds the lease under its host name and a random part."""

import asyncio
import logging
import time
from collections.abc import Callable

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.kube.api.api_errors import KubeError
from gpuscheduler.cluster_api.connection import Connection, decoded

log = logging.getLogger(__name__)

READ_S = 2.0
"""Pause between two reads of the lease."""
TRUSTED_S = 15.0
"""How long the last holder counts while the lease cannot be read: as long as a lease lasts."""


async def follow_lease(
    connection: Connection, namespace: str, name: str, identity: str, lead: Callable[[bool], None]
) -> None:
    """Read the lease until canceled, and call `lead` with whether a scheduler on the host `identity` holds it."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    leading, read_at, logged = False, time.monotonic(), ""
    while True:
        found = leading
        try:
            holder = text(mapping(decoded(await connection.get(path)).get("spec")).get("holderIdentity"))
            found, read_at, logged = holder.rpartition("_")[0] == identity, time.monotonic(), ""
        except KubeError as err:
            if str(err) != logged:
                logged = str(err)
                log.warning("Failed to read the lease", extra={"lease": f"{namespace}/{name}", "error": logged})
            found = leading and time.monotonic() - read_at < TRUSTED_S
        if found != leading:
            leading = found
            log.info("Gained the lease" if leading else "Lost the lease", extra={"lease": f"{namespace}/{name}"})
            lead(leading)
        await asyncio.sleep(READ_S)
