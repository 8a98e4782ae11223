"""The manifest by which krew installs the kubectl plugin: one archive for each platform."""

from collections.abc import Mapping
from typing import Any

NAME = "inspect-cgpu"
"""krew's name of the plugin. It makes `kubectl inspect-cgpu` of it."""
PROGRAM = "kubectl-inspect-cgpu"


def manifest(version: str, home: str, archives: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The manifest.

    Args:
        version: without a `v`.
        home: address of the repository.
        archives: platform, as in `linux/amd64`, to the archive's address and its SHA-256.
    """
    platforms = [
        {
            "selector": {"matchLabels": dict(zip(("os", "arch"), platform.split("/"), strict=True))},
            "uri": address,
            "sha256": digest,
            "bin": PROGRAM,
            "files": [{"from": name, "to": "."} for name in (PROGRAM, "LICENSE")],
        }
        for platform, (address, digest) in archives.items()
    ]
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version}",
            "homepage": home,
            "shortDescription": "Show who uses the GPUs of a cluster",
            "description": "Shows memory, compute and pods of each GPU, links between GPUs, and why pods wait.\n",
            "caveats": "The plugin needs Python 3.11 to 3.14 as python3, and rights to list nodes and pods.\n",
            "platforms": platforms,
        },
    }
