"""In place of the CUDA programs of `bench.mps_check`: it gets what the stand-in of MPS lets it have."""

import json
import os
import sys
import time
from pathlib import Path

from standin.mps.client import effective_caps, server_limit, server_percentage
from standin.mps.cuda import CudaClient

CONTEXT_MIB = 300
MOST_MIB = 16 * 1024


def main(what: str) -> None:
    pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    client = CudaClient(pipes)
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    limit = server_limit(pipes)
    cap = effective_caps(os.environ, [gpu], {} if limit is None else {gpu: limit})[gpu]
    percentage = min(float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")), server_percentage(pipes))
    result: dict[str, object] = {"kernels_per_s": 10 * percentage, "multiprocessors": 132}
    if what == "hold":
        print("holds", flush=True)
        time.sleep(0.2)
    if what.startswith("fill"):
        result = {"taken_mib": MOST_MIB if cap is None else cap - CONTEXT_MIB}
    if what == "fault":
        result = {"error": "cuCtxSynchronize failed with CUDA error 700"}
    print(json.dumps(result))
    client.end()


if __name__ == "__main__":
    main(sys.argv[1])
