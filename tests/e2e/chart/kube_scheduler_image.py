"""An image of kube-scheduler alone. The stock one is in a registry that no test reaches."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.e2e.build import add_file, bin_dir, image_config


def kube_scheduler_archive(folder: Path, name: str) -> Path:
    """A docker-archive of the image under this name, in the folder."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        add_file(files, "bin/kube-scheduler", (bin_dir() / "kube-scheduler").read_bytes(), mode=0o755)
    config = json.dumps(image_config(layer.getvalue(), ["/bin/kube-scheduler"])).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    path = folder / "kube-scheduler.tar"
    with tarfile.open(path, "w") as archive:
        add_file(archive, "layer.tar", layer.getvalue())
        add_file(archive, config_name, config)
        add_file(archive, "manifest.json", json.dumps(manifest).encode())
    return path
