"""What a command line says in place of a kubeconfig, with the meaning of kubectl's flags.

Source of the precedence: client-go, tools/clientcmd/client_config.go, and transport/round_trippers.go for the headers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpuagent.kube.api.api_errors import ApiConfigError

Header = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """In whose name requests are made; empty: in the name of the credentials.

    Attributes:
        user: its name; the API server refuses the others without it.
        uid: its UID.
        groups: its groups.
        extra: further properties of the user, each with its values.
    """

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] | None = None

    def or_else(self, other: "Impersonation") -> "Impersonation":
        """With what the other one says where this one says nothing."""
        return Impersonation(
            user=self.user or other.user,
            uid=self.uid or other.uid,
            groups=self.groups or other.groups,
            extra=self.extra or other.extra,
        )

    def headers(self) -> tuple[Header, ...]:
        """The headers of each request. Raises ApiConfigError: there is no user, or a value that no header can have."""
        properties = self._properties()
        if properties and not self.user:
            text_of_error = (
                "groups, a UID or other properties are impersonated without a user: name it with --as, or with `as` in"
                " the kubeconfig"
            )
            raise ApiConfigError(text_of_error)
        user = [("Impersonate-User", self.user)] if self.user else []
        headers = (*user, *properties)
        for _, value in headers:
            if not value.isascii() or not value.isprintable():
                raise ApiConfigError(f"the name {value!r} to impersonate has characters that no HTTP header can have")
        return headers

    def _properties(self) -> list[Header]:
        """The headers of all but the user's name."""
        headers = [("Impersonate-Uid", self.uid)] if self.uid else []
        headers += [("Impersonate-Group", group) for group in self.groups]
        for name, values in (self.extra or {}).items():
            # The names of headers have few letters.
            header = f"Impersonate-Extra-{quote(name, safe='')}"
            headers += [(header, value) for value in values]
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values in place of those of a kubeconfig; empty ones change nothing.

    Attributes:
        context: name of the context; empty for the current one.
        cluster: name of the cluster.
        user: name of the user.
        server: URL of the API server.
        server_name: name in its certificate.
        authority: file with certificates of those who sign the server's.
        insecure: do not verify the server's certificate.
        token: bearer token.
        client_certificate: file.
        client_key: file.
        impersonation: in whose name requests are made.
    """

    context: str = ""
    cluster: str = ""
    user: str = ""
    server: str = ""
    server_name: str = ""
    authority: str = ""
    insecure: bool = False
    token: str = ""
    client_certificate: str = ""
    client_key: str = ""
    impersonation: Impersonation = Impersonation()

    def cluster_fields(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a kubeconfig's cluster with these values. Raises ApiConfigError for a contradiction."""
        if self.authority and self.insecure:
            # Who names an authority wants the server verified.
            text_of_error = "a certificate authority is named, and the certificate is not to be verified: choose one"
            raise ApiConfigError(text_of_error)
        fields = dict(written)
        if self.server:
            fields["server"] = self.server
            # The name belongs to the server of the file.
            fields.pop("tls-server-name", None)
        if self.server_name:
            fields["tls-server-name"] = self.server_name
        if self.authority or self.insecure:
            for name in ("certificate-authority", "certificate-authority-data"):
                fields.pop(name, None)
            fields["insecure-skip-tls-verify"] = self.insecure
        if self.authority:
            fields["certificate-authority"] = os.path.abspath(self.authority)  # noqa: PTH100 (a path of any length)
        return fields

    def user_fields(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a kubeconfig's user with these values."""
        fields = dict(written)
        if self.token:
            # Otherwise a program to log in would be run, and its token be used.
            for name in ("tokenFile", "exec", "auth-provider", "username", "password"):
                fields.pop(name, None)
            fields["token"] = self.token
        files = {"client-certificate": self.client_certificate, "client-key": self.client_key}
        for name, file in files.items():
            if file:
                fields.pop(f"{name}-data", None)
                fields[name] = os.path.abspath(file)  # noqa: PTH100 (a path of any length)
        return fields


AS_WRITTEN = Overrides()
"""Changes nothing."""


def impersonation_of(user: Mapping[str, Any]) -> Impersonation:
    """What the fields of a kubeconfig's user say about impersonation.

    Raises ApiConfigError for a field of another type: without it, requests would have all rights of the credentials.
    """
    extra = _dictionary(user, "as-user-extra")
    return Impersonation(
        user=_string(user, "as"),
        uid=_string(user, "as-uid"),
        groups=_strings(user, "as-groups"),
        extra={name: _strings(extra, name) for name in extra},
    )


def _string(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _malformed(name, value, "a text")
    return value


def _strings(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = fields.get(name)
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _malformed(name, values, "a list of texts")
    return tuple(values)


def _dictionary(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    values = fields.get(name)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise _malformed(name, values, "lists of texts by name")
    return values


def _malformed(name: str, value: object, needed: str) -> ApiConfigError:
    return ApiConfigError(f"{name} of the kubeconfig's user is {value!r}, but it has to be {needed}")
