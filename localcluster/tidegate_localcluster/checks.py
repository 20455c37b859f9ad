"""Checks, before anything is started, that the machine can run a whole cluster, and names a remedy if not."""

import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidegate_localcluster.cgroups import CgroupTree
from tidegate_localcluster.errors import LocalClusterError

TOOLS = ("unshare", "setsid", "nsenter", "ip", "mount", "umount", "pivot_root", "setpriv", "env", "sh")
TOOL_PACKAGES = {"ip": "iproute2", "env": "coreutils", "sh": "dash"}
CAPABILITIES: Mapping[str, int] = {
    "CHOWN": 0,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_ADMIN": 12,
    "SYS_CHROOT": 18,
    "SYS_ADMIN": 21,
    "MKNOD": 27,
    "SETFCAP": 31,
}
"""The bit of each capability in linux/capability.h."""
MIN_DISK_BYTES = 5 * 1024**3
MIN_MEMORY_BYTES = 2 * 1024**3
GIB = 1024**3
NLM_F_REQUEST = 1
NETLINK_NETFILTER = 12
NFT_SUBSYSTEM = 10 << 8
NFT_NEW_GENERATION, NFT_GET_GENERATION = NFT_SUBSYSTEM | 15, NFT_SUBSYSTEM | 16
NETLINK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class MachineProblem:
    """Something that the machine lacks, and how to get it."""

    missing: str
    remedy: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{self.missing}: {self.remedy}"


class MachineUnfitError(LocalClusterError):
    """The machine cannot run a whole cluster; `problems` has the reasons and remedies."""

    def __init__(self, problems: Sequence[MachineProblem]) -> None:
        """Put all problems into one message."""
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(
            f"this machine cannot run a whole cluster:\n{lines}\n"
            "(`tidegate local up --control-plane-only` has none of these requirements, and `make demo-fleet` shows "
            "a thousand models on it; or use a cluster of your own)"
        )


def check_machine(state_dir: Path) -> None:
    """Raise MachineUnfitError with everything that is missing, not only the first."""
    problems = find_problems(state_dir)
    if problems:
        raise MachineUnfitError(problems)


def find_problems(state_dir: Path) -> tuple[MachineProblem, ...]:
    """Return everything that this machine lacks for a cluster in `state_dir`."""
    problems = [*check_user(os.geteuid(), Path("/proc/self/status").read_text()), *check_tools(shutil.which)]
    problems += check_cgroups(CgroupTree.detect())
    folder = find_existing_ancestor(state_dir)
    problems += check_sizes(shutil.disk_usage(folder).free, folder, psutil.virtual_memory().total)
    # The remaining checks create namespaces and mounts, which needs what the first checks found.
    return tuple(problems) if problems else (*check_network(), *check_overlay(folder))


def check_user(user: int, status: str) -> tuple[MachineProblem, ...]:
    """Check for root and its capabilities; `status` is the text of /proc/self/status."""
    if user != 0:
        return (MachineProblem("not root", "run it with sudo"),)
    effective = next(
        (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0
    )
    missing = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if not missing:
        return ()
    flags = " ".join(f"--cap-add {name}" for name in missing)
    return (
        MachineProblem(
            f"capabilities missing: {', '.join(missing)}",
            f"in a container start it with {flags} (or --privileged)",
        ),
    )


def check_tools(which: Callable[[str], str | None]) -> tuple[MachineProblem, ...]:
    """Check for the system's programs that create namespaces."""
    missing = [tool for tool in TOOLS if which(tool) is None]
    if not missing:
        return ()
    packages = sorted({TOOL_PACKAGES.get(tool, "util-linux") for tool in missing})
    return (
        MachineProblem(f"programs missing: {', '.join(missing)}", f"apt-get install {' '.join(packages)}"),
    )


def check_cgroups(tree: CgroupTree | None) -> tuple[MachineProblem, ...]:
    """Check for the controllers that the kubelet needs."""
    if tree is None:
        return (MachineProblem("no cgroups", "mount -t cgroup2 none /sys/fs/cgroup"),)
    if not tree.missing_controllers:
        return ()
    missing = ", ".join(tree.missing_controllers)
    cure = (
        "boot with cgroup_enable=memory cgroup_enable=cpuset, or let your container have its own cgroup tree"
    )
    return (MachineProblem(f"cgroup {tree.version} controllers missing: {missing}", cure),)


def check_sizes(free_disk_bytes: int, folder: Path, memory_bytes: int) -> tuple[MachineProblem, ...]:
    """Check the disk and the memory for images and for the cluster's own programs."""
    problems: list[MachineProblem] = []
    if free_disk_bytes < MIN_DISK_BYTES:
        problems.append(
            MachineProblem(
                f"{free_disk_bytes / GIB:.1f} GiB free in {folder}, {MIN_DISK_BYTES / GIB:.0f} GiB are needed",
                "free some, or name another folder with --state-dir",
            )
        )
    if memory_bytes < MIN_MEMORY_BYTES:
        problems.append(
            MachineProblem(
                f"{memory_bytes / GIB:.1f} GiB of memory, {MIN_MEMORY_BYTES / GIB:.0f} GiB are needed",
                "use a larger machine",
            )
        )
    return tuple(problems)


def check_network() -> tuple[MachineProblem, ...]:
    """Check virtual interfaces and nftables, in a network namespace that ends with the command."""
    script = "ip link set lo up && ip link add tidegate0 type veth peer name tidegate1"
    error = _try_in_namespace(script, "--net")
    problems: list[MachineProblem] = []
    if error is not None:
        problems.append(MachineProblem(f"virtual interfaces cannot be made ({error})", "modprobe veth"))
    if not has_nftables():
        cure = "modprobe nf_tables nft_ct nft_nat nft_masq nft_fib, or use a kernel with CONFIG_NF_TABLES"
        problems.append(MachineProblem("the kernel has no nftables", cure))
    return tuple(problems)


def has_nftables() -> bool:
    """Return whether the kernel's nf_tables answers a read of its generation, which changes nothing."""
    request = struct.pack("=IHHIIBBH", 20, NFT_GET_GENERATION, NLM_F_REQUEST, 0, 0, 0, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
            netlink.settimeout(NETLINK_TIMEOUT_S)
            netlink.send(request)
            answer = netlink.recv(4096)
    except OSError:
        return False
    return bool(struct.unpack_from("=H", answer, 4)[0] == NFT_NEW_GENERATION)


def check_overlay(folder: Path) -> tuple[MachineProblem, ...]:
    """Check that the folder can be the upper layer of an overlay, as containerd needs, in a mount namespace."""
    script = (
        'set -e; d=$(mktemp -d "$1/tidegate-check.XXXXXX"); trap \'rm -rf "$d"\' EXIT; '
        'mkdir "$d/lower" "$d/upper" "$d/work" "$d/merged"; '
        'mount -t overlay -o "lowerdir=$d/lower,upperdir=$d/upper,workdir=$d/work" overlay "$d/merged"; '
        'umount "$d/merged"'
    )
    error = _try_in_namespace(script, "--mount", str(folder))
    if error is None:
        return ()
    return (
        MachineProblem(
            f"{folder} cannot carry an overlay ({error})",
            "modprobe overlay, or name a --state-dir on ext4, xfs, btrfs or tmpfs",
        ),
    )


def _try_in_namespace(script: str, namespace: str, *arguments: str) -> str | None:
    command = ["unshare", namespace, "sh", "-c", script, "sh", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else result.stderr.strip().replace("\n", " ") or "no reason given"


def find_existing_ancestor(path: Path) -> Path:
    """Return the nearest existing folder at or above `path`."""
    folder = path.resolve()
    while not folder.is_dir():
        folder = folder.parent
    return folder
