"""Errors of API server calls, in words for people. No exception of the library leaves ``gpuagent.kube``."""


class KubeError(Exception):
    """Root of this edge's errors. Its text is stable for the same cause, so that a reader may say it once."""


class ConfigError(KubeError):
    """The way to the API server is not configured, or not readably. An operator must act."""


class ApiUnreachable(KubeError):  # noqa: N818 - a state of the world, as the events name it
    """No answer: refused, timed out, broken off, TLS. Worth another try later."""


class ApiError(KubeError):
    """The API server answered no.

    Attributes:
        status: HTTP status, or the code of a watch's ERROR event.
        reason: the Status object's reason, such as ``NotFound``, ``Forbidden``, ``Expired``; "" where there is none.
        message: what the server said.
        retry_after_s: when to ask again, where the server says so (``Retry-After``); None where it does not.
    """

    def __init__(
        self, status: int, reason: str, message: str, hint: str = "", retry_after_s: int | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        super().__init__(hint or f"the API server answers {status} {reason}: {message}")

    @property
    def passing(self) -> bool:
        """True where the same request may well succeed later: login renewed, overload, a fault of the server."""
        return self.status in (401, 408, 429) or self.status >= 500


def refused(verb: str, resource: str, group: str, message: str) -> ApiError:
    """Return the 403 for ``verb`` on ``resource`` (``nodes/status``): it says what RBAC must allow."""
    hint = f'RBAC refuses: allow verb "{verb}" on resource "{resource}" in API group "{group}" ({message})'
    return ApiError(403, "Forbidden", message, hint)
