"""``python -m image.sbom``: image/sbom.cdx.json, the bill of materials, from requirements-scheduler.lock (CycloneDX).

It is validated, and has no time and no serial number, so the same lock file gives the same bytes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from image.__main__ import ROOT, version

BILL = ROOT / "image" / "sbom.cdx.json"


def bill_of_materials() -> str:
    """As it has to be, in JSON. Raises CalledProcessError where the tool finds it invalid."""
    project = (ROOT / "pyproject.toml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        # The tool takes the version from there only.
        static = Path(folder) / "pyproject.toml"
        static.write_text(project.replace('dynamic = ["version"]', f'version = "{version()}"'))
        command = (
            *(
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "cyclonedx_py",
                "requirements",
                "--output-reproducible",
                "--validate",
            ),
            *("--output-format", "JSON", "--mc-type", "application", "--pyproject", str(static)),
            str(ROOT / "requirements-scheduler.lock"),
        )
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 (fixed arguments)


if __name__ == "__main__":
    BILL.write_text(bill_of_materials())
