"""Addresses inside a cluster's own network namespace, and the CNI configuration of its nodes.

Every cluster has the same addresses, since they are not visible outside its namespace.
There is no bridge: each pod has its own pair of virtual interfaces and a route to it, so that no packet between two
pods bypasses kube-proxy's address translation, whether or not br_netfilter is loaded.
"""

import ipaddress
import json
import subprocess
from dataclasses import dataclass

NODE_NETWORK = ipaddress.IPv4Network("10.87.0.0/24")
POD_NETWORK = ipaddress.IPv4Network("10.88.0.0/16")
SERVICE_NETWORK = ipaddress.IPv4Network("10.96.0.0/16")
DNS_ADDRESS = str(SERVICE_NETWORK[10])
CLUSTER_DOMAIN = "cluster.local"
APISERVER_PORT = 6443
KUBELET_PORT = 10250
MAX_NODES = 16


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The address and the pod range of one real node."""

    address: str
    pods: str


def assign_node_network(index: int) -> NodeNetwork:
    """Return the address and the pod range of node `index`, counted from 0; raises ValueError past MAX_NODES."""
    if not 0 <= index < MAX_NODES:
        raise ValueError(f"node {index} does not exist: a local cluster has at most {MAX_NODES} nodes")
    pods = ipaddress.IPv4Network((int(POD_NETWORK.network_address) + (index << 8), 24))
    return NodeNetwork(address=str(NODE_NETWORK[index + 1]), pods=str(pods))


def render_cni_configuration(node: NodeNetwork) -> str:
    """Return the CNI network list of one node, as JSON.

    There is no route out of the namespace, so a packet to the outside fails at once with 'no route to host'.
    """
    pods = ipaddress.IPv4Network(node.pods)
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "ranges": [[{"subnet": node.pods, "gateway": str(pods[1])}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins: list[dict[str, object]] = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}, "backend": "nftables", "snat": True},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "tidegate", "plugins": plugins}, indent=2)


def configure_namespace(nodes: int) -> None:
    """Bring up the loopback interface of the current namespace with one address per node.

    Node addresses are on `lo`, since all nodes share the namespace. Raises CalledProcessError.
    """
    _run_ip("link", "set", "lo", "up")
    for index in range(nodes):
        _run_ip("address", "add", f"{assign_node_network(index).address}/32", "dev", "lo")
    # No packet takes this route, since kube-proxy translates first; but without a route connect() fails before that.
    _run_ip("route", "add", str(SERVICE_NETWORK), "dev", "lo", "src", assign_node_network(0).address)


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
