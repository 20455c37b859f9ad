"""Whatever a URI, path or archive says, nothing outside its own place is named, read or written."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stages.examples import examples
from tidegate_dataplane.agent.artefacts.archive import MAX_HEADER_BYTES, UnpackBudget, unpack_layer
from tidegate_dataplane.agent.artefacts.checked_client import join_location
from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason, UriScheme

PIECES = [
    "..",
    ".",
    "%2e%2e",
    "%2E.",
    "%2f",
    "\\",
    "a",
    "@",
    ":",
    "?",
    "#",
    "[",
    "]",
    " ",
    "\n",
    "é",
    "/",
    "~",
]
paths = st.lists(st.sampled_from(PIECES), max_size=8).map("/".join)
texts = st.builds(
    "{}://{}/{}".format,
    st.sampled_from([*UriScheme, "http", "ftp", "FILE", ""]),
    st.one_of(st.sampled_from(["", "host", "Host:5000", "user:secret@host", "[::1]", "host:x"]), paths),
    paths,
)


@given(st.one_of(texts, st.text(max_size=60)))
def test_a_uri_is_refused_or_stays_in_its_place(text: str) -> None:
    refusal, uri = None, None
    try:
        uri = parse_uri(text)
    except ArtefactError as error:
        refusal = error.refusal
    if uri is None:
        assert refusal is not None
        assert refusal.reason is FailureReason.URI_NOT_ALLOWED
        assert "secret@" not in refusal.message
        return
    assert ".." not in uri.path.split("/")
    assert "@" not in uri.authority
    assert not any(ord(character) < 32 for character in uri.path)


@given(st.one_of(paths, st.text(max_size=40)))
def test_a_relative_path_is_refused_or_stays_below(text: str) -> None:
    try:
        path = PurePosixPath(check_relative_path(text, subject="file"))
    except ArtefactError:
        return
    assert not path.is_absolute()
    assert ".." not in path.parts


KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
names = st.lists(
    st.sampled_from(["models", "..", ".", "", "a", "b", ".wh.a", ".wh..", ".wh...", ".wh..wh..opq"]),
    max_size=5,
).map("/".join)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150), deadline=None
)
@given(st.lists(st.tuples(names, KINDS, st.binary(max_size=600)), max_size=6), st.booleans())
@example([("models/.wh..", tarfile.REGTYPE, b"")], False)
@example([("models/a/.wh...", tarfile.REGTYPE, b"")], False)
@example([("models/a", tarfile.REGTYPE, b""), ("models/a/.wh.b", tarfile.REGTYPE, b"")], False)
@example([("models/a", tarfile.REGTYPE, b""), ("models/a/b", tarfile.REGTYPE, b"")], False)
def test_a_layer_is_refused_or_writes_below_its_folder_alone(
    tmp_path: Path, entries: list[tuple[str, bytes, bytes]], compressed: bool
) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    world = tmp_path / "world"
    folder = world / "in" / "folder"
    folder.mkdir(parents=True, exist_ok=True)
    (world / "witness").write_text("here")
    archive = tmp_path / "layer"
    archive.write_bytes(gzip.compress(stream.getvalue()) if compressed else stream.getvalue())
    reason = None
    try:
        unpack_layer(archive, folder, below="models", budget=UnpackBudget(1 << 20, artefact="a model"))
    except ArtefactError as error:
        reason = error.refusal.reason
    assert reason in (None, FailureReason.ARTEFACT_INVALID, FailureReason.ARTEFACT_TOO_LARGE)
    assert folder.is_dir()
    assert sorted(path.name for path in world.iterdir()) == ["in", "witness"]
    assert [path.name for path in (world / "in").iterdir()] == ["folder"]
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_giant_header_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 2 << 30  # says two gigabytes; none of them need to be there
    (tmp_path / "layer").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048))

    with pytest.raises(ArtefactError) as raised:
        unpack_layer(
            tmp_path / "layer", tmp_path, below="models", budget=UnpackBudget(1 << 20, artefact="a model")
        )

    assert f"{MAX_HEADER_BYTES} are allowed" in raised.value.refusal.message


def test_a_layer_with_a_broken_sparse_header_is_refused(tmp_path: Path) -> None:
    archive, folder = tmp_path / "layer", tmp_path / "folder"
    folder.mkdir()
    with tarfile.open(archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("models/model.onnx")
        info.pax_headers = {"GNU.sparse.map": "a,b"}
        tar.addfile(info, io.BytesIO())

    with pytest.raises(ArtefactError) as raised:
        unpack_layer(archive, folder, below="models", budget=UnpackBudget(1 << 20, artefact="a model"))

    assert raised.value.refusal.reason is FailureReason.ARTEFACT_INVALID


def test_a_redirect_to_what_is_no_url_is_an_answer_like_any_other() -> None:
    with pytest.raises(ArtefactError) as raised:
        join_location("https://models.example.com/ctr", "https://[bad")

    assert raised.value.refusal.reason is FailureReason.FETCH_FAILED
