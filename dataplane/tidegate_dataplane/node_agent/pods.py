"""Lookup of the pod of a process: the path of its cgroup contains the pod's uid."""

import re
from pathlib import Path

_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


def pod_of(proc: Path, pid: int) -> str:
    """Return the uid of the pod that runs process `pid`; empty if it belongs to none, or has ended."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""
    match = _POD.search(text)
    # The systemd driver of the kubelet writes _ for -, since - has a meaning in a slice's name.
    return match.group(1).replace("_", "-") if match else ""
