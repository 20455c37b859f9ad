"""What the programs of a node are told."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidegate_localcluster import network
from tidegate_localcluster.network import assign_node_network, render_cni_configuration
from tidegate_localcluster.node import (
    NodeSettings,
    make_kubelet_configuration,
    render_containerd_configuration,
)
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.private_root import Mount, parse_mountinfo, select_mounts


@pytest.fixture
def settings(tmp_path: Path) -> NodeSettings:
    return NodeSettings(
        name="node-1",
        network=assign_node_network(1),
        cgroup="tidegate-x/node-1",
        data=tmp_path,
        logs=tmp_path,
        server="https://10.87.0.1:6443",
        pause_image="tidegate.local/pause:1",
    )


def test_every_node_has_its_own_address_and_pods() -> None:
    nodes = [assign_node_network(index) for index in range(network.MAX_NODES)]
    assert (nodes[0].address, nodes[0].pods) == ("10.87.0.1", "10.88.0.0/24")
    assert (nodes[1].address, nodes[1].pods) == ("10.87.0.2", "10.88.1.0/24")
    assert len({node.address for node in nodes}) == len({node.pods for node in nodes}) == network.MAX_NODES


def test_there_is_no_seventeenth_node() -> None:
    with pytest.raises(ValueError, match="at most 16 nodes"):
        assign_node_network(16)


def test_pods_of_a_node_get_addresses_of_its_range() -> None:
    plugins = json.loads(render_cni_configuration(assign_node_network(1)))["plugins"]
    assert plugins[0]["ipam"]["ranges"] == [[{"subnet": "10.88.1.0/24", "gateway": "10.88.1.1"}]]
    assert [plugin["type"] for plugin in plugins] == ["ptp", "portmap"]


def test_the_service_addresses_agree() -> None:
    assert network.DNS_ADDRESS == "10.96.0.10"


def test_the_kubelet_knows_nobody_without_a_certificate_or_token(
    settings: NodeSettings, tmp_path: Path
) -> None:
    configuration: Any = make_kubelet_configuration(settings, Pki(tmp_path / "pki"))
    assert configuration["authentication"]["anonymous"] == {"enabled": False}
    assert configuration["authentication"]["webhook"]["enabled"] is True
    assert configuration["authorization"] == {"mode": "Webhook"}
    assert configuration["readOnlyPort"] == 0
    assert configuration["address"] == "10.87.0.2"
    assert configuration["cgroupRoot"] == "/tidegate-x/node-1"
    assert Path(configuration["tlsCertFile"]).exists()


def test_containerd_pins_our_pause_image() -> None:
    configuration = tomllib.loads(render_containerd_configuration("tidegate.local/pause:1"))
    images = configuration["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == "tidegate.local/pause:1"
    assert configuration["plugins"]["io.containerd.cri.v1.runtime"]["restrict_oom_score_adj"] is True


MOUNTINFO = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:20 / /proc rw - proc proc rw
23 21 0:21 / /sys rw - sysfs sysfs rw
24 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup rw
25 21 0:23 / /run rw master:2 - tmpfs tmpfs rw
26 21 254:1 / /var rw - ext4 /dev/vdb rw
27 26 254:2 / /var/lib\\040data rw - xfs /dev/vdc rw
28 21 254:2 / /home rw - xfs /dev/vdc rw
29 21 0:24 / /running rw - tmpfs tmpfs rw
"""


def test_mountinfo_is_read_with_its_escapes() -> None:
    mounts = parse_mountinfo(MOUNTINFO)
    assert mounts[0] == Mount("/", "ext4")
    assert mounts[6] == Mount("/var/lib data", "xfs")


def test_what_the_kernel_adds_is_not_carried_into_the_private_root() -> None:
    carried = [mount.point for mount in select_mounts(parse_mountinfo(MOUNTINFO))]
    assert carried == ["/var", "/home", "/running", "/var/lib data"]
