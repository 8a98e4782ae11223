"""An answer of the stand-in API server other than success."""


class Refusal(Exception):  # noqa: N818 - an answer of the server, no fault of it
    """An answer other than success: ``code``, ``reason`` as the real server gives them."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
