"""The page of the cluster over a simulated fleet, served as gpuscheduler serves it.

`python -m demo.served_fleet NODES` prints its address, and serves until its stdin closes.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from demo.fleet import fleet
from gpuagent.domain.fleet.agent_pods import AgentPod, AgentPods
from gpuagent.domain.fleet.held_use import HeldUse
from gpuscheduler.garbage import keep_collections_short
from gpuscheduler.pages.fleet_page import FleetPages
from gpuscheduler.pages.namespace_use import NamespaceUse
from gpuscheduler.pages.node_view import Cluster
from gpuscheduler.pages.paced_reading import PacedReading, RecentReading
from gpuscheduler.pages.page_server import page_server

PROBLEMS_URL = "https://docs.example.org/problems"


@dataclass(frozen=True, slots=True)
class _Started:
    """What is read on the event loop, and how that ends."""

    fleet: PacedReading[tuple[bytes, ...]]
    pods: PacedReading[tuple[bytes, ...]]
    end: Callable[[], object]


@contextmanager
def served_fleet(
    cluster: Cluster,
    use: bytes,
    agents: AgentPods,
    problems_url: str = PROBLEMS_URL,
) -> Iterator[str]:
    """The address of the page. `use` is the page /use; see `FleetPages` for the others."""
    pages = FleetPages(cluster, problems_url, agents)
    future: Future[_Started] = Future()
    # The scheduler's event loop is in another thread than its pages.
    with ThreadPoolExecutor(1) as pool, ExitStack() as endings:
        pool.submit(asyncio.run, _read(pages, future))
        started = future.result()
        endings.callback(started.end)
        server = page_server(
            ("127.0.0.1", 0),
            metrics=lambda: b"",
            usage=lambda: (b"{}",),
            fleet=RecentReading(started.fleet.get).get,
            pods=RecentReading(started.pods.get).get,
            use=lambda: use,
            defragment=lambda: b"{}",
            alive=lambda: None,
            problem=lambda: "",
        )
        server.start()
        endings.callback(server.stop)
        yield f"http://127.0.0.1:{server.port}/"


def no_use(cluster: Cluster) -> bytes:
    """The page /use of a scheduler that asks no agents."""
    return asyncio.run(NamespaceUse(cluster, AgentPods(""), _ask_none).page())


async def _ask_none(_: AgentPod) -> list[HeldUse]:
    return []


async def _read(pages: FleetPages, started: "Future[_Started]") -> None:
    """Serve the readings of both pages until the end."""
    fleet_reading = PacedReading(pages.fleet)
    pods_reading = PacedReading(pages.pods)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    readings = [asyncio.create_task(reading.run()) for reading in (fleet_reading, pods_reading)]
    started.set_result(_Started(fleet_reading, pods_reading, end=lambda: loop.call_soon_threadsafe(ended.set)))
    await ended.wait()
    for reading in readings:
        reading.cancel()


def main(nodes: int) -> None:
    """Serve a fleet of so many nodes until stdin closes."""
    cluster = fleet(nodes)
    keep_collections_short()
    with served_fleet(cluster, no_use(cluster), AgentPods("kube-system")) as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
