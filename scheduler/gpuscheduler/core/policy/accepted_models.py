"""Which GPU models a pod accepts, by its node selector and its required node affinity."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuscheduler.core.constraints.selectors import Requirement

MODEL_LABEL = "aliyun.accelerator/nvidia_name"
MODEL_LABELS = (
    MODEL_LABEL,
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "node.kubernetes.io/instance-type",
)
"""Node labels that tell the model: of the agent and ACK, of GPU feature discovery, and of clouds."""
MOST_READ = 64
"""Terms, expressions or values that are read: any author of pods may write thousands."""

NodeLabels = tuple[tuple[str, str], ...]
"""The labels of `MODEL_LABELS` that a node has, in their order, with their values."""


ModelTerms = tuple[frozenset[Requirement], ...]
"""Alternatives. All conditions of one have to hold. Empty for a pod that accepts any model."""
_OPERATORS = frozenset(("In", "NotIn", "Exists", "DoesNotExist"))


def model_labels(labels: Mapping[str, Any]) -> NodeLabels:
    """The labels of a node that tell the model of its GPUs."""
    present = [(label, text(labels.get(label))) for label in MODEL_LABELS]
    return tuple((label, value) for label, value in present if value)


def model_terms(spec: Mapping[str, Any]) -> ModelTerms:
    """The models that a pod asks for, from its spec."""
    selected = frozenset(_selected(spec))
    required = mapping_at(
        spec,
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    )
    terms = required.get("nodeSelectorTerms")
    if not _is_short_list(terms):
        return (selected,) if selected else ()
    alternatives = [selected | _rules(term) for term in mappings(terms)]
    # One alternative that names no model makes the pod accept any.
    names_models = bool(alternatives) and all(alternatives)
    return tuple(alternatives) if names_models else ()


def accepts(terms: ModelTerms, labels: NodeLabels) -> bool:
    """Whether a pod accepts the model of a node with these labels."""
    by_key = dict(labels)
    if not terms:
        return True
    return any(all(rule.matches(by_key.get(rule.key)) for rule in rules) for rules in terms)


def _selected(spec: Mapping[str, Any]) -> Iterator[Requirement]:
    """Conditions of the node selector."""
    selector = mapping(spec.get("nodeSelector"))
    for label in MODEL_LABELS:
        if label in selector:
            value = text(selector[label])
            yield Requirement(label, "In", frozenset([value]))


def _rules(term: Mapping[str, Any]) -> frozenset[Requirement]:
    """Conditions of one term of the node affinity."""
    expressions = term.get("matchExpressions")
    if not _is_short_list(expressions):
        return frozenset()
    rules: list[Requirement] = []
    for expression in mappings(expressions):
        label = text(expression.get("key"))
        operator = text(expression.get("operator"))
        values = expression.get("values", [])
        is_read = label in MODEL_LABELS and operator in _OPERATORS
        if is_read and _is_short_list(values):
            named = frozenset(text(value) for value in values)
            rules.append(Requirement(label, operator, named))
    return frozenset(rules)


def _is_short_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= MOST_READ
