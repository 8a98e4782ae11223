"""The agent as it runs in a pod: `python -m bench.in_pod DIR run …` takes DIR for the service account's directory."""

import sys
from pathlib import Path

from gpuagent.__main__ import main
from gpuagent.kube.api import access

if __name__ == "__main__":
    access.SERVICE_ACCOUNT = Path(sys.argv.pop(1))
    main()
