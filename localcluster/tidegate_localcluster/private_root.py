"""The file system that a cluster sees instead of the machine's.

It is an overlay whose upper layer is memory: everything may be written (/var/lib/kubelet, /run, /models) and nothing
of it reaches the machine.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate_localcluster.commands import run_checked

PRIVATE_TREES = ("/proc", "/sys", "/dev", "/run")
WRITTEN_TREES = ("/etc", "/models", "/opt", "/tmp", "/var", "/var/lib", "/var/log")  # noqa: S108
"""Where a node writes; when one is a mount of its own it gets an overlay of its own."""
SYSCTLS: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What the kubelet would set for the whole machine; inside it finds files that hold these values already."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo, as far as we need it."""

    point: str
    kind: str


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Mount points and file system types of a /proc/<pid>/mountinfo, in its order."""
    found: list[Mount] = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        found.append(Mount(point, after.split()[0]))
    return tuple(found)


def mounts_to_carry(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """The mounts of the machine that the private root needs beside `/`, parents first."""
    latest = {mount.point: mount for mount in mounts if mount.point != "/" and not _is_private(mount.point)}
    return tuple(sorted(latest.values(), key=lambda mount: len(Path(mount.point).parts)))


def _is_private(point: str) -> bool:
    return any(point == tree or point.startswith(f"{tree}/") for tree in PRIVATE_TREES)


@dataclass(frozen=True, slots=True)
class PrivateRoot:
    """The file system that a cluster sees instead of the machine's.

    `scratch` is an empty folder on the machine to hang it on. `binds` maps paths inside to folders outside that
    must be real: seen and written by both sides, and fit to carry containerd's own overlays.
    """

    scratch: Path
    binds: Mapping[str, Path]

    def enter(self) -> None:
        """Make it the root of the current mount and pid namespaces. Raises LocalClusterError naming the step."""
        carried = mounts_to_carry(parse_mountinfo(Path("/proc/self/mountinfo").read_text()))
        root = self.scratch / "root"
        mount("--make-rprivate", "/")
        self.scratch.mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", "mode=0755", "tidegate", self.scratch)
        self._overlay("/", "system", root)
        for found in carried:
            self._carry(found, root)
        self._mount_kernel_trees(root)
        for path, folder in self.binds.items():
            _bind(folder, Path(f"{root}{path}"))
        self._pivot(root)
        _shield_sysctls()
        mount("--make-rshared", "/")

    def _overlay(self, lower: str, name: str, target: Path) -> None:
        upper, work = self.scratch / name / "upper", self.scratch / name / "work"
        for folder in (upper, work, target):
            folder.mkdir(parents=True, exist_ok=True)
        # The memory layer's own mode would become that of the merged folder.
        upper.chmod(Path(lower).stat().st_mode & 0o7777)
        mount("-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay", target)

    def _carry(self, found: Mount, root: Path) -> None:
        """Show a mount of the machine inside: folders that we write to as overlays, the rest as they are."""
        source, target = Path(found.point), Path(f"{root}{found.point}")
        if not source.exists() or source == self.scratch:
            return
        if source.is_dir() and found.point in WRITTEN_TREES:
            self._overlay(found.point, found.point.strip("/").replace("/", "-"), target)
        else:
            _bind(source, target)

    def _mount_kernel_trees(self, root: Path) -> None:
        mount("-t", "proc", "proc", root / "proc")
        # A sysfs of our own: /sys/class/net shows the interfaces of the namespace it was mounted in.
        mount("-t", "sysfs", "sysfs", root / "sys")
        mount("--rbind", "/sys/fs/cgroup", root / "sys/fs/cgroup")
        mount("--rbind", "/dev", root / "dev")
        mount("-t", "tmpfs", "-o", "mode=0755", "tidegate", root / "run")

    def _pivot(self, root: Path) -> None:
        old = root / "run" / "old-root"
        old.mkdir()
        run_checked("pivot_root", root, old)
        os.chdir("/")
        run_checked("umount", "--lazy", "/run/old-root")
        Path("/run/old-root").rmdir()


def _shield_sysctls() -> None:
    folder = Path("/run/tidegate/sysctl")
    for key, value in SYSCTLS.items():
        target = Path("/proc/sys") / key
        if not target.exists():
            continue
        stand_in = folder / key
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(f"{value}\n")
        mount("--bind", stand_in, target)


def _bind(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)


def mount(*arguments: str | Path) -> None:
    """Run mount(8); raises LocalClusterError with its words."""
    run_checked("mount", *arguments)
