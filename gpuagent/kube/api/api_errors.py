"""Errors of API server calls, in words for people. No exception of a library leaves ``gpuagent.kube``."""

import re
import ssl

from gpuagent.system.printable import error_words


class KubeError(Exception):
    """Root of this package's errors. Its text is the same for the same cause, so that it can be logged once.

    Attributes:
        status: HTTP status of the answer; 0 without an answer.
    """

    status = 0


class ApiConfigError(KubeError):
    """The configuration of the API server is missing or cannot be read. An operator must act."""


class ApiUnreachable(KubeError):  # noqa: N818 - a state of the world, as the events name it
    """No answer: connection refused, timed out or broken, or a TLS failure. A later try may succeed."""


class ApiStarting(ApiUnreachable):
    """The API server forbids everything for its first seconds, until it has read its roles."""

    def __init__(self) -> None:
        super().__init__("the API server has just started and forbids everything until it has read its roles")


class ApiError(KubeError):
    """The API server answered with an error.

    Attributes:
        status: HTTP status, or the code of a watch's ERROR event.
        reason: the Status object's reason, such as ``NotFound``, ``Forbidden``, ``Expired``; "" where there is none.
        message: the server's text.
        retry_after_s: seconds until the next try, from ``Retry-After``; None where the server sends none.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        hint: str = "",
        retry_after_s: int | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        super().__init__(hint or f"the API server answers {status} {reason}: {message}")

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: after renewed login, overload, or a fault of the server."""
        return self.status in (401, 408, 429) or self.status >= 500


def refused(verb: str, resource: str, group: str, message: str) -> ApiError:
    """Return the 403 for ``verb`` on ``resource`` (``nodes/status``): its text says who refuses, and what to allow."""
    if _IS_RBAC.search(message):
        hint = f'RBAC refuses: allow verb "{verb}" on resource "{resource}" in API group "{group}" ({message})'
    else:
        # A webhook, an admission policy or a quota: a further right would not help.
        hint = f'an admission check refuses {verb} on "{resource}": have it allow this client ({message})'
    return ApiError(403, "Forbidden", message, hint)


_IS_RBAC = re.compile(r"\bcannot\b|^(Forbidden)?$", re.IGNORECASE)
"""A refusal by RBAC says what the user cannot do. A server before the API server may refuse without words."""


def connection_words(error: BaseException | None) -> str:
    """The reason of the operating system or of TLS in a chain of exceptions; "" if there is none."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return tls_words(error)
        if isinstance(error, OSError) and error.strerror:
            return error_words(error)
        error = error.__cause__ or error.__context__
    return ""


def tls_words(error: ssl.SSLError) -> str:
    """An error of TLS without the names of OpenSSL's codes and of Python's source files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message or 'unknown reason'}"
    reason = (error.reason or "").replace("_", " ").lower()
    return f"TLS failed: {reason}" if reason else "TLS failed"
