"""Runs the commands of a page of the documentation, as its readers do."""

import os
import re
import subprocess

import yaml

from gpuagent.domain.sharing.mode import GPU_WHOLE
from tests.e2e.cluster import WAIT_S, pki
from tests.e2e.documents import DOCS
from tests.e2e.scheduler.control_plane import ControlPlane
from tests.e2e.scheduler.gpu_allocations import Allocations


def fill_by_page(
    control_plane: ControlPlane,
    name: str,
    made: list[str],
    allocations: Allocations,
) -> None:
    """Run the commands of a page, whose pods fill two nodes of eight GPUs."""
    run_page(control_plane, name, made)
    # The watch of the audit may show the pods later than the commands saw them.
    control_plane.pods.wait(lambda _: allocations.used()[GPU_WHOLE] == 16)
    assert allocations.problems() == []


def run_page(control_plane: ControlPlane, name: str, made: list[str]) -> None:
    """Run the shell blocks of a page in one shell, one after the other, with the machine's kubectl.

    What a reader's cluster does within the limits of the commands, a busy machine may take longer for.

    Args:
        control_plane: where the commands go.
        name: of the page's file.
        made: paths of the objects that the commands create are added to it.
    """
    text = (DOCS / name).read_text(encoding="utf-8")
    for objects in re.findall(r"<<'YAML'\n(.*?)^YAML$", text, re.DOTALL | re.MULTILINE):
        made += map(control_plane.client.path_of, yaml.safe_load_all(objects))
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    script = re.sub(r"--timeout=\d+s", f"--timeout={WAIT_S:.0f}s", "\n".join(blocks))
    bash = ("bash", "-euo", "pipefail", "-c", script)
    kubeconfig = {"KUBECONFIG": str(control_plane.kubeconfig(pki.ADMIN))}
    done = subprocess.run(bash, env=os.environ | kubeconfig, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
