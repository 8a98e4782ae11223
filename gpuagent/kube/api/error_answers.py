"""Error answers of the API server, read from status and body."""

import json
import re

from gpuagent.domain.pods.json_values import mapping, number
from gpuagent.kube.api.api_errors import ApiError, refused

UNAUTHORIZED = 401
FORBIDDEN = 403
_SECONDS = re.compile("[0-9]{1,6}", re.ASCII)


def error_of(  # noqa: PLR0913 - what the answer has
    verb: str,
    path: str,
    status: int,
    reason: str,
    data: bytes,
    retry_after: str | None = None,
) -> ApiError:
    """The error that an answer with a bad status is.

    Args:
        verb: as RBAC names it.
        path: of the request.
        status: of the answer, as all that follow.
        reason: the words beside the status.
        data: the body.
        retry_after: the header.
    """
    try:
        answer = mapping(json.loads(data))
    except ValueError:
        # A proxy or a load balancer in between answers with a page of its own.
        answer = {}
    message = str(answer.get("message") or reason)
    if status == FORBIDDEN:
        resource, group = resource_of(path)
        return refused(verb, resource, group, message)
    seconds = None
    if retry_after and _SECONDS.fullmatch(retry_after):
        seconds = int(retry_after)
    else:
        details = mapping(answer.get("details"))
        seconds = number(details.get("retryAfterSeconds"))
    named = str(answer.get("reason") or reason)
    hint = ""
    if status == UNAUTHORIZED:
        what_to_do = "check the token of the service account, or the kubeconfig"
        hint = f"the API server answers {status} {named}: it does not accept the credentials; {what_to_do}"
    return ApiError(status, named, message, hint, retry_after_s=seconds)


def resource_of(path: str) -> tuple[str, str]:
    """Return (resource, API group) as RBAC names them: ``/api/v1/nodes/n/status`` gives ``("nodes/status", "")``."""
    head, *parts = path.strip("/").split("/")
    group = ""
    if head == "apis":
        group, *parts = parts
    after_version = parts[1:]
    is_namespaced = after_version[:1] == ["namespaces"] and len(after_version) > 2
    if is_namespaced:
        after_version = after_version[2:]
    # The object's name stands between its resource and a subresource.
    resource = after_version[:1]
    subresource = after_version[2:3]
    return "/".join([*resource, *subresource]), group
