"""The installer's errors, by exit code."""


class InstallerError(Exception):
    """The command failed (exit code 1); the text says what happened, to what, and what to do."""

    code = 1


class UsageError(InstallerError):
    """A mistake in flags or in what they name (exit code 2)."""

    code = 2


class RefusedError(InstallerError):
    """The node must not be touched as it is (exit code 3)."""

    code = 3
