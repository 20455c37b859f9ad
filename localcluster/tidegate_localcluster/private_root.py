"""Replaces the machine's file system, inside a cluster, by a private one.

It is an overlay whose upper layer is in memory: the cluster may write anywhere (/var/lib/kubelet, /run, /models) and
nothing of it reaches the machine.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate_localcluster.commands import run_checked

PRIVATE_TREES = ("/proc", "/sys", "/dev", "/run")
WRITTEN_TREES = ("/etc", "/models", "/opt", "/tmp", "/var", "/var/lib", "/var/log")  # noqa: S108
"""The folders into which a node writes; one that is a mount of its own gets an overlay of its own."""
SYSCTLS: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""The sysctls that the kubelet would set for the whole machine; inside, files shadow them with these values."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount point and the file system type of one line of mountinfo."""

    point: str
    kind: str


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse the mounts of a /proc/<pid>/mountinfo, in its order."""
    mounts: list[Mount] = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        mounts.append(Mount(point, after.split()[0]))
    return tuple(mounts)


def select_mounts(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Return the mounts of the machine that the private root needs beside `/`, parents first."""
    latest = {mount.point: mount for mount in mounts if mount.point != "/" and not _is_private(mount.point)}
    return tuple(sorted(latest.values(), key=lambda mount: len(Path(mount.point).parts)))


def _is_private(point: str) -> bool:
    return any(point == tree or point.startswith(f"{tree}/") for tree in PRIVATE_TREES)


@dataclass(frozen=True, slots=True)
class PrivateRoot:
    """The file system that a cluster sees instead of the machine's.

    It is mounted on `scratch`, an empty folder on the machine. `binds` maps paths inside to folders of the machine
    that both sides read and write, and on which containerd can mount overlays.
    """

    scratch: Path
    binds: Mapping[str, Path]

    def enter(self) -> None:
        """Make it the root of the current mount and pid namespaces. Raises LocalClusterError with the step."""
        mounts = select_mounts(parse_mountinfo(Path("/proc/self/mountinfo").read_text()))
        root = self.scratch / "root"
        run_mount("--make-rprivate", "/")
        self.scratch.mkdir(parents=True, exist_ok=True)
        run_mount("-t", "tmpfs", "-o", "mode=0755", "tidegate", self.scratch)
        self._mount_overlay("/", "system", root)
        for machine_mount in mounts:
            self._carry_mount(machine_mount, root)
        self._mount_kernel_trees(root)
        for path, folder in self.binds.items():
            _bind_mount(folder, Path(f"{root}{path}"))
        self._pivot_root(root)
        _shadow_sysctls()
        run_mount("--make-rshared", "/")

    def _mount_overlay(self, lower: str, name: str, target: Path) -> None:
        upper, work = self.scratch / name / "upper", self.scratch / name / "work"
        for folder in (upper, work, target):
            folder.mkdir(parents=True, exist_ok=True)
        # The merged folder gets the mode of the upper layer.
        upper.chmod(Path(lower).stat().st_mode & 0o7777)
        run_mount(
            "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay", target
        )

    def _carry_mount(self, machine_mount: Mount, root: Path) -> None:
        """Mount a mount of the machine inside: WRITTEN_TREES as overlays, all others as bind mounts."""
        point = machine_mount.point
        source, target = Path(point), Path(f"{root}{point}")
        if not source.exists() or source == self.scratch:
            return
        if source.is_dir() and point in WRITTEN_TREES:
            self._mount_overlay(point, point.strip("/").replace("/", "-"), target)
        else:
            _bind_mount(source, target)

    def _mount_kernel_trees(self, root: Path) -> None:
        run_mount("-t", "proc", "proc", root / "proc")
        # A sysfs of our own: /sys/class/net shows the interfaces of the namespace it was mounted in.
        run_mount("-t", "sysfs", "sysfs", root / "sys")
        run_mount("--rbind", "/sys/fs/cgroup", root / "sys/fs/cgroup")
        run_mount("--rbind", "/dev", root / "dev")
        run_mount("-t", "tmpfs", "-o", "mode=0755", "tidegate", root / "run")

    def _pivot_root(self, root: Path) -> None:
        old = root / "run" / "old-root"
        old.mkdir()
        run_checked("pivot_root", root, old)
        os.chdir("/")
        run_checked("umount", "--lazy", "/run/old-root")
        Path("/run/old-root").rmdir()


def _shadow_sysctls() -> None:
    folder = Path("/run/tidegate/sysctl")
    for key, value in SYSCTLS.items():
        target = Path("/proc/sys") / key
        if not target.exists():
            continue
        shadow = folder / key
        shadow.parent.mkdir(parents=True, exist_ok=True)
        shadow.write_text(f"{value}\n")
        run_mount("--bind", shadow, target)


def _bind_mount(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    run_mount("--bind", source, target)


def run_mount(*arguments: str | Path) -> None:
    """Run mount(8); raises LocalClusterError with its message."""
    run_checked("mount", *arguments)
