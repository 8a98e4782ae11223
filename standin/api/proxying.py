"""The API server's way to a port of a pod or node: ``…/pods/NAME:PORT/proxy/PATH``."""

import http.client
from contextlib import closing
from dataclasses import dataclass

from standin.api.objects import Key, Objects
from standin.api.refusal import Refusal

_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """The pod's answer."""

    status: int
    content_type: str
    body: bytes


def fetch(objects: Objects, key: Key, path: str) -> Answer:
    """GET ``path`` from the port that ``key`` names beside the pod or node. Raises Refusal 400, 404, 503.

    Unlike the real server it also goes to addresses on loopback.
    """
    resource, namespace, (name, _, port) = key[0], key[1], key[2].partition(":")
    found = objects.get((resource, namespace, name))
    if resource == "pods":
        address = found.get("status", {}).get("podIP", "")
    else:
        addresses = found.get("status", {}).get("addresses") or ()
        address = next((one["address"] for one in addresses if one["type"] == "InternalIP"), "")
    if not address or not port.isdigit():
        raise Refusal(400, "BadRequest", "address not allowed")
    with closing(http.client.HTTPConnection(address, int(port), timeout=_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", path or "/")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as err:
            text = f"error trying to reach service: dial tcp {address}:{port}: connect: {err}"
            raise Refusal(503, "ServiceUnavailable", text) from err
    return Answer(response.status, response.headers.get("Content-Type", ""), body)
