"""Where programs are looked for, in which order, and what is said when there is none."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tidegate_localcluster.binaries import Binaries, SourceOption
from tidegate_localcluster.errors import BinaryUnavailableError
from tidegate_localcluster.programs import PROGRAMS, SCRATCH_PREFIX, Program
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.versions import read_pinned_version

ETCD = read_pinned_version("go.etcd.io/etcd/server/v3")


class Shelf:
    """A source that has some programs, as files in a folder, and remembers what it was asked for."""

    def __init__(self, folder: Path, has: Sequence[str] = (), broken: str | None = None) -> None:
        self.folder, self.has, self.broken = folder, has, broken
        self.asked: list[Sequence[str]] = []

    def program_path(self, program: Program) -> Path:
        return self.folder / program.name

    def provide(self, programs: Sequence[Program], progress: Progress) -> None:
        self.asked.append([program.name for program in programs])
        if self.broken is not None:
            raise BinaryUnavailableError(self.broken)
        for program in programs:
            if program.name in self.has:
                a_program(self.folder, program.name)


def a_program(folder: Path, name: str, says: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def silent(_: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def binaries(tmp_path: Path) -> Callable[..., Binaries]:
    def make(*ways: SourceOption, **environment: str) -> Binaries:
        return Binaries(tmp_path / "home", environment, ways)

    return make


@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        ({"TIDEGATE_BIN": "etcd Version: 0.1", "KUBEBUILDER_ASSETS": ETCD, "PATH": ETCD}, "TIDEGATE_BIN"),
        ({"KUBEBUILDER_ASSETS": f"etcd Version: {ETCD}", "PATH": ETCD}, "KUBEBUILDER_ASSETS"),
        ({"KUBEBUILDER_ASSETS": "etcd Version: 3.5.0", "PATH": f"etcd Version: {ETCD}"}, "PATH"),
        ({"KUBEBUILDER_ASSETS": f"1{ETCD}", "PATH": f"{ETCD}0"}, "cache"),
        ({"PATH": f"{ETCD}-rc.1"}, "cache"),
        ({"PATH": ""}, "cache"),
        ({}, "cache"),
    ],
)
def test_takes_the_first_place_with_the_right_version(
    binaries: Callable[..., Binaries], tmp_path: Path, says: Mapping[str, str], wanted: str
) -> None:
    for place, words in says.items():
        a_program(tmp_path / place, "etcd", words)
    a_program(tmp_path / "cache", "etcd")
    places = {place: str(tmp_path / place) for place in says}

    found = binaries(SourceOption("build", Shelf(tmp_path / "cache")), **places).find(["etcd"])

    assert found == {"etcd": tmp_path / wanted / "etcd"}


def test_a_program_of_the_same_name_on_path_is_not_ours(
    binaries: Callable[..., Binaries], tmp_path: Path
) -> None:
    a_program(tmp_path / "PATH", "pause", "1.0")
    assert binaries(PATH=str(tmp_path / "PATH")).find(["pause"]) == {}
    assert binaries(TIDEGATE_BIN=str(tmp_path / "PATH")).find(["pause"]) != {}


@pytest.mark.parametrize(
    ("name", "words", "accepted"),
    [
        ("helm", 'version.BuildInfo{Version:"v4.9.1"}', True),
        ("helm", 'version.BuildInfo{Version:"v3.14.0"}', False),
        ("runc", "whatever", True),
        (
            "kubectl",
            f"Client Version: v{read_pinned_version('k8s.io/kubernetes')}\nKustomize Version: v5.8.1",
            True,
        ),
        ("kubectl", "Client Version: v1.20.0", False),
    ],
)
def test_accepts_other_versions_only_where_any_does(
    binaries: Callable[..., Binaries], tmp_path: Path, name: str, words: str, accepted: bool
) -> None:
    a_program(tmp_path / "PATH", name, words)
    assert (name in binaries(PATH=str(tmp_path / "PATH")).find([name])) is accepted


def test_gets_only_what_is_missing_and_asks_the_next_way_for_the_rest(
    binaries: Callable[..., Binaries], tmp_path: Path
) -> None:
    a_program(tmp_path / "own", "kubectl")
    first, second = Shelf(tmp_path / "first", has=["etcd"]), Shelf(tmp_path / "second", has=["runc"])
    never = Shelf(tmp_path / "never")
    ways = (
        SourceOption("download", never, disabled_reason="off"),
        SourceOption("build", first),
        SourceOption("Debian packages", second),
    )

    found = binaries(*ways, TIDEGATE_BIN=str(tmp_path / "own")).ensure(["kubectl", "etcd", "runc"], silent)

    assert set(found) == {"kubectl", "etcd", "runc"}
    assert never.asked == []
    assert first.asked == [["etcd", "runc"]]
    assert second.asked == [["runc"]]


def test_asks_nobody_when_everything_is_here(binaries: Callable[..., Binaries], tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", has=["etcd"])
    made = binaries(SourceOption("build", shelf))
    made.ensure(["etcd"], silent)
    made.ensure(["etcd"], silent)
    assert shelf.asked == [["etcd"]]


def test_says_every_way_that_was_tried_and_why_it_failed(
    binaries: Callable[..., Binaries], tmp_path: Path
) -> None:
    old = a_program(tmp_path / "PATH", "etcd", "etcd Version: 3.4.0")
    ways = (
        SourceOption(
            "download", Shelf(tmp_path / "a"), disabled_reason="off; TIDEGATE_DOWNLOAD=1 switches it on"
        ),
        SourceOption("build", Shelf(tmp_path / "b", broken="go build ended with exit status 1")),
        SourceOption("Debian packages", Shelf(tmp_path / "c", broken="apt-get is not on PATH")),
    )

    with pytest.raises(BinaryUnavailableError) as caught:
        binaries(*ways, PATH=str(tmp_path / "PATH")).ensure(["etcd"], silent)

    assert str(caught.value).splitlines() == [
        f"no way to get etcd {ETCD}:",
        f"  etcd {ETCD}: TIDEGATE_BIN is not set; KUBEBUILDER_ASSETS is not set; "
        f"PATH: {old} says 'etcd Version: 3.4.0', {ETCD} is needed; {tmp_path / 'home'} does not have it",
        "  download: off; TIDEGATE_DOWNLOAD=1 switches it on",
        "  build: go build ended with exit status 1",
        "  Debian packages: apt-get is not on PATH",
        "Put the programs into a folder and name it with TIDEGATE_BIN.",
    ]


def test_an_unknown_name_is_told_the_known_ones(binaries: Callable[..., Binaries]) -> None:
    with pytest.raises(BinaryUnavailableError, match=r"no program 'kubeapi'; there are etcd, kube-apiserver"):
        binaries().ensure(["kubeapi"], silent)


def test_downloads_only_when_asked_to(tmp_path: Path) -> None:
    off = {"PATH": "", "TIDEGATE_DOWNLOAD": "0"}
    ways = {way.name: way.disabled_reason for way in Binaries(tmp_path, off)._options}
    assert list(ways) == ["download", "build", "Debian packages"]
    assert ways["download"] is not None
    assert Binaries(tmp_path, {"TIDEGATE_DOWNLOAD": "1"})._options[0].disabled_reason is None


def test_every_program_has_a_source(tmp_path: Path) -> None:
    assert [
        str(program) for program in PROGRAMS.values() if not (program.go_package or program.debian_packages)
    ] == []


def test_goes_on_after_a_full_disk_and_removes_what_a_killed_one_left(
    binaries: Callable[..., Binaries], tmp_path: Path
) -> None:
    class FullDisk(Shelf):
        def provide(self, programs: Sequence[Program], progress: Progress) -> None:
            raise OSError(28, "No space left on device")

    leftover = tmp_path / "home" / "bin" / f"{SCRATCH_PREFIX}x"
    a_program(leftover, "half")
    ways = (
        SourceOption("build", FullDisk(tmp_path / "a")),
        SourceOption("Debian packages", Shelf(tmp_path / "b", has=["etcd"])),
    )

    assert binaries(*ways).ensure(["etcd"], silent) == {"etcd": tmp_path / "b" / "etcd"}
    assert not leftover.exists()
