"""`--why`: why one pod waits."""

import argparse
from collections.abc import Mapping

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.client import Client
from inspectcgpu.commands.printing import print_answer
from inspectcgpu.fetch.choose_cluster import own_namespace
from inspectcgpu.fetch.why import read_why
from inspectcgpu.show.why import document, why


def show_why(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the sentence about the pod."""
    namespace = options.namespace or own_namespace(options.kubeconfig, options.context, environ)
    answer = read_why(client, PodName(namespace, options.why))
    print_answer(options.output, document(answer), why(answer))
    return 0
