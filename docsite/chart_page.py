"""Every value of the chart, with its default and its comment in values.yaml: a page, and the chart's README."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from docsite.markdown import MADE, table

(VALUES,) = (Path(__file__).parents[1] / "manifests" / "helm").glob("*/values.yaml")


def page() -> str:
    """The page."""
    rows = _all_rows()
    return f"""# Chart values

{MADE}

All values of the chart, by path: `--set http.port=9445`. The [page of the chart](../install.md#values) has the reasons
and what depends on what. The chart refuses a value that is not here, or one of another type.

{table(("value", "default", "meaning"), rows)}"""


def readme() -> str:
    """The README that is packed with the chart: registries of charts show it."""
    rows = _all_rows()
    chart = yaml.safe_load((VALUES.parent / "Chart.yaml").read_text(encoding="utf-8"))
    return f"""# Chart {chart["name"]}

{MADE}

{chart["description"]}: an agent on each node with GPUs, isolation by NVIDIA MPS or cGPU,
and on request a GPU scheduler. It needs Kubernetes 1.18 or later, nodes with the NVIDIA driver, and an image in a
registry of yours.

```sh
helm install gpuagent CHART --namespace kube-system --set image.repository=registry.example.com/gpuagent \\
  --set driver.runtimeClassName=nvidia --set driver.createRuntimeClass=true
kubectl label node NODE ack.node.gpu.schedule=share
helm test gpuagent --namespace kube-system --logs     # what each node offers, or what it lacks
```

Leave out `driver.createRuntimeClass` where the cluster has a RuntimeClass `nvidia`, and both where NVIDIA's runtime is
containerd's default one.

It takes the place of ACK's component `ack-ai-installer`: labels, resource names and annotations are the same.

## Values

{table(("value", "default", "meaning"), rows)}"""


def _all_rows() -> Iterator[tuple[str, str, str]]:
    text = VALUES.read_text(encoding="utf-8")
    values = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(values, yaml.MappingNode):
        raise TypeError(f"{VALUES} has no values")
    return _rows(values, text.splitlines())


def _rows(group: yaml.MappingNode, lines: Sequence[str], path: str = "") -> Iterator[tuple[str, str, str]]:
    """A row for each value, and for each group of values that has a comment."""
    for key, value in group.value:
        name, comment = f"{path}{key.value}", _comment(key, lines)
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if comment:
                yield f"`{name}`", "", comment
            yield from _rows(value, lines, f"{name}.")
        else:
            yield f"`{name}`", _default(value), comment


def _default(value: yaml.Node) -> str:
    found = yaml.SafeLoader("").construct_object(value, deep=True)
    return "none" if found in ("", None) else f"`{found if isinstance(found, str) else json.dumps(found)}`"


def _comment(key: yaml.Node, lines: Sequence[str]) -> str:
    """The comment right above a key, as Markdown."""
    last = first = key.start_mark.line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(line.strip().removeprefix("#").strip() for line in lines[first:last]).replace("<", "&lt;")
