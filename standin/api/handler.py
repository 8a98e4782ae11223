"""HTTP side of the stand-in API server: paths, verbs, Status objects, and the watch stream."""

import json
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from standin.api import paging, proxying
from standin.api.objects import CLUSTER_WIDE, CUSTOM, GROUPS, KINDS, Json, Key, status
from standin.api.podrules import bound
from standin.api.refusal import Refusal
from standin.api.watch import WatchStream, label_selector, selector

if TYPE_CHECKING:
    from standin.api.server import ApiServer

_USER = "system:serviceaccount:kube-system:gpuagent"
_PATCHES = {"application/merge-patch+json": False, "application/strategic-merge-patch+json": True}
_IMPERSONATION = ("Impersonate-User", "Impersonate-Uid", "Impersonate-Group")
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
# The answers to kubectl's discovery calls, which come before all others.
_DISCOVERY: dict[str, Json] = {
    "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0-standin"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": name,
                "singularName": kind.lower(),
                "namespaced": name not in CLUSTER_WIDE,
                "kind": kind,
                "verbs": _VERBS,
            }
            for name, kind in KINDS.items()
            if name not in GROUPS
        ]
        + [{"name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]}],
    },
}


@dataclass(frozen=True, slots=True)
class Target:
    """The object or collection of a path; ``name`` is "" for a collection, ``group`` "" for the core group."""

    resource: str
    namespace: str
    name: str
    subresource: str
    group: str = ""

    @property
    def key(self) -> Key:
        return self.resource, self.namespace, self.name

    @property
    def spoken(self) -> str:
        """``nodes/status``, as RBAC writes it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet
    server: Any

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    @property
    def api(self) -> "ApiServer":
        owner: ApiServer = self.server.owner
        return owner

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        while not self.api.answering.wait(0.05):
            if self.server.ended:
                self.close_connection = True
                return
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.api.parameters.update(query)
        for name in _IMPERSONATION:
            if name in self.headers:
                self.api.impersonated.append((name, self.headers.get_all(name, [])))
        try:
            self._authenticate()
            if self.command == "GET" and url.path in _DISCOVERY:
                self._send(200, _DISCOVERY[url.path])
                return
            is_of_version = url.path.startswith("/apis/") and url.path.count("/") == len(("apis", "group", "version"))
            if self.command == "GET" and is_of_version:
                self._send(200, self._resources(url.path))
                return
            target = _target(url.path)
            self._check_installed(target)
            if target.subresource.startswith("proxy"):
                self._proxy(target)
                return
            watching = query.get("watch") in ("true", "1")
            verb = self._verb(target, watching=watching)
            while verb == "list" and (target.resource, bool(target.namespace)) in self.api.held:
                if self.server.ended:
                    self.close_connection = True
                    return
                time.sleep(0.02)
            self.api.requests[f"{verb} {target.spoken}"] += 1
            if (verb, target.spoken) in self.api.denied:
                raise _forbidden(verb, target)
            is_lost = self._is_lost(verb, target)
            if watching:
                self._watch(target, query)
                return
            answer = self._done(verb, target, query, _json(body))
            if is_lost:
                self.close_connection = True
            else:
                self._send(*answer)
        except Refusal as refusal:
            self._send(refusal.code, status(refusal))

    def _resources(self, path: str) -> Json:
        """The answer to a discovery call about a version of a group. Raises Refusal if none is installed."""
        if self.api.discovery_code:
            raise Refusal(self.api.discovery_code, "", "a fault that a test injected")
        resources = [{"name": name} for name in self.api.installed if path.startswith(f"/apis/{GROUPS[name]}/v")]
        if not resources:
            raise _no_resource()
        return {"kind": "APIResourceList", "resources": resources}

    def _check_installed(self, target: Target) -> None:
        """Raise Refusal 404 for a custom resource that is not installed."""
        if target.resource in CUSTOM.keys() - self.api.installed:
            raise _no_resource()

    def _is_lost(self, verb: str, target: Target) -> bool:
        """Whether a fault takes the answer away. Raises Refusal for another fault."""
        codes = self.api.failing.get((verb, target.spoken))
        code = codes.pop(0) if codes else None
        if code:
            raise Refusal(code, "", "a fault that a test injected")
        return code == 0

    def _authenticate(self) -> None:
        if self.api.token and self.headers.get("Authorization") != f"Bearer {self.api.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def _proxy(self, target: Target) -> None:
        spoken = f"{target.resource}/proxy"
        self.api.requests[f"get {spoken}"] += 1
        if ("get", spoken) in self.api.denied:
            raise _forbidden("get", Target(target.resource, target.namespace, target.name, "proxy"))
        answer = proxying.fetch(self.api.objects, target.key, target.subresource.removeprefix("proxy"))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _verb(self, target: Target, *, watching: bool) -> str:
        if self.command == "GET":
            return "watch" if watching else "get" if target.name else "list"
        return {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[self.command]

    def _done(self, verb: str, target: Target, query: dict[str, str], body: Json) -> tuple[int, Json]:
        objects = self.api.objects
        match verb:
            case "get":
                found = objects.get(target.key)
            case "list":
                found = self._list(target, query)
            case "create":
                return 201, self._created(target, body, dry_run=query.get("dryRun") == "All")
            case "patch":
                found = self._patch(target, body)
            case "update":
                found = objects.update(target.key, lambda _: body)
            case _:
                grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
                found = objects.delete(
                    target.key, grace_s=None if grace is None else int(grace), preconditions=body.get("preconditions")
                )
                if target.resource != "pods":
                    found = _gone(target, found)
        return 200, found

    def _list(self, target: Target, query: dict[str, str]) -> Json:
        objects = self.api.objects
        fields, labels = selector(query.get("fieldSelector", "")), label_selector(query.get("labelSelector", ""))
        page = paging.page(
            self.api.lists,
            objects,
            query,
            lambda: [item for item in self._all(target) if fields(item) and labels(item)],
            counted=not (query.get("fieldSelector") or query.get("labelSelector")),
        )
        return {
            "kind": f"{KINDS[target.resource]}List",
            "apiVersion": "v1",
            "metadata": page.metadata,
            "items": page.items,
        }

    def _all(self, target: Target) -> list[Json]:
        # As etcd has them: by namespace and name.
        found, _ = self.api.objects.all(target.resource, target.namespace)
        return sorted(found, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))

    def _patch(self, target: Target, body: Json) -> Json:
        kind = (self.headers.get("Content-Type") or "").partition(";")[0]
        if kind not in _PATCHES:
            raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {kind}")
        return self.api.objects.patch(target.key, target.subresource, body, strategic=_PATCHES[kind])

    def _create(self, target: Target, body: Json, *, dry_run: bool) -> Json:
        if target.resource == "pods":
            body["status"] = {"phase": "Pending"}
        if (body.get("metadata") or {}).get("namespace", target.namespace) != target.namespace:
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise Refusal(400, "BadRequest", text)
        if target.resource == "events":
            where = body.get("involvedObject", {}).get("namespace") or "default"
            if where != target.namespace:
                text = "does not match event.namespace"
                raise Refusal(
                    422, "Invalid", f'Event is invalid: involvedObject.namespace: Invalid value: "{where}": {text}'
                )
        return self.api.objects.create(target.resource, target.namespace or "default", body, dry_run=dry_run)

    def _created(self, target: Target, body: Json, *, dry_run: bool) -> Json:
        match target.spoken:
            case "pods/binding":
                return self._bind(target, body)
            case "pods/eviction":
                options = body.get("deleteOptions") or {}
                self.api.objects.delete(target.key, grace_s=None, preconditions=options.get("preconditions"))
                return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            case _:
                return self._create(target, body, dry_run=dry_run)

    def _bind(self, target: Target, body: Json) -> Json:
        self.api.objects.update(target.key, lambda pod: bound(pod, body))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _watch(self, target: Target, query: dict[str, str]) -> None:
        stream = WatchStream(self.api, self._chunk, target.resource, target.namespace, query)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self.api.watches.append(self.connection)
        try:
            stream.run()
            self._chunk(b"")
        except OSError:
            self.close_connection = True
        finally:
            self.api.watches.remove(self.connection)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, code: int, found: Json) -> None:
        data = json.dumps(found, separators=(",", ":")).encode()  # as Go writes it
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _target(path: str) -> Target:
    head, *parts = path.strip("/").split("/")
    group = parts.pop(0) if head == "apis" and parts else ""
    has_version = parts[:1] == ["v1"] or group in CUSTOM.values()
    if head not in ("api", "apis") or not has_version:
        raise _no_resource()
    parts = parts[1:]
    namespace = ""
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource, *more = [*parts, "", "", ""]
    if subresource == "proxy":
        subresource = "/".join(["proxy", *filter(None, more)])
    if resource not in KINDS or group != GROUPS.get(resource, ""):
        raise _no_resource()
    return Target(resource, namespace, name, subresource, group)


def _no_resource() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def _gone(target: Target, was: Json) -> Json:
    """Return the Status that answers a deletion that is complete; pods are answered with the object."""
    details = {"name": target.name, "kind": target.resource, "uid": was["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _json(body: bytes) -> Json:
    try:
        found = json.loads(body or b"{}")
    except ValueError as err:
        raise Refusal(400, "BadRequest", str(err)) from err
    if not isinstance(found, dict):
        raise Refusal(400, "BadRequest", "the body is no JSON object")
    return found


def _forbidden(verb: str, target: Target) -> Refusal:
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    named = f' "{target.name}"' if target.name else ""
    text = f'User "{_USER}" cannot {verb} resource "{target.spoken}" in API group "{target.group}" {where}'
    return Refusal(403, "Forbidden", f"{target.resource}{named} is forbidden: {text}")
