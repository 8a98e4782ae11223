"""`python -m bench.agent.slow_clients PORT COUNT`: clients of an HTTP port that never end their request.

They send a byte now and then, and connect again where the server closes them. One line on stdout says that all are
connected. A line on stdin ends them all at once; then a second line on stdout says how often they connected.
"""

import selectors
import socket
import sys
import time

DRIP_S = 2.0
BEGUN = b"GET /metrics HTTP/1.1\r\nX-Slow: "


class Clients:
    """All of them, in one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = selectors.DefaultSelector()
        self.connections = 0

    def connect(self) -> None:
        """One more."""
        client = socket.create_connection(("127.0.0.1", self._port), timeout=5)
        client.sendall(BEGUN)
        self._open.register(client, selectors.EVENT_READ)
        self.connections += 1

    def replace_closed(self, timeout_s: float) -> None:
        """Connect again for each that the server closed or answered."""
        for key, _ in self._open.select(timeout_s):
            self._close(key.fileobj)
            self.connect()

    def drip(self) -> None:
        """A byte of each; those that are closed show it when they are read."""
        for client in self._sockets():
            try:
                client.sendall(b"x")
            except OSError:
                continue

    def end(self) -> None:
        """Close all."""
        for client in self._sockets():
            self._close(client)

    def _sockets(self) -> list[socket.socket]:
        return [one.fileobj for one in self._open.get_map().values() if isinstance(one.fileobj, socket.socket)]

    def _close(self, client: object) -> None:
        if isinstance(client, socket.socket):
            self._open.unregister(client)
            client.close()


def main() -> None:
    """Attack until the process is stopped."""
    port, count = (int(argument) for argument in sys.argv[1:])
    clients = Clients(port)
    for _ in range(count):
        clients.connect()
    print("connected", flush=True)
    told, dripped = selectors.DefaultSelector(), time.monotonic()
    told.register(sys.stdin, selectors.EVENT_READ)
    while not told.select(0):
        clients.replace_closed(0.05)
        if time.monotonic() - dripped > DRIP_S:
            dripped = time.monotonic()
            clients.drip()
    clients.end()
    print(clients.connections, flush=True)


if __name__ == "__main__":
    main()
