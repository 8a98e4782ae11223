"""Whether the kube-scheduler beside this process leads: it holds the lease under its host name and a random part."""

import asyncio
import logging
import time

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.kube.api.api_errors import KubeError
from gpuscheduler.cluster_api.connection import Connection, decoded

log = logging.getLogger(__name__)

READ_S = 2.0
"""Pause between two reads of the lease."""
TRUSTED_S = 15.0
"""How long the last holder counts while the lease cannot be read: as long as a lease lasts."""


async def follow_lease(connection: Connection, lease: str, host: str, leading: asyncio.Event) -> None:
    """Read the lease (namespace/name) until canceled. Keep `leading` set while a scheduler on `host` holds it."""
    namespace, _, name = lease.partition("/")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    read_at, logged = time.monotonic(), ""
    while True:
        leads = leading.is_set()
        try:
            holder = text(mapping(decoded(await connection.get(path)).get("spec")).get("holderIdentity"))
            leads, read_at, logged = holder.rpartition("_")[0] == host, time.monotonic(), ""
        except KubeError as err:
            if str(err) != logged:
                logged = str(err)
                log.warning("Failed to read the lease", extra={"lease": lease, "error": logged})
            leads = leads and time.monotonic() - read_at < TRUSTED_S
        if leads and not leading.is_set():
            log.info("Gained the lease", extra={"lease": lease})
            leading.set()
        if leading.is_set() and not leads:
            log.info("Lost the lease", extra={"lease": lease})
            leading.clear()
        await asyncio.sleep(READ_S)
