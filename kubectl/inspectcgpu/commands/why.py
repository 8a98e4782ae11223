"""`--why`: why one pod waits, or the pods of a workload."""

import argparse
from collections.abc import Mapping

from gpuagent.domain.pods.pod import PodName
from gpuagent.kube.api.client import Client
from inspectcgpu.commands.printing import print_answer
from inspectcgpu.fetch.choose_cluster import own_namespace
from inspectcgpu.fetch.why import read_why, read_workload_why
from inspectcgpu.read.workload import Workload
from inspectcgpu.show.why import document, why


def show_why(client: Client, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the sentence about the pod, or about each pod of the workload."""
    namespace = options.namespace or own_namespace(options.kubeconfig, options.context, environ)
    asked: str | Workload = options.why
    if isinstance(asked, Workload):
        of_workload = read_workload_why(client, namespace, asked)
        print_answer(options.output, document(of_workload), why(of_workload))
    else:
        of_pod = read_why(client, PodName(namespace, asked))
        print_answer(options.output, document(of_pod), why(of_pod))
    return 0
