"""What make says to a machine that lacks something."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_python_of_the_wrong_version_is_named_before_anything_is_installed(tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10, 12); exec(sys.argv[1])" "$2"\n'
    )
    old.chmod(0o755)
    command = ["make", "demo", f"PYTHON={old}", f"VENV={tmp_path}/venv"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert f"Python 3.11, 3.12, 3.13 or 3.14 is needed, and {old} is 3.10" in made.stderr
    assert not (tmp_path / "venv").exists()
