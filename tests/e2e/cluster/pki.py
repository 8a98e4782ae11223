"""Certificates, tokens and kubeconfig files of the cluster."""

import base64
import json
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .manifests import NODE_NAME

ADMIN = "admin"
AGENT = "gpuagent"
GPU_SCHEDULER = "gpuscheduler"
NODE_USER = f"system:node:{NODE_NAME}"
_GROUPS = {
    ADMIN: "system:masters",
    AGENT: "",
    GPU_SCHEDULER: "",
    NODE_USER: "system:nodes",
    "system:kube-scheduler": "",
    # One process that acts for many controllers, each of which would need rights of its own.
    "system:kube-controller-manager": "system:masters",
}


@dataclass(frozen=True)
class Pki:
    """All secrets of one cluster, as files below one directory."""

    directory: Path
    server: str
    tokens: dict[str, str]

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def token_file(self) -> Path:
        return self.directory / "tokens.csv"

    @property
    def service_account_key(self) -> Path:
        return self.directory / "sa.key"

    def kubeconfig(self, user: str) -> Path:
        """Written each time; JSON is YAML, too."""
        cluster = {
            "server": self.server,
            "certificate-authority-data": base64.b64encode(self.ca.read_bytes()).decode(),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
        }
        path = self.directory / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(config, indent=2))
        return path


def create(directory: Path, address: str, port: int) -> Pki:
    directory.mkdir(parents=True)
    names = (f"IP:{address}", "IP:127.0.0.1", "DNS:localhost", "DNS:kubernetes.default.svc")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-x509", "-days", "30")
    _openssl(directory, "req", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=e2e-ca")
    _openssl(
        directory,
        *("req", *key, "-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", "server.key", "-out", "server.crt"),
        *("-subj", "/CN=kube-apiserver", "-addext", f"subjectAltName={','.join(names)}"),
        *("-addext", "basicConstraints=critical,CA:false", "-addext", "extendedKeyUsage=serverAuth"),
    )
    _openssl(directory, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key")
    pki = Pki(directory, f"https://{address}:{port}", {user: secrets.token_hex(16) for user in _GROUPS})
    lines = (f'{pki.tokens[user]},{user},{user},"{groups}"' for user, groups in _GROUPS.items())
    pki.token_file.write_text("\n".join(lines) + "\n")
    return pki


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(("openssl", *arguments), cwd=directory, capture_output=True, check=True)
