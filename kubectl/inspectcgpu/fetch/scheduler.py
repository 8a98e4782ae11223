"""Queries gpuscheduler through the API server for what it would move, or moves."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Client
from gpuagent.kube.api.pages import list_pages
from inspectcgpu.read.defragment_page import MovesPage, read_moves_page

LABEL = "app.kubernetes.io/name=gpuagent,app.kubernetes.io/component=scheduler"


def read_moves(client: Client, namespace: str, port: int) -> MovesPage:
    """The page of the gpuscheduler that leads, or of another that runs. Raises KubeError."""
    folder = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    names = [name for name in list_pages(client, folder, _running, {"labelSelector": LABEL}).items if name]
    if not names:
        raise KubeError(f"no pod with labels {LABEL} runs in namespace {namespace}: is gpuscheduler installed there?")
    pages: list[MovesPage] = []
    problem = ""
    for name in sorted(names):
        try:
            page = _page(client.text(f"{folder}/{quote(name)}:{port}/proxy/defragment"))
        except KubeError as err:
            problem = f"gpuscheduler in pod {name} cannot be queried: {err}"
            continue
        if page is None:
            problem = f"pod {name} does not answer as gpuscheduler of this version does"
            continue
        pages.append(page)
    if not pages:
        raise KubeError(problem)
    # Those that do not lead say so as a problem.
    return min(pages, key=lambda page: (page.running is None, page.problem != ""))


def _running(pod: Mapping[str, Any]) -> str | None:
    status = mapping(pod.get("status"))
    if status.get("phase") != "Running":
        return None
    return text(mapping(pod.get("metadata")).get("name"))


def _page(answer: str) -> MovesPage | None:
    try:
        return read_moves_page(json.loads(answer))
    except (ValueError, RecursionError):
        return None
