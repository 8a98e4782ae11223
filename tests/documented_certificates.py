"""The certificates of docs/gpuscheduler.md, made by the commands that stand there."""

import os
import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "gpuscheduler.md"
FOLDER = "/etc/kubernetes/gpuscheduler"


def make_certificates(folder: Path) -> Path:
    """Run the documented commands for this folder, which they make."""
    (commands,) = re.findall(r"```sh\n(\s+mkdir -p /etc/kubernetes/gpuscheduler .*?)```", PAGE.read_text(), re.DOTALL)
    script = commands.replace(FOLDER, str(folder)).replace("chown 65532", f"chown {os.getuid()}")
    subprocess.run(("sh", "-euc", script), check=True, capture_output=True)
    return folder
