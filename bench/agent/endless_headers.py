"""`python -m bench.agent.endless_headers PORT MIB many|one`: headers without end for an HTTP port.

It sends so many MiB of headers, many small ones or one large one, and connects again where the server closes. A line on
stdout says that it begins, and a second one how often it connected.
"""

import socket
import sys

BEGUN = b"GET /metrics HTTP/1.1\r\nX-Endless: "
MANY, ONE = b"a\r\nX-Endless: " * 4_096, b"a" * 65_536


def main() -> None:
    """Send all of it."""
    port, mib, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    data = ONE if kind == "one" else MANY
    left = mib << 20
    connections = 0
    print("begun", flush=True)
    while left > 0:
        connections += 1
        left = _send(port, data, left)
    print(connections, flush=True)


def _send(port: int, data: bytes, left: int) -> int:
    """Send on one connection until the server closes it; how many bytes are left."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        try:
            client.sendall(BEGUN)
            while left > 0:
                left -= len(data)
                client.sendall(data)
        except OSError:
            pass
    return left


if __name__ == "__main__":
    main()
