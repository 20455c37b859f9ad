import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tidegate_localcluster import images as images_module
from tidegate_localcluster.buildah import ImageBuildError, silently
from tidegate_localcluster.image_parts import (
    SOURCE,
    Binary,
    DebianFiles,
    OwnMetadata,
    Packages,
    Part,
    Sources,
    Workshop,
    link_tree,
    make_readable,
)
from tidegate_localcluster.image_recipes import RECIPES, ImageName, image_digest, stage_context
from tidegate_localcluster.images import KEPT_ARCHIVES, Images
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.rootfs import BaseSystem, clear

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def source_root(tmp_path: Path) -> Path:
    """A repository with as much as the operator and pause images are made of."""
    files = {
        "pyproject.toml": '[project]\nname = "tidegate"\nversion = "1.2.3"\n',
        "crds/tidegate.io_inferences.yaml": "kind: CustomResourceDefinition\n",
        "operator/tidegate/__init__.py": "",
        "operator/tidegate/api/inference.py": "KIND = 1\n",
        "controllers/tidegate_controllers/__init__.py": "",
        "dataplane/tidegate_dataplane/__init__.py": "",
        "dataplane/tidegate_dataplane/contract/serving.py": "",
        "dataplane/tidegate_dataplane/agent/main.py": "AGENT = 1\n",
        "images/operator/requirements.txt": "",
        "images/operator/Dockerfile": "FROM scratch\n",
        "images/pause/Dockerfile": "FROM scratch\n",
    }
    for name, text in files.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "repository"


@pytest.fixture
def pause(tmp_path: Path) -> Path:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF one")
    return program


@pytest.fixture
def workshop(source_root: Path, tmp_path: Path, pause: Path) -> Workshop:
    return Workshop(
        source_root=source_root,
        cache=tmp_path / "cache",
        base=BaseSystem(tmp_path),
        binary=lambda _name: pause,
        progress=silently,
    )


class FakeBuildah:
    """Records what it is asked to build and writes an archive that holds the context's file names."""

    def __init__(self) -> None:
        self.builds: list[str] = []
        self.contexts: dict[str, Sequence[str]] = {}
        self.kept: Sequence[str] = ()

    def has_image(self, reference: str) -> bool:
        return True

    def build(
        self,
        context: Path,
        dockerfile: Path,
        reference: str,
        arguments: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self.builds.append(reference)
        self.contexts[reference] = sorted(path.name for path in context.rglob("*") if path.is_file())

    def save(self, reference: str, archive: Path, progress: Progress) -> None:
        archive.write_text(reference)

    def remove_other_tags(self, repository: str, keep: Sequence[str]) -> None:
        self.kept = keep


@pytest.fixture
def buildah(monkeypatch: pytest.MonkeyPatch) -> FakeBuildah:
    fake = FakeBuildah()

    def only_one(_home: Path) -> FakeBuildah:
        return fake

    monkeypatch.setattr(images_module, "Buildah", only_one)
    monkeypatch.setattr(images_module, "ensure_tools", silently)
    return fake


@pytest.fixture
def images(buildah: FakeBuildah, source_root: Path, tmp_path: Path, pause: Path) -> Images:
    return Images(tmp_path / "home", source_root, binary=lambda _name, _progress: pause)


@pytest.mark.parametrize(
    "change",
    [
        "operator/tidegate/api/inference.py",
        "controllers/tidegate_controllers/__init__.py",
        "dataplane/tidegate_dataplane/contract/serving.py",
        "crds/tidegate.io_inferences.yaml",
        "images/operator/requirements.txt",
        "images/operator/Dockerfile",
        "operator/tidegate/added.py",
    ],
)
def test_whatever_goes_into_an_image_changes_its_reference(workshop: Workshop, change: str) -> None:
    before = image_digest(ImageName.OPERATOR, workshop)
    with (workshop.source_root / change).open("a") as file:
        file.write("# changed\n")
    assert image_digest(ImageName.OPERATOR, workshop) != before


@pytest.mark.parametrize(
    "change", ["dataplane/tidegate_dataplane/agent/main.py", "operator/tidegate/__pycache__/x.pyc"]
)
def test_what_does_not_go_into_an_image_leaves_its_reference(workshop: Workshop, change: str) -> None:
    before = image_digest(ImageName.OPERATOR, workshop)
    path = workshop.source_root / change
    path.parent.mkdir(exist_ok=True)
    path.write_text("# changed\n")
    assert image_digest(ImageName.OPERATOR, workshop) == before


def test_a_run_bit_and_a_version_change_the_reference(workshop: Workshop) -> None:
    first = image_digest(ImageName.OPERATOR, workshop)
    (workshop.source_root / "operator/tidegate/__init__.py").chmod(0o755)
    second = image_digest(ImageName.OPERATOR, workshop)
    pyproject = workshop.source_root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("1.2.3", "1.2.4"))
    assert len({first, second, image_digest(ImageName.OPERATOR, workshop)}) == 3


def test_an_image_that_is_there_is_not_built_again(images: Images, buildah: FakeBuildah) -> None:
    first = images.ensure(["pause"], silently)
    second = images.ensure(["pause"], silently)
    assert first == second
    assert buildah.builds == [first["pause"].ref]
    assert first["pause"].path.read_text() == first["pause"].ref
    assert first["pause"].ref.startswith("tidegate.local/pause:")


def test_another_program_makes_another_image(images: Images, buildah: FakeBuildah, pause: Path) -> None:
    first = images.ensure(["pause"], silently)["pause"]
    pause.write_bytes(b"\x7fELF two")
    second = images.ensure(["pause"], silently)["pause"]
    assert first.ref != second.ref
    assert buildah.contexts[second.ref] == ["pause"]


def test_only_the_latest_archives_are_kept(images: Images, buildah: FakeBuildah, pause: Path) -> None:
    built = []
    for number in range(KEPT_ARCHIVES + 2):
        pause.write_bytes(bytes([number]))
        image = images.ensure(["pause"], silently)["pause"]
        os.utime(image.path, (number, number))
        built.append(image)
    assert [image.path.exists() for image in built] == [False, False, True, True, True]
    assert sorted(buildah.kept) == sorted(image.ref for image in built[-KEPT_ARCHIVES:])


def test_an_edit_while_staging_names_the_image_after_what_was_staged(
    images: Images, buildah: FakeBuildah, pause: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = iter([b"edited"])

    def edit_once(name: ImageName, workshop: Workshop, context: Path) -> None:
        stage_context(name, workshop, context)
        pause.write_bytes(next(edits, b"edited"))

    monkeypatch.setattr(images_module, "stage_context", edit_once)
    image = images.ensure(["pause"], silently)["pause"]
    assert buildah.builds == [image.ref]
    assert images.ensure(["pause"], silently)["pause"] == image


def test_an_unknown_image_is_refused_with_the_known_ones(images: Images) -> None:
    with pytest.raises(ImageBuildError, match="no image 'operater'; there are operator, dataplane"):
        images.ensure(["operater"], silently)


def test_a_folder_that_is_no_checkout_is_refused(buildah: FakeBuildah, tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="no images/ folder"):
        Images(tmp_path, tmp_path, binary=lambda _name, _progress: tmp_path).ensure(["pause"], silently)


def test_a_context_holds_the_sources_with_plain_modes(workshop: Workshop, tmp_path: Path) -> None:
    script = workshop.source_root / "operator/tidegate/api/inference.py"
    script.chmod(0o700)
    context = tmp_path / "context"
    sources = Sources((("operator/tidegate", "source/tidegate"), ("crds", "source/tidegate/_crds")))
    sources.stage(workshop, context)
    OwnMetadata().stage(workshop, context)
    assert sorted(path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()) == [
        "source/tidegate-1.2.3.dist-info/METADATA",
        "source/tidegate/__init__.py",
        "source/tidegate/_crds/tidegate.io_inferences.yaml",
        "source/tidegate/api/inference.py",
    ]
    assert (context / "source/tidegate/api/inference.py").stat().st_mode & 0o777 == 0o755
    assert (context / "source/tidegate/__init__.py").stat().st_mode & 0o777 == 0o644


def test_a_context_replaces_nothing(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ImageBuildError, match="is not empty"):
        stage_context(ImageName.PAUSE, workshop, tmp_path / "mine")


def test_packages_come_from_the_cache_when_the_lock_is_the_same(workshop: Workshop, tmp_path: Path) -> None:
    packages = Packages("images/operator/requirements.txt", picks=(("lib/program", "bin/program"),))
    installed = workshop.cache / "packages" / packages.fingerprint(workshop)[:16]
    (installed / "lib").mkdir(parents=True)
    (installed / "lib" / "program").write_text("program")
    packages.stage(workshop, tmp_path / "context")
    assert (tmp_path / "context" / "bin" / "program").read_text() == "program"


def test_a_binary_can_be_run_by_everybody(workshop: Workshop, tmp_path: Path) -> None:
    Binary("pause", "pause").stage(workshop, tmp_path / "context")
    assert (tmp_path / "context" / "pause").stat().st_mode & 0o777 == 0o755


def test_a_tight_umask_does_not_reach_the_image(tmp_path: Path) -> None:
    program, folder = tmp_path / "program", tmp_path / "folder"
    program.touch(mode=0o700)
    folder.mkdir(mode=0o700)
    make_readable(program)
    make_readable(folder)
    assert program.stat().st_mode & 0o777 == folder.stat().st_mode & 0o777 == 0o755


def test_a_linked_tree_keeps_its_links(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    (tmp_path / "origin" / "library.so.1").write_text("code")
    (tmp_path / "origin" / "library.so").symlink_to("library.so.1")
    link_tree(tmp_path / "origin", tmp_path / "target")
    assert (tmp_path / "target" / "library.so").is_symlink()
    assert (tmp_path / "target" / "library.so").read_text() == "code"


def test_a_base_system_is_cleared_of_what_no_container_needs(tmp_path: Path) -> None:
    for name in (
        "var/cache/apt/archives/x.deb",
        "usr/share/doc/p/README",
        "usr/share/doc/p/copyright",
        "bin/sh",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    clear(tmp_path)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["bin/sh", "usr/share/doc/p/copyright"]


def test_a_base_system_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    base = BaseSystem(tmp_path)
    base.archive.parent.mkdir(parents=True)
    tarfile.open(base.archive, "w").close()
    base.ensure(pytest.fail)


@pytest.mark.parametrize("name", list(ImageName))
def test_every_image_runs_as_nobody(name: ImageName) -> None:
    dockerfile = (REPOSITORY / "images" / name / "Dockerfile").read_text().splitlines()
    assert "USER 65532:65532" in dockerfile
    assert ("ARG BASE=debian:12-slim" in dockerfile) == RECIPES[name].on_base
    assert any(line.startswith("ENTRYPOINT [") for line in dockerfile)


@pytest.mark.parametrize("name", list(ImageName))
def test_a_dockerfile_copies_all_that_is_staged_and_nothing_else(name: ImageName) -> None:
    dockerfile = (REPOSITORY / "images" / name / "Dockerfile").read_text().splitlines()
    copied = {line.split()[1].rstrip("/") for line in dockerfile if line.startswith("COPY ")}
    assert copied == {folder for part in RECIPES[name].parts for folder in _top_folders(part)}


def _top_folders(part: Part) -> set[str]:
    match part:
        case Packages():
            targets = [target for _, target in part.picks]
        case Sources():
            targets = [target for _, target in part.paths]
        case Binary():
            targets = [part.target]
        case DebianFiles():
            targets = list(part.paths)
        case _:
            targets = [SOURCE]
    return {target.partition("/")[0] for target in targets}


@pytest.mark.parametrize("name", ["operator", "dataplane", "triton-cpu", "gateway"])
def test_every_package_of_an_image_is_pinned_by_hash(name: str) -> None:
    for lock in (REPOSITORY / "images" / name).glob("*.txt"):
        entries = lock.read_text().replace("\\\n", "").splitlines()
        packages = [entry for entry in entries if entry and not entry.lstrip().startswith("#")]
        assert packages
        assert all("==" in entry and "--hash=sha256:" in entry for entry in packages), lock


@pytest.mark.parametrize("name", ["dataplane", "triton-cpu"])
def test_images_that_meet_the_python_backend_have_numpy_1(name: str) -> None:
    lock = (REPOSITORY / "images" / name / "requirements.txt").read_text()
    assert "\nnumpy==1." in lock
