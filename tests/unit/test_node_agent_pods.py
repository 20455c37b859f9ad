"""Whose a process is, from the cgroups that kubelets make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_dataplane.node_agent.process import find_pod

UID = "0b1c2d3e-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (f"0::/kubepods/burstable/pod{UID}/c0ffee\n", UID),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
            "cri-containerd-c0ffee.scope\n",
            UID,
        ),
        (f"12:memory:/kubepods/pod{UID}/c0ffee\n1:name=systemd:/kubepods/pod{UID}/c0ffee\n", UID),
        ("0::/system.slice/sshd.service\n", ""),
        ("", ""),
    ],
)
def test_pod_is_read_from_the_cgroup(tmp_path: Path, cgroup: str, pod: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(cgroup)
    assert find_pod(tmp_path, 7) == pod
    assert find_pod(tmp_path, 8) == ""
