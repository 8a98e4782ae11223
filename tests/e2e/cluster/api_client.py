"""The API server over HTTP and JSON, with the standard library only."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from .manifests import Json
from .waiting import WAIT_S

_PATCH_APPLY = "application/apply-patch+yaml"


class ApiError(RuntimeError):
    """The API server refused something that a test takes for granted."""

    def __init__(self, method: str, path: str, status: int, answer: Json) -> None:
        super().__init__(f"{method} {path}: {status} {answer.get('message', answer)}")
        self.status = status


class ApiClient:
    """One request or watch per connection, so nothing is left behind when the server is paused or restarted."""

    def __init__(self, server: str, ca: Path, token: str) -> None:
        address = urlsplit(server)
        assert address.hostname is not None
        self._address = (address.hostname, address.port)
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._token = token
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        token: str | None = None,
        timeout: float = WAIT_S,
    ) -> tuple[int, Json]:
        """The status and the answer; text that is not JSON comes as ``{"text": ...}``."""
        with closing(self._connection(timeout)) as connection:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, self._headers(token) | {"Content-Type": content_type})
            response = connection.getresponse()
            text = response.read().decode()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"text": text}
        return response.status, answer

    def expect(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: float = WAIT_S,
    ) -> Json:
        """As `request`, but anything else than success is an error."""
        status, answer = self.request(method, path, body, content_type, timeout=timeout)
        if status >= http.client.BAD_REQUEST:
            raise ApiError(method, path, status, answer)
        return answer

    def served(self) -> set[tuple[str, str, str]]:
        """Group, version and plural of all kinds that clients find now."""
        accept = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
        with closing(self._connection(WAIT_S)) as connection:
            connection.request("GET", "/apis", headers=self._headers(None) | accept)
            groups = json.loads(connection.getresponse().read())["items"]
        found = set()
        for group in groups:
            # A version is stale while the server that has it is asked again.
            current = [version for version in group["versions"] if version.get("freshness") == "Current"]
            for version in current:
                for resource in version["resources"]:
                    found.add((group["metadata"]["name"], version["version"], resource["resource"]))
        return found

    def create_all(self, path: str, manifests: Iterable[Json]) -> list[Json]:
        """Create objects of one collection, one after the other over one connection."""
        created = []
        headers = self._headers(None) | {"Content-Type": "application/json"}
        with closing(self._connection(timeout=WAIT_S)) as connection:
            for manifest in manifests:
                connection.request("POST", path, json.dumps(manifest).encode(), headers)
                response = connection.getresponse()
                answer = json.loads(response.read())
                if response.status >= http.client.BAD_REQUEST:
                    raise ApiError("POST", path, response.status, answer)
                created.append(answer)
        return created

    def apply(self, manifest: Json) -> Json:
        """Create or update by server-side apply."""
        path = f"{self.path_of(manifest)}?fieldManager=e2e&force=true"
        return self.expect("PATCH", path, manifest, _PATCH_APPLY)

    def path_of(self, manifest: Json) -> str:
        """Where an object lives, found through the API's own list of its kinds."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            for resource in self.expect("GET", base)["resources"]:
                if "/" not in resource["name"]:
                    self._plurals[version, resource["kind"]] = resource["name"], resource["namespaced"]
        plural, namespaced = self._plurals[version, kind]
        namespace = manifest["metadata"].get("namespace", "default")
        scope = f"/namespaces/{namespace}" if namespaced else ""
        return f"{base}{scope}/{plural}/{quote(manifest['metadata']['name'])}"

    def wait(self, path: str, name: str, wanted: Callable[[Json | None], bool], timeout: float = WAIT_S) -> Json | None:
        """Watch one object of a collection until it is as wanted; None stands for one that does not exist.

        A server that hangs or is away in the meantime only costs time.
        """
        deadline = time.monotonic() + timeout
        last: Json | None = None
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                for last in self._states(path, name, remaining):
                    if wanted(last):
                        return last
                    if time.monotonic() >= deadline:
                        break
            except (OSError, http.client.HTTPException, ApiError):
                time.sleep(0.05)
        raise TimeoutError(f"{path}/{name} was not as wanted within {timeout:g} s; last seen: {json.dumps(last)}")

    def _states(self, path: str, name: str, timeout: float) -> Iterator[Json | None]:
        """The object as it is, then as it becomes."""
        selector = {"fieldSelector": f"metadata.name={name}"}
        listed = self.expect("GET", f"{path}?{urlencode(selector)}", timeout=timeout)
        yield next(iter(listed["items"]), None)
        query = selector | {"resourceVersion": listed["metadata"]["resourceVersion"]}
        for event in self.watch(path, query, timeout):
            if event["type"] == "ERROR":
                return
            yield None if event["type"] == "DELETED" else event["object"]

    def watch(self, path: str, query: Mapping[str, str], timeout: float) -> Iterator[Json]:
        """The events of a watch as they come, until the server ends it or is silent for `timeout` seconds."""
        with closing(self._connection(timeout)) as connection:
            connection.request("GET", f"{path}?{urlencode({'watch': '1', **query})}", headers=self._headers(None))
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ApiError("WATCH", path, response.status, json.loads(response.read()))
            while line := response.readline():
                yield json.loads(line)

    def _connection(self, timeout: float) -> http.client.HTTPSConnection:
        host, port = self._address
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)

    def _headers(self, token: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {token or self._token}", "Accept": "application/json"}
