"""The command lines and configuration files of the components."""

import json
from dataclasses import dataclass
from pathlib import Path

from standin.ports import free_port
from tests.e2e.build import IMAGES

from .host import CONTAINERD_STATE
from .manifests import NODE_NAME, PAUSE_IMAGE
from .numa import shown, two_nodes
from .pki import AGENT, NODE_USER, Pki

# The address of the service `kubernetes`, and the API server really listens there: all of 127/8 is this machine, so
# that clients in pods (which have the host's network) reach it without kube-proxy.
API_ADDRESS = "127.96.0.1"
API_PORT = 443
_SERVICES = "127.96.0.0/16"
NO_POLICY = "none"


@dataclass(frozen=True)
class KubeletKind:
    """Kubelets that have the same settings are one component, which is started and ended many times."""

    version: str
    topology_policy: str
    pod_cgroups: bool
    feature_gates: tuple[str, ...] = ()
    """Those that are on, of the gates that are off by default."""

    @property
    def name(self) -> str:
        """Of its configuration and its log."""
        words = [self.version, self.topology_policy]
        if self.pod_cgroups:
            words.append("cgroups")
        return "-".join([*words, *self.feature_gates])


@dataclass(frozen=True)
class ComponentSettings:
    """Where the parts of one cluster find each other."""

    bin: Path
    workdir: Path
    pki: Pki
    etcd_port: int
    etcd_peer_port: int
    kubelet_port: int
    kubelet_health_port: int
    cgroup_root: str
    """For the pods of kubelets that make a control group for each."""

    @classmethod
    def choose(cls, bin_dir: Path, workdir: Path, pki: Pki, cgroup_root: str) -> "ComponentSettings":
        return cls(bin_dir, workdir, pki, free_port(), free_port(), free_port(), free_port(), cgroup_root)

    @property
    def images(self) -> Path:
        return self.bin / IMAGES

    @property
    def containerd_socket(self) -> Path:
        return CONTAINERD_STATE / "containerd.sock"

    @property
    def pod_logs(self) -> Path:
        return self.workdir / "logs" / "pods"

    @property
    def _volume_plugins(self) -> Path:
        return self.workdir / "volume-plugins"

    @property
    def audit_log(self) -> Path:
        return self.workdir / "logs" / "audit.log"

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    def etcd(self) -> list[str]:
        peer = f"http://127.0.0.1:{self.etcd_peer_port}"
        return [
            str(self.bin / "etcd"),
            f"--data-dir={self.workdir / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # The data is thrown away anyway.
            "--unsafe-no-fsync",
        ]

    def apiserver(self) -> list[str]:
        pki = self.pki.directory
        return [
            str(self.bin / "kube-apiserver"),
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={API_ADDRESS}",
            f"--advertise-address={API_ADDRESS}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={_SERVICES}",
            # Refuses loopback addresses otherwise; there is no second server to find.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={pki / 'server.crt'}",
            f"--tls-private-key-file={pki / 'server.key'}",
            f"--token-auth-file={self.pki.token_file}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.pki.service_account_key}",
            f"--service-account-signing-key-file={self.pki.service_account_key}",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={self._audit_policy()}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",
            # A stopped server has nothing to drain here.
            "--shutdown-delay-duration=0s",
        ]

    def _audit_policy(self) -> Path:
        """What the agent asks for, and when kubelet begins to watch its pods."""
        node = {"users": [NODE_USER], "verbs": ["watch"], "resources": [{"group": "", "resources": ["pods"]}]}
        recorded = ({"users": [AGENT]}, {"userGroups": ["system:serviceaccounts"]}, node)
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"} | rule for rule in recorded] + [{"level": "None"}],
        }
        path = self.workdir / "audit-policy.json"
        path.write_text(json.dumps(policy, indent=2))
        return path

    def scheduler(self) -> list[str]:
        return [
            str(self.bin / "kube-scheduler"),
            f"--kubeconfig={self.pki.kubeconfig('system:kube-scheduler')}",
            *self._private_server(),
        ]

    def controller_manager(self) -> list[str]:
        return [
            str(self.bin / "kube-controller-manager"),
            f"--kubeconfig={self.pki.kubeconfig('system:kube-controller-manager')}",
            *self._private_server(),
            "--controllers=*,-nodeipam",
            f"--service-account-private-key-file={self.pki.service_account_key}",
            f"--root-ca-file={self.pki.ca}",
            f"--flex-volume-plugin-dir={self._volume_plugins}",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        ]

    def _private_server(self) -> list[str]:
        return [
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.workdir / 'certificates'}",
        ]

    def kubelet(self, kind: KubeletKind) -> list[str]:
        """With a policy that has to do with NUMA nodes, the machine seems to have two of them."""
        command = [
            str(self.bin / f"kubelet-{kind.version}"),
            f"--config={self._kubelet_config(kind)}",
            f"--kubeconfig={self.pki.kubeconfig(NODE_USER)}",
            f"--hostname-override={NODE_NAME}",
            "--v=2",
        ]
        return command if kind.topology_policy == NO_POLICY else shown(two_nodes(self.workdir / "numa"), command)

    def _kubelet_config(self, kind: KubeletKind) -> Path:
        config: dict[str, object] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self.kubelet_port,
            "healthzPort": self.kubelet_health_port,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.containerd_socket}",
            "nodeStatusUpdateFrequency": "1s",
            "maxPods": 250,
            "podLogsDir": str(self.pod_logs),
            "volumePluginDir": str(self._volume_plugins),
            # Without groups for pods, kubelet leaves the machine's control groups alone, and containers start sooner.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": kind.pod_cgroups,
            "enforceNodeAllocatable": [],
            "evictionHard": {},
            # Images stay on a machine whose disk is nearly full: nothing could pull them again.
            "imageGCHighThresholdPercent": 100,
            "failSwapOn": False,
            "resolvConf": "",
            "makeIPTablesUtilChains": False,
            # A negative score needs CAP_SYS_RESOURCE, which containers that run tests often lack.
            "oomScoreAdj": 0,
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "eventRecordQPS": 0,
            "topologyManagerPolicy": kind.topology_policy,
        }
        if kind.pod_cgroups:
            config["cgroupRoot"] = self.cgroup_root
        if kind.version != "1.30":
            config["failCgroupV1"] = False
        if kind.feature_gates:
            config["featureGates"] = dict.fromkeys(kind.feature_gates, True)
        path = self.workdir / f"kubelet-{kind.name}.json"
        path.write_text(json.dumps(config, indent=2))
        return path

    def containerd(self) -> list[str]:
        cni = self.workdir / "cni"
        cni.mkdir(exist_ok=True)
        plugins = [{"type": "loopback"}]
        network = {"cniVersion": "1.0.0", "name": "loopback", "plugins": plugins}
        (cni / "10-loopback.conflist").write_text(json.dumps(network))
        config = self.workdir / "containerd.toml"
        config.write_text(
            f"""\
version = 3
root = "{self.workdir / "containerd"}"
state = "{CONTAINERD_STATE}"
imports = []
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.image-verifier.v1.bindir"]

[grpc]
address = "{self.containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{self.workdir / "opt"}"

[plugins."io.containerd.shim.v1.manager"]
socket_dir = "{CONTAINERD_STATE / "s"}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{cni}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
Root = "{CONTAINERD_STATE / "runc"}"
"""
        )
        return [str(self.bin / "containerd"), f"--config={config}"]
