"""Getting the pinned wheel: what is cached is used, what is wrong is named."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from movielens_din import archive


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> bytes:
    content = b"not really a wheel"
    monkeypatch.setattr(archive, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    return content


def a_downloader(
    monkeypatch: pytest.MonkeyPatch, content: bytes | None, *, said: str = "", status: int = 0
) -> None:
    """One way to download, which leaves `content` behind."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        if content is not None:
            (folder / archive.WHEEL).write_bytes(content)
        return subprocess.CompletedProcess(command, status, "", said)

    monkeypatch.setattr(archive, "downloaders", lambda: (archive.Downloader("a pip", ("pip",)),))
    monkeypatch.setattr(archive.subprocess, "run", run)


def test_a_cached_wheel_needs_no_network(
    tmp_path: Path, pinned: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_downloader(monkeypatch, None, status=1)
    target = tmp_path / "downloads" / archive.WHEEL
    target.parent.mkdir()
    target.write_bytes(pinned)
    assert archive.fetch_wheel(tmp_path) == target


def test_a_damaged_cached_wheel_is_fetched_again(
    tmp_path: Path, pinned: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_downloader(monkeypatch, pinned)
    target = tmp_path / "downloads" / archive.WHEEL
    target.parent.mkdir()
    target.write_bytes(pinned[:5])
    assert archive.fetch_wheel(tmp_path).read_bytes() == pinned


def test_another_checksum_is_refused_and_nothing_stays(
    tmp_path: Path, pinned: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    del pinned
    a_downloader(monkeypatch, b"something else")
    with pytest.raises(archive.ArchiveError, match=r"a pip: sha256 is .* pinned is"):
        archive.fetch_wheel(tmp_path)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_failed_download_repeats_what_was_said_and_the_way_out(
    tmp_path: Path, pinned: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    del pinned
    a_downloader(monkeypatch, None, said="WARNING: x\nERROR: No matching distribution", status=1)
    with pytest.raises(archive.ArchiveError, match=r"No matching distribution.*Put recbole") as caught:
        archive.fetch_wheel(tmp_path)
    assert str(tmp_path) in str(caught.value)
