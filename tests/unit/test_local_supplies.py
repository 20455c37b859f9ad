"""The programs and images of a local cluster: what is made beside what."""

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from tidegate_localcluster import supplies
from tidegate_localcluster.cluster import ClusterOptions
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.images import ImageArchive

WAIT_S = 10.0

Report = Callable[[str], None]


class RecordingBuilder:
    """An image builder that records its calls; the first waits until the programs are being built."""

    def __init__(self, programs_begun: threading.Event) -> None:
        self.calls: list[list[str]] = []
        self.begun = threading.Event()
        self.without: set[str] = set()
        self._programs_begun = programs_begun

    def ensure_tools(self, names: Iterable[str], progress: Report) -> None:
        assert not self.calls
        self.calls.append(["tools"])

    def ensure(self, names: Iterable[str], progress: Report) -> Mapping[str, ImageArchive]:
        selected = list(names)
        self.calls.append(selected)
        self.begun.set()
        assert self._programs_begun.wait(WAIT_S)
        progress("building images")
        if self.without & set(selected):
            raise LocalClusterError("no mirror")
        return {name: ImageArchive(f"tidegate.local/{name}:1", Path(name)) for name in selected}


class RecordingBinaries:
    """Programs that are there as soon as the builder has begun."""

    failure: LocalClusterError | None = None

    def __init__(self, builder: RecordingBuilder, begun: threading.Event) -> None:
        self.names: list[str] = []
        self._builder = builder
        self._begun = begun

    def ensure(self, names: Iterable[str], progress: Report) -> Mapping[str, Path]:
        self.names = list(names)
        assert self._builder.begun.wait(WAIT_S)
        self._begun.set()
        if self.failure is not None:
            raise self.failure
        return {name: Path("/bin", name) for name in self.names}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[RecordingBuilder, RecordingBinaries]:
    begun = threading.Event()
    builder = RecordingBuilder(begun)
    binaries = RecordingBinaries(builder, begun)

    def give_builder(home: Path, source_root: Path) -> RecordingBuilder:
        return builder

    def give_binaries(home: Path) -> RecordingBinaries:
        return binaries

    monkeypatch.setattr(supplies, "ImageBuilder", give_builder)
    monkeypatch.setattr(supplies, "Binaries", give_binaries)
    return builder, binaries


def test_images_without_programs_are_built_beside_the_programs(
    parts: tuple[RecordingBuilder, RecordingBinaries], tmp_path: Path
) -> None:
    builder, binaries = parts
    found = supplies.find_supplies(tmp_path, ClusterOptions(), ["operator"], lambda line: None, ["helm"])

    assert builder.calls == [["tools"], ["operator"], ["pause", "coredns"], ["prometheus"]]
    assert {"pause", "coredns", "helm"} <= set(binaries.names)
    assert not {"pause", "coredns", "helm"} & set(found.binaries)
    assert set(found.images) == {"operator", "pause", "coredns", "prometheus"}


def test_prometheus_alone_may_be_missing(
    parts: tuple[RecordingBuilder, RecordingBinaries], tmp_path: Path
) -> None:
    builder, _ = parts
    builder.without = {"prometheus"}
    lines: list[str] = []
    found = supplies.find_supplies(tmp_path, ClusterOptions(), ["operator"], lines.append)
    assert "prometheus" not in found.images
    assert "going on without prometheus: no mirror" in lines

    builder.without, builder.calls = {"operator"}, []
    with pytest.raises(LocalClusterError, match="no mirror"):
        supplies.find_supplies(tmp_path, ClusterOptions(), ["operator"], lines.append)


def test_the_failure_of_a_program_is_what_the_user_reads(
    parts: tuple[RecordingBuilder, RecordingBinaries], tmp_path: Path
) -> None:
    builder, binaries = parts
    binaries.failure = LocalClusterError("no way to get etcd")
    with pytest.raises(LocalClusterError, match="no way to get etcd"):
        supplies.find_supplies(tmp_path, ClusterOptions(), ["operator"], lambda line: None)
    assert builder.calls == [["tools"], ["operator"]]


def test_an_unknown_image_is_refused_before_anything_is_built(
    parts: tuple[RecordingBuilder, RecordingBinaries], tmp_path: Path
) -> None:
    builder, binaries = parts
    with pytest.raises(LocalClusterError, match="no image 'operatr'; there are operator"):
        supplies.find_supplies(tmp_path, ClusterOptions(), ["operatr"], lambda line: None)
    assert (builder.calls, binaries.names) == ([], [])
