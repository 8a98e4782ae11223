"""The agent reads of a claim only what it needs, and that is all that it needs."""

import json
import threading
import tracemalloc
from collections import Counter
from dataclasses import replace

import pytest

from gpuagent.domain.dra.claim_users import check_users
from gpuagent.domain.dra.prepare import claimed_gpus, has_device_of, must_isolate, reserved_for
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.refusal import Refusal
from gpuagent.kube.api.claim_fields import CLAIM_FIELDS
from gpuagent.kube.api.client import MOST_LARGE, SMALL, Client, _decoded
from standin.waiting import PATIENCE_S
from tests.unit.domain.dra.prepared_claims import prepared
from tests.unit.domain.dra.test_prepare import GPUS, UNIT, claim, result


def whole_claims():
    """Claims of every kind, with fields that nobody reads."""
    share = claim(result(1, cores="30"))
    share["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    choices = [
        {"name": "small", "deviceClassName": "gpu-share.gpuagent.io", "capacity": {"requests": {"memory": "4Gi"}}}
    ]
    chosen = claim(result(0, request="gpu/small"))
    chosen["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": choices}]
    bytes_asked = claim(result(0))
    bytes_asked["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "8"}}
    uncounted = claim(result(0))
    uncounted["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"sharers": "0"}}
    configured = claim(result(0))
    configured["status"]["allocation"]["devices"]["config"] = [{"opaque": {"driver": "gpu.gpuagent.io"}}]
    limits = claim(result(0, "16Gi", request="a"), result(1, "16Gi", request="b"), device_class="gpu.gpuagent.io")
    limits["metadata"] = {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}
    monitor = claim(result(0, adminAccess=True), result(1, adminAccess=True))
    for body in (share, chosen, bytes_asked, uncounted, configured, limits, monitor, {}):
        noise = {"labels": {f"l{n}": "" for n in range(100)}, "managedFields": [{"fieldsV1": {"f:spec": {}}}]}
        yield {**body, "metadata": {**body.get("metadata", {}), **noise, "uid": "u", "namespace": "ml", "name": "c"}}


def read(body):
    try:
        gpus = claimed_gpus(body, "n", GPUS, UNIT)
    except Refusal as refusal:
        return refusal.message
    known = prepared("c", next(iter(GPUS.values())))
    own = replace(known, gpus=gpus)
    promised = must_isolate(body, gpus)
    return (
        gpus,
        promised,
        needs_pods(body, own),
        reserved_for(body),
        has_device_of(body, known),
        body["metadata"]["uid"],
    )


def needs_pods(body, own):
    """Claims for the limits of several containers do."""
    try:
        check_users(body, own, [], Pods())
    except Refusal:
        return True
    return False


def test_what_is_read_of_a_claim_is_the_same_without_the_other_fields():
    outcomes = []
    for body in whole_claims():
        text = json.dumps(body).encode()
        kept = _decoded(200, text, CLAIM_FIELDS)
        assert len(json.dumps(kept)) < len(text) / 2
        assert read(kept) == read(body)
        outcomes.append(read(body))
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 4


@pytest.mark.parametrize(
    ("part", "count"),
    [('{"conditions": [%s]}', 300_000), ('{"labels": {%s}}', 80_000), ('{"selectors": [%s]}', 150_000)],
)
def test_a_claim_that_is_made_of_small_parts_stays_small(part, count):
    """As a tenant could write it, so that it takes twenty times its size once it is decoded."""
    pieces = (f'"{n}":""' for n in range(count)) if "labels" in part else ("{}" for _ in range(count))
    body = (part % ",".join(pieces)).encode()
    assert 450_000 < len(body) < 1_100_000
    tracemalloc.start()
    try:
        assert _decoded(200, body, CLAIM_FIELDS) == {}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(body), "and not twenty times as much, or more"


def test_one_large_answer_is_decoded_at_a_time():
    """And no more than `MOST_LARGE` are in memory."""
    running, most = Counter(), Counter()
    change = threading.Lock()

    class Pieces:
        """The body of one answer, and how many are being read."""

        def __init__(self):
            self.left = 3

        def __iter__(self):
            return self

        def __next__(self):
            if not self.left:
                with change:
                    running["reading"] -= 1
                raise StopIteration
            self.left -= 1
            if self.left == 1:  # the first piece came before anything was held back
                with change:
                    running["reading"] += 1
                    most["reading"] = max(most["reading"], running["reading"])
            return b" " * (SMALL + 1) if self.left else b"{}"

        def close(self):
            pass

    class Transport:
        def pieces(self, *_):
            return Pieces()

    class Answering(Client):
        def _opened(self, *_args, **_more):
            return 200, Transport(), None

    client = Answering()
    threads = [threading.Thread(target=client.get, args=("/x",)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert 1 <= most["reading"] <= MOST_LARGE
