"""``python -m image.sbom``: image/sbom.cdx.json, the bill of materials, from requirements-scheduler.lock (CycloneDX).

It is validated, and has no time and no serial number, so the same lock file gives the same bytes. The lock has no
licenses: they come from the packages as they are installed in this environment.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from image.__main__ import ROOT, version

BILL = ROOT / "image" / "sbom.cdx.json"
LICENSES = {
    "aiosignal": "Apache-2.0",
    "nvidia-ml-py": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
}
"""Of packages whose metadata name their license in words only, as their license files have it."""
_TOOL = (sys.executable, "-W", "ignore", "-m", "cyclonedx_py")
_OUTPUT = ("--output-reproducible", "--output-format", "JSON")

Json = dict[str, Any]


class LicenseError(Exception):
    """A package's license is not known; the text says which, and what to do."""


def of_lock() -> Json:
    """The bill of the lock's packages, without licenses. Raises CalledProcessError: the tool finds the lock invalid."""
    project = (ROOT / "pyproject.toml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        # The tool takes the version from there only.
        static = Path(folder) / "pyproject.toml"
        static.write_text(project.replace('dynamic = ["version"]', f'version = "{version()}"'))
        of_project = ("--mc-type", "application", "--pyproject", str(static))
        return _made("requirements", *of_project, str(ROOT / "requirements-scheduler.lock"))


def bill_of_materials() -> str:
    """The bill as it has to be, in JSON.

    Raises:
        CalledProcessError: the tool finds the lock invalid.
        LicenseError: a package has no license that is an SPDX expression.
        ValueError: the bill is invalid.
    """
    bill = of_lock()
    installed = {_normal(package["name"]): package for package in _made("environment", sys.executable)["components"]}
    for component in bill["components"]:
        package = installed.get(_normal(component["name"]), {})
        component["licenses"] = [{"expression": _license(component, package)}]
    text = json.dumps(bill, indent=2)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of materials is invalid: {problem}")
    return text


def _made(*arguments: str) -> Json:
    command = (*_TOOL, arguments[0], *_OUTPUT, *arguments[1:])
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 (fixed arguments)
    bill: Json = json.loads(done.stdout)
    return bill


def _license(component: Json, package: Json) -> str:
    """The SPDX expression for a package of the lock, from what is installed."""
    name, wanted = component["name"], component["version"]
    if package.get("version") != wanted:
        there = package.get("version", "not there")
        raise LicenseError(f"{name} {wanted} of the lock is {there} in this environment: run `make clean test` first")
    if known := LICENSES.get(_normal(name)):
        return known
    entries = package.get("licenses", ())
    expressions = [entry["expression"] for entry in entries if "expression" in entry]
    ids = [entry["license"]["id"] for entry in entries if "id" in entry.get("license", {})]
    if not expressions and not ids:
        raise LicenseError(f"{name} {wanted} names no license by its SPDX id: add it to LICENSES in image/sbom.py")
    # Several classifiers are a choice of the user, as with uvloop (MIT or Apache).
    return expressions[0] if expressions else " OR ".join(dict.fromkeys(ids))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    BILL.write_text(bill_of_materials())
