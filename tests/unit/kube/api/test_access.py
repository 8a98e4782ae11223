"""The way to the API server in plain values."""

import json
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuagent.kube.api import access as module
from gpuagent.kube.api.access import access
from gpuagent.kube.api.api_errors import ApiConfigError
from gpuagent.kube.api.overrides import Impersonation, Overrides

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUXMPvr9cDyiTux4bvImrGfRoTHtUwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjMwNzIyNThaGA8yMTI2MTAzMDA3MjI1
OFowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABK3h
XVZCOagcO3MYgDqfEb7TA0UXx3LEGVlNVjWPYzs4Ok2vZUPkXKUmfj5+zTx7/4jj
FKLr8Oo1tWOj2brhdxijUzBRMB0GA1UdDgQWBBQJF6YnSRUp1j70CKK4EzeTeCeu
FjAfBgNVHSMEGDAWgBQJF6YnSRUp1j70CKK4EzeTeCeuFjAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQCR5DqGkNzg83JZlW/engtbhP4lUynU63tc
YNgUqw4H7QIhAN7SfAsgHdh82MZbxNcQ7o19hqst55dgAn16nvvYh2UT
-----END CERTIFICATE-----
"""
"""Of no key that exists any more; good for a hundred years."""


def config(path: Path, server: str, *, cluster: dict[str, object] | None = None, **user: object) -> str:
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(kubeconfig))
    return str(path)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a service account, in a pod."""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text(CERTIFICATE)
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def test_a_service_account_and_its_token_that_rotates(account: Path) -> None:
    found = access(None)
    assert (found.server, found.proxy) == ("https://10.0.0.1:443", "")
    assert found.certificates is not None
    assert found.certificates.context().verify_mode is ssl.CERT_REQUIRED
    assert found.authorization() == "Bearer first"
    (account / "token").write_text("second")
    assert found.authorization() == "Bearer second"
    (account / "token").unlink()
    with pytest.raises(ApiConfigError, match="token for the API server cannot be read: .*No such file"):
        found.authorization()


def test_a_service_account_of_ipv6(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert access(None).server == "https://[fd00::1]:443"


def test_a_service_account_without_certificates_is_explained(account: Path) -> None:
    (account / "ca.crt").unlink()
    with pytest.raises(ApiConfigError, match="certificates for the API server cannot be read"):
        access(None)


def test_outside_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ApiConfigError, match="not running in a pod"):
        access(None)


def test_a_kubeconfig(tmp_path: Path) -> None:
    plain = access(config(tmp_path / "plain", "http://127.0.0.1:8080/"))
    assert (plain.server, plain.certificates, plain.authorization()) == ("http://127.0.0.1:8080", None, "")
    cluster: dict[str, object] = {"tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}
    found = access(config(tmp_path / "tls", "https://10.1.2.3:6443", cluster=cluster, token="secret"))
    assert (found.server_name, found.proxy, found.authorization()) == (
        "kubernetes",
        "http://proxy:3128",
        "Bearer secret",
    )
    assert found.certificates is not None
    tls = found.certificates.context()
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not tls.verify_flags & ssl.VERIFY_X509_STRICT


def test_a_kubeconfig_that_does_not_verify(tmp_path: Path) -> None:
    insecure = access(config(tmp_path / "c", "https://10.1.2.3:6443", cluster={"insecure-skip-tls-verify": True}))
    assert insecure.certificates is not None
    tls = insecure.certificates.context()
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_NONE, False)


def test_a_service_account_loads_no_library(account: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gpuagent.kube.api import access\n"
        f"access.SERVICE_ACCOUNT = Path({str(account)!r}); access.access(None).authorization()\n"
        "sys.exit(bool({'kubernetes', 'urllib3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_service_account_may_impersonate(account: Path) -> None:
    impersonation = Impersonation(user="jo", groups=("dev",), extra={"acme.com/scope": ("a", "b")})
    found = access(None, Overrides(impersonation=impersonation))
    assert found.headers == (
        ("Impersonate-User", "jo"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Extra-acme.com%2Fscope", "a"),
        ("Impersonate-Extra-acme.com%2Fscope", "b"),
    )
    assert access(None).headers == ()


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"as": 5}, "as of the kubeconfig's user is 5, but it has to be a text"),
        ({"as": "jo", "as-uid": ["7"]}, "as-uid of the kubeconfig's user is"),
        (
            {"as": "jo", "as-groups": "dev"},
            "as-groups of the kubeconfig's user is 'dev', but it has to be a list of texts",
        ),
        ({"as": "jo", "as-groups": [1]}, "as-groups of the kubeconfig's user is"),
        ({"as": "jo", "as-user-extra": ["a"]}, "as-user-extra of the kubeconfig's user is"),
        ({"as": "jo", "as-user-extra": {"scope": "a"}}, "scope of the kubeconfig's user is 'a'"),
        ({"as-groups": ["dev"]}, "name it with --as, or with `as` in the kubeconfig"),
    ],
)
def test_an_impersonation_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, Any], refusal: str) -> None:
    """If it was ignored, requests would have all rights of the credentials."""
    with pytest.raises(ApiConfigError, match=re.escape(refusal)):
        access(config(tmp_path / "config", "http://10.0.0.1", token="t", **fields))


def test_the_user_of_a_kubeconfig_may_impersonate(tmp_path: Path) -> None:
    user = {"token": "t", "as": "jo", "as-uid": "7", "as-groups": ["dev"], "as-user-extra": {"scope": ["a"]}}
    found = access(config(tmp_path / "config", "http://10.0.0.1", **user))
    assert found.headers == (
        ("Impersonate-User", "jo"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Extra-scope", "a"),
    )
    with pytest.raises(ApiConfigError, match="without a user"):
        access(config(tmp_path / "config", "http://10.0.0.1", **{"as-groups": ["dev"]}))
