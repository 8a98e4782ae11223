"""A metric, for the agent's and the scheduler's tables of metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: as on the page; counters end in ``_total``.
        help: one sentence, on the page.
        labels: in the order in which values are given.
        kind: ``gauge``, ``counter`` or ``histogram``.
        more: for the reference: when it is absent, how to read it.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: str = "gauge"
    more: str = ""
