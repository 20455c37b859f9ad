"""A local cluster's first process, as it is looked for while it starts: processes that become another program have no name for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_localcluster import namespaces
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.namespaces import MISSED_POLLS, ClusterNamespaces

FIRST = 4711


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, and nobody is waited for."""
    monkeypatch.setattr(namespaces, "start_detached", lambda *_, **__: None)
    monkeypatch.setattr(namespaces, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(namespaces, "_read_pid_inside", lambda pid: 1 if pid == FIRST else None)


def seen(monkeypatch: pytest.MonkeyPatch, looks: Iterator[tuple[int, ...]]) -> None:
    monkeypatch.setattr(namespaces, "find_supervisors", lambda _: next(looks, ()))


def started(folder: Path) -> ClusterNamespaces:
    log = folder / "supervisor.log"
    log.write_text("unshare: no permission\n")
    return ClusterNamespaces.start(["supervisor"], folder, log=log, descriptors=())


def test_one_that_is_missed_for_a_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Each time it is looked for twice: as the first process, and as any.
    missed = [()] * 2 * (MISSED_POLLS - 1)
    seen(monkeypatch, iter([*missed, (), (12,), *missed, (FIRST,)]))
    assert started(tmp_path).pid == FIRST


def test_one_that_has_ended_is_told_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen(monkeypatch, iter([(12,), (12,)]))
    with pytest.raises(LocalClusterError, match=r"could not be made.*\n.*no permission"):
        started(tmp_path)
