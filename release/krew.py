"""The manifest by which krew installs the kubectl plugin: one archive for each platform."""

from collections.abc import Mapping
from typing import Any

import yaml

NAME = "inspect-cgpu"
"""krew's name of the plugin. It makes `kubectl inspect-cgpu` of it."""
PROGRAM = "kubectl-inspect-cgpu"
COMPLETION = "kubectl_complete-inspect-cgpu"
"""The program that kubectl runs on TAB. krew links no second program, so users link it themselves."""
CAVEATS = f"""\
The plugin needs Python 3.11 to 3.14 as python3, and rights to list nodes and pods.
For completion on TAB, link the program that kubectl looks for into a folder in PATH:
  ln -s "$(dirname "$(readlink -f "$(command -v kubectl-inspect_cgpu)")")/{COMPLETION}" \\
    ~/.local/bin/kubectl_complete-inspect_cgpu
"""


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
            "files": [{"from": name, "to": "."} for name in (PROGRAM, COMPLETION, "LICENSE")],
        }
        for platform, (address, digest) in archives.items()
    ]
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME, "annotations": _annotations(home)},
        "spec": {
            "version": f"v{version}",
            "homepage": home,
            "shortDescription": "Show who uses the GPUs of a cluster",
            "description": "Shows memory, compute and pods of each GPU, links between GPUs, and why pods wait.\n",
            "caveats": CAVEATS,
            "platforms": platforms,
        },
    }


def _annotations(home: str) -> dict[str, str]:
    """For the plugin's page on Artifact Hub."""
    links = [{"name": "support", "url": f"{home}/issues"}, {"name": "source", "url": home}]
    return {
        "artifacthub.io/displayName": "kubectl inspect cgpu",
        "artifacthub.io/category": "ai-machine-learning",
        "artifacthub.io/license": "Apache-2.0",
        "artifacthub.io/keywords": yaml.safe_dump(["gpu", "nvidia", "mps", "device-plugin"]),
        "artifacthub.io/links": yaml.safe_dump(links),
    }
