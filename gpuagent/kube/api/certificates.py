"""Certificates for TLS to the API server, in files that others may replace."""

import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.system.printable import error_words

Version = tuple[tuple[int, int, int], ...]
"""Time, number and size of each file."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of files in PEM form.

    Attributes:
        authority: certificates of those who sign the server's; None for those that the system trusts.
        client: certificate of this client; None for none.
        key: key of `client`; None if it is in the same file.
        verify: whether the server's certificate is verified.
    """

    authority: str | None
    client: str | None = None
    key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """A new context that verifies as Go clients do. Raises ApiConfigError.

        Python 3.13 and later would refuse certificates without key identifiers. Those of a cluster that Kubernetes 1.18
        or older made have none.
        """
        try:
            context = ssl.create_default_context(cafile=self.authority)
            # A file may name an intermediate authority only, which Go clients accept.
            context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.client:
                context.load_cert_chain(self.client, self.key)
        except ssl.SSLError as err:
            text = "they are not in PEM form, or a key does not belong to its certificate"
            raise self._unusable(text) from err
        except OSError as err:
            raise self._unusable(error_words(err)) from err
        return context

    def version(self) -> Version:
        """Another value after one of the files was replaced."""
        versions = []
        for path in self._paths():
            # A file that is replaced may be away for a moment. Then this is another version, too.
            with suppress(OSError):
                status = Path(path).stat()
                versions.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(versions)

    def _paths(self) -> list[str]:
        return [path for path in (self.authority, self.client, self.key) if path]

    def _unusable(self, text: str) -> ApiConfigError:
        files = ", ".join(self._paths())
        return ApiConfigError(f"the certificates for the API server cannot be read ({files}): {text}")
