"""Programs in environments that somebody else made: an answer or one sentence, and never a trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LONG = "/x" * 3000
ENVIRONMENTS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "a locale that is not there": {"LC_ALL": "xx_YY.UTF-9", "LANG": "zz"},
    "no home": {"HOME": ""},
    "a home that is a device": {"HOME": "/dev/null"},
    "a home with a long name": {"HOME": LONG},
    "a kubeconfig with a long name": {"KUBECONFIG": LONG},
    "a kubeconfig that is a directory": {"KUBECONFIG": "/"},
    "a kubeconfig that is not text": {"KUBECONFIG": sys.executable},
    "kubeconfigs of which none is there": {"KUBECONFIG": ":/absent::/dev/null/x"},
    "an address of an agent that is none": {"GPUAGENT_URL": "http://["},
    "an address with a long host": {"GPUAGENT_URL": f"http://{'a' * 300}.invalid"},
    "an address with an odd port": {"GPUAGENT_URL": "http://127.0.0.1:99999"},
    "an address of a file": {"GPUAGENT_URL": "file:///etc/passwd"},
    "proxies": {"HTTP_PROXY": "socks5://x:1", "http_proxy": "[::1", "NO_PROXY": ",,*,"},
    "certificates": {"SSL_CERT_FILE": "/dev/null", "SSL_CERT_DIR": LONG},
    "a terminal": {"TERM": "\x1b[31m", "COLUMNS": "-3", "LINES": "x", "NO_COLOR": ""},
    "settings": {"GPUAGENT_MODE": "\udcff", "GPUAGENT_MEMORY_UNIT": "9" * 5000, "GPUAGENT_HTTP_ADDRESS": "::::"},
    "a service account in part": {"KUBERNETES_SERVICE_HOST": "[", "KUBERNETES_SERVICE_PORT": "tcp://x"},
}
STATUS, TOPOLOGY = "gpuagent status", "gpuagent topology --simulate dgx-a100"
DRY_RUN = "gpuagent run --dry-run --simulate t4 --node-name n"
SCHEDULER, INSTALLER, PLUGIN = "gpuscheduler run", "gpuisolation preflight --root {root}", "inspectcgpu"
READ_BY = {
    "ascii": (TOPOLOGY, INSTALLER, DRY_RUN),
    "a locale that is not there": (TOPOLOGY, INSTALLER),
    "a terminal": (TOPOLOGY, INSTALLER),
    "an address of an agent that is none": (STATUS,),
    "an address with a long host": (STATUS,),
    "an address with an odd port": (STATUS,),
    "an address of a file": (STATUS,),
    "proxies": (STATUS,),
    "certificates": (SCHEDULER, PLUGIN),
    "settings": (DRY_RUN,),
    "a service account in part": (SCHEDULER, PLUGIN),
}
"""The programs that read what an environment sets; the plugin reads those of kubeconfigs."""
CASES = [(name, command) for name in ENVIRONMENTS for command in READ_BY.get(name, (PLUGIN,))]


@pytest.mark.parametrize(("name", "command"), CASES)
def test_no_environment_makes_a_trace(tmp_path, name, command):
    program, *arguments = command.format(root=tmp_path).split()
    paths = os.pathsep.join(map(str, (ROOT, *(ROOT / folder for folder in ("installer", "kubectl", "scheduler")))))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": paths, **ENVIRONMENTS[name]}
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments], capture_output=True, env=env, cwd=ROOT, timeout=300, check=False
    )
    said = done.stderr.decode(errors="replace")
    assert done.returncode in (0, 1, 2, 3), said
    assert "Traceback" not in said
    assert "Error:" not in said
