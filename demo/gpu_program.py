"""A program that takes GPU memory by the GiB until the driver refuses: `python -m demo.gpu_program SOCKET UUID`.

It begins when its standard input ends, prints what it sees and what it got, and keeps it until it is ended.
"""

import json
import socket
import sys
import time

GIB = 1 << 30


def main(path: str, uuid: str) -> None:
    """Take what there is."""
    sys.stdin.read()
    with socket.socket(socket.AF_UNIX) as device:
        device.connect(path)
        lines = device.makefile("r")

        def ask(**request: object) -> dict[str, int]:
            device.sendall(json.dumps({"gpu": uuid, **request}).encode() + b"\n")
            return dict(json.loads(lines.readline()))

        seen = ask(info=True)["total"] / GIB
        taken = 0
        while ask(alloc=GIB)["ok"]:
            taken += 1
        print(f"sees a GPU of {seen:.0f} GiB, got {taken} GiB, then CUDA_ERROR_OUT_OF_MEMORY", flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
