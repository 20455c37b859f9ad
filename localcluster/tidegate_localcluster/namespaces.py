"""Mount, network and pid namespaces of one cluster: entered, found again from outside, ended by one pid.

The root file system inside is an overlay whose upper layer is memory: everything may be written (/var/lib/kubelet,
/run, /models) and nothing of it reaches the machine.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from tidegate_localcluster.errors import LocalClusterError

SUPERVISOR_MODULE = "tidegate_localcluster.supervisor"
PRIVATE_TREES = ("/proc", "/sys", "/dev", "/run")
WRITTEN_TREES = ("/etc", "/models", "/opt", "/tmp", "/var", "/var/lib", "/var/log")  # noqa: S108
"""Where a node writes; when one is a mount of its own it gets an overlay of its own."""
KILL_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.05
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
        _checked("pivot_root", root, old)
        os.chdir("/")
        _checked("umount", "--lazy", "/run/old-root")
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
    _checked("mount", *arguments)


def run_as_init(work: Callable[[], int]) -> int:
    """Do `work` in a child and reap every orphan meanwhile, as process 1 must; returns the child's exit status.

    In the child it returns what `work` returns. SIGTERM is passed on.
    """
    child = os.fork()
    if child == 0:
        return work()

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) & 0xFF


def _checked(*command: str | Path) -> None:
    run_checked(list(map(str, command)))


def run_checked(command: Sequence[str], *, text: str | None = None) -> str:
    """Run a short command with `text` as its input; raises LocalClusterError with what it said."""
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise LocalClusterError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


@dataclass(frozen=True, slots=True)
class Namespace:
    """The namespaces of a running cluster as the machine sees them, by the host pid of their first process."""

    pid: int

    @classmethod
    def start(
        cls, command: Sequence[str], state_dir: Path, *, log: Path, descriptors: Sequence[int]
    ) -> "Namespace":
        """Start `command`, the supervisor of `state_dir`, in new namespaces; `descriptors` stay open in it.

        Raises LocalClusterError with the end of the log when it ends at once.
        """
        unshare = [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
        ]
        with log.open("ab") as output:
            child = subprocess.Popen(
                [*unshare, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,
            )
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while child.poll() is None and time.monotonic() < deadline:
            if (namespace := cls.find(state_dir)) is not None:
                return namespace
            time.sleep(POLL_INTERVAL_S)
        raise LocalClusterError(f"the namespaces could not be made; see {log}:\n{log.read_text()[-2000:]}")

    @classmethod
    def find(cls, state_dir: Path) -> "Namespace | None":
        """The namespaces of the cluster in `state_dir`, recognised by the command line of their first process."""
        wanted = supervisor_command(state_dir)[1:]
        for process in psutil.process_iter(["cmdline", "pid"]):
            given = (process.info["cmdline"] or [])[1 : len(wanted) + 1]
            if given == wanted and _pid_inside(process.info["pid"]) == 1:
                return cls(process.info["pid"])
        return None

    def enter_command(self, command: Sequence[str], *, directory: Path | None = None) -> list[str]:
        """The command line that runs `command` inside, in `directory` if it exists there, else in `/`."""
        inside = Path(f"/proc/{self.pid}/root{directory}") if directory else None
        place = str(directory) if inside is not None and inside.is_dir() else "/"
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"]
        return [*enter, "env", f"--chdir={place}", *command]

    def processes(self) -> Mapping[int, int]:
        """Host process id by process id inside, for every process of the pid namespace."""
        try:
            ours = os.readlink(f"/proc/{self.pid}/ns/pid")
        except OSError:
            return {}
        found: dict[int, int] = {}
        for pid in psutil.pids():
            if _pid_namespace(pid) == ours and (inside := _pid_inside(pid)) is not None:
                found[inside] = pid
        return found

    def terminate(self) -> None:
        """Ask the supervisor to stop the parts in order and to end."""
        _signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End every process inside at once: the kernel does it when the first one dies."""
        _signal(self.pid, signal.SIGKILL)

    def wait_ended(self, timeout_s: float = KILL_TIMEOUT_S) -> bool:
        """Wait until the first process and with it all the others are gone; False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while psutil.pid_exists(self.pid) and not _is_zombie(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True


def supervisor_command(state_dir: Path) -> list[str]:
    """How the first process of the cluster in `state_dir` is called; also how it is found again."""
    return [sys.executable, "-m", SUPERVISOR_MODULE, str(state_dir)]


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _pid_inside(pid: int) -> int | None:
    """The innermost process id of host process `pid`; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
