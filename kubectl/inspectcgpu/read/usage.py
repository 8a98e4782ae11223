"""GPU memory that containers use, against their limits, out of an agent's metrics."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from gpuagent.domain.pods.pod import PodName

USED = "gpuagent_container_gpu_memory_used_bytes"
LIMIT = "gpuagent_container_gpu_memory_limit_bytes"


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of all containers of a pod over all its GPUs; None where the metrics lack them."""

    used: int | None = None
    limit: int | None = None


def read_usage(page: str) -> Mapping[PodName, Usage] | None:
    """Pod to its usage; None where the page has no such metrics, or is no metrics page. Never raises."""
    bytes_of_pods: dict[PodName, Counter[str]] = defaultdict(Counter)
    has_metrics = False
    try:
        for family in text_string_to_metric_families(_matter(page)):
            if family.name not in (USED, LIMIT):
                continue
            has_metrics = True
            for sample in family.samples:
                labels = sample.labels
                names_a_pod = "namespace" in labels and "pod" in labels
                if names_a_pod and sample.value >= 0:
                    pod = PodName(labels["namespace"], labels["pod"])
                    bytes_of_pods[pod][family.name] += int(sample.value)
    except (ValueError, OverflowError, KeyError, IndexError, TypeError):  # errors that the parser lets through
        return None
    if not has_metrics:
        return None
    return {pod: Usage(values.get(USED), values.get(LIMIT)) for pod, values in bytes_of_pods.items()}


def _matter(page: str) -> str:
    """The lines that matter: the library takes its time for each, and a node has a thousand others."""
    return "".join(f"{line}\n" for line in page.split("\n") if USED in line or LIMIT in line)
