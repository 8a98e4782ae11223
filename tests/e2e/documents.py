"""Kubernetes objects in the documents."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import yaml

from tests.e2e.cluster.manifests import Json

DOCS = Path(__file__).parents[2] / "docs"


def objects(page: Path) -> Iterator[Json]:
    """Whole objects in the page's YAML, in here-documents too; parts of one are left out."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```$|<<'YAML'\n(.*?)^YAML$", text, re.DOTALL | re.MULTILINE):
        for found in yaml.safe_load_all(dedent("".join(block))):
            if isinstance(found, dict) and {"apiVersion", "kind"} <= found.keys():
                yield found
