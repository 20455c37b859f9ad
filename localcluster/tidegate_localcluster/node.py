"""Runs a real node: containerd and kubelet in a mount namespace of their own, on the usual paths of a node.

Each node sees its own /var/lib/kubelet, /var/lib/containerd, /run/containerd and /etc/cni/net.d, so that several
kubelets run on one machine with the same settings.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tidegate_localcluster import network
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.network import NodeNetwork
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.state import Image

CNI_PLUGINS = ("ptp", "host-local", "portmap")
NODE_PROGRAMS = (
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "kubelet",
    "kube-proxy",
    "nft",
    *CNI_PLUGINS,
)
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
NAMESPACE_FOLDER = Path("/run/tidegate/nodes")
TOOLS_FOLDER = Path("/run/tidegate/bin")
"""A folder with links to the binaries: containerd finds its shim and the CNI plugins by folder."""
UNUSED_PLUGINS = (
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of one node."""

    name: str
    network: NodeNetwork
    cgroup: str
    """The parent of its pods' cgroups, relative to the hierarchy's root."""
    data: Path
    """The folder of images, containers and volumes; must be on a real file system."""
    logs: Path
    server: str
    """URL of the API server."""
    pause_image: str


def render_containerd_configuration(pause_image: str) -> str:
    """Return containerd's settings (TOML, version 3), which are the same for every node."""
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps(UNUSED_PLUGINS)}

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause_image}"

[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE a lowered oom_score_adj is refused and no sandbox starts.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{TOOLS_FOLDER}"]
    conf_dir = "/etc/cni/net.d"
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{TOOLS_FOLDER}/runc"
      SystemdCgroup = false

[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "127.0.0.1"
"""


def make_kubelet_configuration(settings: NodeSettings, pki: Pki) -> Mapping[str, object]:
    """Return the kubelet's settings; the API server authorises its callers, and none is anonymous."""
    serving = pki.issue_kubelet_server(settings.name, [settings.network.address])
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.network.address,
        "port": network.KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": settings.network.address,
        "healthzPort": 10248,
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "30s"},
            "x509": {"clientCAFile": str(pki.authority.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.cgroup}",
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # Nothing outside can be reached, so pods need no other name server than ours.
        "resolvConf": "",
        "clusterDomain": network.CLUSTER_DOMAIN,
        "clusterDNS": [network.DNS_ADDRESS],
        "makeIPTablesUtilChains": False,
        "maxPods": 200,
        "nodeStatusUpdateFrequency": "2s",
        # Of a status that has not changed: the default is the line above. Whether the node lives, its lease says.
        "nodeStatusReportFrequency": "1m",
        "syncFrequency": "5s",
        # Images are loaded, not pulled, so the kubelet must remove none, whatever else fills the machine's disk.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "shutdownGracePeriod": "0s",
        # Everything runs on one machine: several pods may start at once.
        "serializeImagePulls": False,
    }


class Node:
    """The processes of one node; start them from a thread that lives as long as they should (see ChildProcess)."""

    def __init__(self, settings: NodeSettings, pki: Pki) -> None:
        """Describe the node; start nothing yet."""
        self.settings = settings
        self._pki = pki
        self._namespace = NAMESPACE_FOLDER / settings.name
        self.containerd = self._make_process(
            "containerd", [TOOLS_FOLDER / "containerd", "--config", "/etc/containerd/config.toml"]
        )
        self.kubelet = self._make_process("kubelet", self._kubelet_command())

    def prepare(self) -> None:
        """Create the mount namespace and write the settings into it. Raises LocalClusterError."""
        make_node_namespace(self._namespace, self._mounted_folders())
        data, settings = self.settings.data, self.settings
        (data / "containerd-settings/config.toml").write_text(
            render_containerd_configuration(settings.pause_image)
        )
        (data / "cni/tidegate.conflist").write_text(network.render_cni_configuration(settings.network))
        configuration = yaml.safe_dump(dict(make_kubelet_configuration(settings, self._pki)), sort_keys=False)
        (data / "kubelet-settings/config.yaml").write_text(configuration)
        self._pki.write_kubeconfig(
            data / "kubelet-settings/kubeconfig",
            server=settings.server,
            credentials=self._pki.issue_kubelet_client(settings.name),
        )

    @property
    def is_runtime_ready(self) -> bool:
        """Return whether containerd answers."""
        return self._run_ctr("version", check=False).returncode == 0

    def load_images(self, images: Iterable[Image]) -> None:
        """Load the images that the node does not have yet."""
        present = set(self._run_ctr("images", "list", "--quiet").stdout.split())
        for image in images:
            if image.ref not in present:
                self._run_ctr("images", "import", "--local", "--index-name", image.ref, str(image.archive))

    def _run_ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = self._wrap_command(
            [TOOLS_FOLDER / "ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", *arguments]
        )
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if check and result.returncode != 0:
            raise LocalClusterError(
                f"ctr {' '.join(arguments)} on {self.settings.name}: {result.stderr.strip()}"
            )
        return result

    def _make_process(self, name: str, command: Iterable[str | Path]) -> ChildProcess:
        part = f"{name}-{self.settings.name}"
        return ChildProcess(
            part,
            self._wrap_command(command),
            log=self.settings.logs / f"{part}.log",
            environment={"PATH": f"{TOOLS_FOLDER}:/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def _wrap_command(self, command: Iterable[str | Path]) -> list[str]:
        return ["nsenter", f"--mount={self._namespace}", "--", *map(str, command)]

    def _mounted_folders(self) -> Mapping[str, Path]:
        data = self.settings.data
        return {
            "/var/lib/kubelet": data / "kubelet",
            "/var/lib/containerd": data / "containerd",
            "/var/log/pods": data / "pod-logs",
            "/var/log/containers": data / "container-logs",
            "/etc/cni/net.d": data / "cni",
            "/etc/containerd": data / "containerd-settings",
            "/etc/kubernetes": data / "kubelet-settings",
        }

    def _kubelet_command(self) -> list[str | Path]:
        return [
            TOOLS_FOLDER / "kubelet",
            "--config=/etc/kubernetes/config.yaml",
            "--kubeconfig=/etc/kubernetes/kubeconfig",
            "--root-dir=/var/lib/kubelet",
            f"--hostname-override={self.settings.name}",
            f"--node-ip={self.settings.network.address}",
            "--node-labels=tidegate.io/local=true,node.kubernetes.io/instance-type=local",
        ]


def make_node_namespace(namespace: Path, folders: Mapping[str, Path]) -> None:
    """Create the mount namespace of a node, with `folders` mounted on their paths; it lives as long as we do.

    `namespace` becomes a link to our descriptor of it. A bind mount (`unshare --mount=FILE`) would need no process,
    but Linux 6.18 sometimes refuses it: it takes namespaces of another processor for older ones.
    """
    script = ["set -e"]
    for path in ("/run/containerd", "/run/cni-ipam-state"):
        Path(path).mkdir(parents=True, exist_ok=True)
        script.append(f"mount -t tmpfs -o mode=0755 tidegate {path}")
    for path, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        script.append(f"mount --bind '{folder}' '{path}'")
    script += ["mount --make-rshared /", "echo made", "read -r _ || true"]
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    made = holder.stdout is not None and holder.stdout.readline() == "made\n"
    descriptor = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC) if made else None
    _, errors = holder.communicate()
    if descriptor is None:
        raise LocalClusterError(f"the mount namespace {namespace.name} could not be made: {errors.strip()}")
    namespace.parent.mkdir(parents=True, exist_ok=True)
    namespace.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")


def node_name(index: int) -> str:
    """Return the name of real node `index`, counted from 0."""
    return f"node-{index}"


def link_tools(binaries: Mapping[str, Path]) -> None:
    """Link every binary into one folder inside, under its own name."""
    TOOLS_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, path in binaries.items():
        link = TOOLS_FOLDER / name
        link.unlink(missing_ok=True)
        link.symlink_to(path)


def make_kube_proxy_process(pki: Pki, *, server: str, node: str, logs: Path) -> ChildProcess:
    """Return the kube-proxy process; one serves all nodes, since they share a network namespace."""
    kubeconfig = pki.write_kubeconfig(
        Path("/run/tidegate/kube-proxy.kubeconfig"), server=server, credentials=pki.issue_kube_proxy()
    )
    return ChildProcess(
        "kube-proxy",
        [
            TOOLS_FOLDER / "kube-proxy",
            "--proxy-mode=nftables",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node}",
            f"--cluster-cidr={network.POD_NETWORK}",
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
            # Zero leaves the machine's connection tracking limits alone.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ],
        log=logs / "kube-proxy.log",
        environment={"PATH": f"{TOOLS_FOLDER}:/usr/sbin:/usr/bin:/sbin:/bin"},
    )
