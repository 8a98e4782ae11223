"""Error answers of the API server, read from status and body."""

import json
import re

from gpuagent.domain.pods.json_values import mapping, number
from gpuagent.kube.api.api_errors import ApiError, refused

UNAUTHORIZED, FORBIDDEN = 401, 403
_SECONDS = re.compile("[0-9]{1,6}", re.ASCII)


def error_of(  # noqa: PLR0913 - what the answer has
    verb: str, path: str, status: int, reason: str, data: bytes, retry_after: str | None = None
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
        answer = {}
    message = str(answer.get("message") or reason)
    if status == FORBIDDEN:
        return refused(verb, *resource_of(path), message)
    seconds = int(retry_after) if retry_after and _SECONDS.fullmatch(retry_after) else None
    if seconds is None:
        seconds = number(mapping(answer.get("details")).get("retryAfterSeconds"))
    named = str(answer.get("reason") or reason)
    hint = ""
    if status == UNAUTHORIZED:
        what_to_do = "check the token of the service account, or the kubeconfig"
        hint = f"the API server answers {status} {named}: it does not accept the credentials; {what_to_do}"
    return ApiError(status, named, message, hint, retry_after_s=seconds)


def resource_of(path: str) -> tuple[str, str]:
    """Return (resource, API group) as RBAC names them: ``/api/v1/nodes/n/status`` gives ``("nodes/status", "")``."""
    head, *parts = path.strip("/").split("/")
    group = parts[0] if head == "apis" else ""
    parts = parts[2:] if head == "apis" else parts[1:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join([*parts[:1], *parts[2:3]]), group
