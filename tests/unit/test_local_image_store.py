"""Linked copies of a store of unpacked images."""

import os
import shutil
from pathlib import Path

import pytest

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_store import ImageStore
from tidegate_localcluster.state import Image


def a_store(folder: Path, *refs: str) -> ImageStore:
    """A store that holds these images, so that nothing needs to be unpacked."""
    layer = folder / "current/containerd/snapshots/1/fs"
    layer.mkdir(parents=True)
    (layer / "python3").write_text("a program")
    (folder / "current/containerd/meta.db").write_text("a database")
    names = ", ".join(f'"{ref.partition(":")[0]}": "{ref}"' for ref in refs)
    (folder / "current/images.json").write_text(f"{{{names}}}")
    return ImageStore(folder, {})


def images(*refs: str) -> dict[str, Image]:
    return {ref.partition(":")[0]: Image(ref=ref, archive=Path("/nowhere.tar")) for ref in refs}


def test_a_node_gets_links_to_files_and_copies_of_databases(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", "pause:1", "operator:2")
    store.seed_node(images("pause:1"), tmp_path / "node/containerd", print)
    ours, theirs = tmp_path / "node/containerd", tmp_path / "store/current/containerd"
    assert os.path.samefile(ours / "snapshots/1/fs/python3", theirs / "snapshots/1/fs/python3")
    (ours / "meta.db").write_text("changed")
    assert (theirs / "meta.db").read_text() == "a database"
    assert sorted(path.name for path in ours.iterdir()) == ["meta.db", "snapshots"]


def test_removing_a_node_leaves_the_store_whole(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", "pause:1")
    store.seed_node(images("pause:1"), tmp_path / "node/containerd", print)
    shutil.rmtree(tmp_path / "node")
    assert (tmp_path / "store/current/containerd/snapshots/1/fs/python3").read_text() == "a program"


def test_an_unusable_program_is_said_and_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    a_store(tmp_path / "store", "pause:1")
    store = ImageStore(tmp_path / "store", {"containerd": Path("/bin/false"), "ctr": Path("/bin/false")})
    with pytest.raises(LocalClusterError, match="containerd-store ended with exit status 1"):
        store.seed_node(images("pause:2"), tmp_path / "node/containerd", print)
    assert not (tmp_path / "node/containerd").exists()
    assert (tmp_path / "store/current/containerd/snapshots/1/fs/python3").read_text() == "a program"


def test_a_folder_on_another_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = a_store(tmp_path / "store", "pause:1")
    with pytest.raises(LocalClusterError, match=r"no hard link from .*Invalid cross-device link"):
        store.seed_node(images("pause:1"), tmp_path / "node/containerd", print)
