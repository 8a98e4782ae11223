"""A program that uses CUDA through the stand-in daemon, and no GPU.

    python -S -E standin/mps/cuda.py [work]

It makes a context through the daemon at CUDA_MPS_PIPE_DIRECTORY and prints the last call and its result, as the
agent's probe does. It hangs where a real client would. With `work`, it then has work on the GPU until it is killed.
"""

import os
import socket
import sys
from pathlib import Path

PACKET = 65536
NO_DAEMON = "error 805"


class CudaClient:
    """A client of the daemon at `pipes`.

    Args:
        pipes: CUDA_MPS_PIPE_DIRECTORY.
        pid: PID that the daemon shows; this process's own by default.
        patience_s: how long an answer may take; None: forever.
    """

    def __init__(self, pipes: Path, pid: int | None = None, patience_s: float | None = None) -> None:
        self.pid = os.getpid() if pid is None else pid
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(patience_s)
        try:
            self._socket.connect(str(pipes / "control"))
            self.answer = self._ask(f"client {self.pid}")
        except (FileNotFoundError, ConnectionError):
            self.answer = NO_DAEMON
        except TimeoutError:
            self.answer = "hangs"

    def work(self) -> None:
        """Begin work on the GPU."""
        self._ask("work")

    def wait(self) -> None:
        """Wait until the daemon ends this client."""
        while self._socket.recv(PACKET):
            pass

    def end(self) -> None:
        """End, as a process that is killed does."""
        self._socket.close()

    def _ask(self, text: str) -> str:
        self._socket.send(text.encode())
        return self._socket.recv(PACKET).decode()


def main(arguments: list[str]) -> int:
    """The command."""
    client = CudaClient(Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")))
    if client.answer == "served" and arguments == ["work"]:
        client.work()
    code = 0 if client.answer == "served" else int(client.answer.split()[1])
    print(f"cuDevicePrimaryCtxRetain {code}", flush=True)
    if arguments == ["work"]:
        client.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
