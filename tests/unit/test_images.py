import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate_localcluster import images as images_module
from tidegate_localcluster.buildah import (
    DockerfileBuild,
    ImageBuildError,
    _find_current_step,
    ignore_progress,
)
from tidegate_localcluster.image_parts import (
    BuildInputs,
    PythonPackages,
    SourceFiles,
    StaticBinary,
    link_tree,
    make_readable,
)
from tidegate_localcluster.image_recipes import (
    ImageName,
    compute_image_digest,
    compute_runtime_digest,
    stage_context,
)
from tidegate_localcluster.images import KEPT_ARCHIVES, ImageBuilder
from tidegate_localcluster.progress import Progress
from tidegate_localcluster.rootfs import BaseSystem, remove_unneeded_files

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
        "dataplane/tidegate_dataplane/runner_interface.py": "",
        "dataplane/tidegate_dataplane/agent/main.py": "AGENT = 1\n",
        "images/install-packages": "#!/bin/sh\n",
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
def workshop(source_root: Path, tmp_path: Path, pause: Path) -> BuildInputs:
    return BuildInputs(
        source_root=source_root,
        cache=tmp_path / "cache",
        base=BaseSystem(tmp_path),
        find_binary=lambda _name: pause,
        progress=ignore_progress,
    )


class FakeBuildah:
    """Records what it is asked to build and writes an archive that holds the context's file names."""

    def __init__(self) -> None:
        self.builds: list[str] = []
        self.contexts: dict[str, Sequence[str]] = {}
        self.asked: dict[str, DockerfileBuild] = {}
        self.kept: dict[str, Sequence[str]] = {}

    def has_image(self, reference: str) -> bool:
        return reference in self.builds or "/base:" in reference

    def build_image(self, build: DockerfileBuild, reference: str, progress: Progress) -> None:
        self.builds.append(reference)
        self.asked[reference] = build
        self.contexts[reference] = sorted(path.name for path in build.context.rglob("*") if path.is_file())

    def save_archive(self, reference: str, archive: Path, progress: Progress) -> None:
        archive.write_text(reference)

    def remove_other_tags(self, repository: str, keep: Sequence[str]) -> None:
        self.kept[repository] = keep


@pytest.fixture
def buildah(monkeypatch: pytest.MonkeyPatch) -> FakeBuildah:
    fake = FakeBuildah()

    def only_one(_home: Path) -> FakeBuildah:
        return fake

    monkeypatch.setattr(images_module, "Buildah", only_one)
    monkeypatch.setattr(images_module, "ensure_tools", ignore_progress)
    return fake


@pytest.fixture
def images(buildah: FakeBuildah, source_root: Path, tmp_path: Path, pause: Path) -> ImageBuilder:
    return ImageBuilder(tmp_path / "home", source_root, binary=lambda _name, _progress: pause)


@pytest.mark.parametrize(
    "change",
    [
        "operator/tidegate/api/inference.py",
        "controllers/tidegate_controllers/__init__.py",
        "dataplane/tidegate_dataplane/contract/serving.py",
        "crds/tidegate.io_inferences.yaml",
        "images/operator/requirements.txt",
        "images/operator/Dockerfile",
        "images/install-packages",
        "operator/tidegate/added.py",
    ],
)
def test_whatever_goes_into_an_image_changes_its_reference(workshop: BuildInputs, change: str) -> None:
    before = compute_image_digest(ImageName.OPERATOR, workshop)
    with (workshop.source_root / change).open("a") as file:
        file.write("# changed\n")
    assert compute_image_digest(ImageName.OPERATOR, workshop) != before


@pytest.mark.parametrize(
    "change", ["dataplane/tidegate_dataplane/agent/main.py", "operator/tidegate/__pycache__/x.pyc"]
)
def test_what_does_not_go_into_an_image_leaves_its_reference(workshop: BuildInputs, change: str) -> None:
    before = compute_image_digest(ImageName.OPERATOR, workshop)
    path = workshop.source_root / change
    path.parent.mkdir(exist_ok=True)
    path.write_text("# changed\n")
    assert compute_image_digest(ImageName.OPERATOR, workshop) == before


def test_a_run_bit_and_a_version_change_the_reference(workshop: BuildInputs) -> None:
    first = compute_image_digest(ImageName.OPERATOR, workshop)
    (workshop.source_root / "operator/tidegate/__init__.py").chmod(0o755)
    second = compute_image_digest(ImageName.OPERATOR, workshop)
    pyproject = workshop.source_root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("1.2.3", "1.2.4"))
    assert len({first, second, compute_image_digest(ImageName.OPERATOR, workshop)}) == 3


@pytest.mark.parametrize(
    "change", ["images/operator/requirements.txt", "images/operator/Dockerfile", "images/install-packages"]
)
def test_what_makes_other_packages_changes_the_stage_below_our_code(
    workshop: BuildInputs, change: str
) -> None:
    before = compute_runtime_digest(ImageName.OPERATOR, workshop)
    with (workshop.source_root / change).open("a") as file:
        file.write("# changed\n")
    assert compute_runtime_digest(ImageName.OPERATOR, workshop) != before


def test_a_change_of_our_code_builds_on_the_packages_that_are_there(
    images: ImageBuilder,
    buildah: FakeBuildah,
    source_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = BaseSystem(tmp_path / "home").archive_path
    base.parent.mkdir(parents=True)
    base.touch()

    def installed(self: PythonPackages, _lock: Path, target: Path, _progress: Progress) -> None:
        (target / "library").mkdir(parents=True)
        (target / "library" / "module.py").touch()

    monkeypatch.setattr(PythonPackages, "_install_packages", installed)
    first = images.ensure(["operator"], ignore_progress)["operator"].ref
    code = source_root / "operator/tidegate/api/inference.py"
    code.write_text("KIND = 2\n")
    second = images.ensure(["operator"], ignore_progress)["operator"].ref
    runtime = buildah.builds[0]
    assert buildah.builds == [runtime, first, second]
    assert [buildah.asked[ref].target for ref in buildah.builds] == ["runtime", None, None]
    assert [buildah.asked[ref].stages for ref in (first, second)] == [{"runtime": runtime}] * 2
    assert "module.py" in buildah.contexts[runtime]
    assert "module.py" not in buildah.contexts[second]
    assert buildah.kept["tidegate.local/operator-runtime"] == [runtime]
    (source_root / "images/operator/requirements.txt").write_text("# another\n")
    images.ensure(["operator"], ignore_progress)
    assert buildah.asked[buildah.builds[3]].target == "runtime"


def test_an_image_that_is_there_is_not_built_again(images: ImageBuilder, buildah: FakeBuildah) -> None:
    first = images.ensure(["pause"], ignore_progress)
    second = images.ensure(["pause"], ignore_progress)
    assert first == second
    assert buildah.builds == [first["pause"].ref]
    assert first["pause"].path.read_text() == first["pause"].ref
    assert first["pause"].ref.startswith("tidegate.local/pause:")


def test_another_program_makes_another_image(images: ImageBuilder, buildah: FakeBuildah, pause: Path) -> None:
    first = images.ensure(["pause"], ignore_progress)["pause"]
    pause.write_bytes(b"\x7fELF two")
    second = images.ensure(["pause"], ignore_progress)["pause"]
    assert first.ref != second.ref
    assert buildah.contexts[second.ref] == ["pause"]


def test_only_the_latest_archives_are_kept(images: ImageBuilder, buildah: FakeBuildah, pause: Path) -> None:
    built = []
    for number in range(KEPT_ARCHIVES + 2):
        pause.write_bytes(bytes([number]))
        image = images.ensure(["pause"], ignore_progress)["pause"]
        os.utime(image.path, (number, number))
        built.append(image)
    assert [image.path.exists() for image in built] == [False, False, True, True, True]
    kept = buildah.kept["tidegate.local/pause"]
    assert sorted(kept) == sorted(image.ref for image in built[-KEPT_ARCHIVES:])


def test_an_edit_while_staging_names_the_image_after_what_was_staged(
    images: ImageBuilder, buildah: FakeBuildah, pause: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = iter([b"edited"])

    def edit_once(name: ImageName, workshop: BuildInputs, context: Path, *, runtime: bool) -> None:
        stage_context(name, workshop, context, runtime=runtime)
        pause.write_bytes(next(edits, b"edited"))

    monkeypatch.setattr(images_module, "stage_context", edit_once)
    image = images.ensure(["pause"], ignore_progress)["pause"]
    assert buildah.builds == [image.ref]
    assert images.ensure(["pause"], ignore_progress)["pause"] == image


def test_an_unknown_image_is_refused_with_the_known_ones(images: ImageBuilder) -> None:
    with pytest.raises(ImageBuildError, match="no image 'operater'; there are operator, dataplane"):
        images.ensure(["operater"], ignore_progress)


def test_a_folder_that_is_no_checkout_is_refused(buildah: FakeBuildah, tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="no images/ folder"):
        ImageBuilder(tmp_path, tmp_path, binary=lambda _name, _progress: tmp_path).ensure(
            ["pause"], ignore_progress
        )


def test_a_context_holds_the_sources_with_plain_modes(workshop: BuildInputs, tmp_path: Path) -> None:
    script = workshop.source_root / "operator/tidegate/api/inference.py"
    script.chmod(0o700)
    context = tmp_path / "context"
    sources = SourceFiles(("operator/tidegate", "crds"))
    sources.stage(workshop, context)
    assert sorted(path.relative_to(context).as_posix() for path in context.rglob("*") if path.is_file()) == [
        "crds/tidegate.io_inferences.yaml",
        "operator/tidegate/__init__.py",
        "operator/tidegate/api/inference.py",
    ]
    assert (context / "operator/tidegate/api/inference.py").stat().st_mode & 0o777 == 0o755
    assert (context / "operator/tidegate/__init__.py").stat().st_mode & 0o777 == 0o644


def test_a_context_replaces_nothing(workshop: BuildInputs, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(ImageBuildError, match="is not empty"):
        stage_context(ImageName.PAUSE, workshop, tmp_path / "mine")


def test_packages_come_from_the_cache_when_the_lock_is_the_same(
    workshop: BuildInputs, tmp_path: Path
) -> None:
    packages = PythonPackages("images/operator/requirements.txt", folder="server")
    installed = packages.installed_folder(workshop)
    (installed / "lib").mkdir(parents=True)
    (installed / "lib" / "program").write_text("program")
    packages.stage(workshop, tmp_path / "context")
    staged = tmp_path / "context" / "images" / "operator"
    assert (staged / "server" / "lib" / "program").read_text() == "program"
    assert (staged / "requirements.txt").read_text() == ""


def test_a_binary_can_be_run_by_everybody(workshop: BuildInputs, tmp_path: Path) -> None:
    StaticBinary("pause", "pause").stage(workshop, tmp_path / "context")
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
    remove_unneeded_files(tmp_path)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["bin/sh", "usr/share/doc/p/copyright"]


def test_a_base_system_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    base = BaseSystem(tmp_path)
    base.archive_path.parent.mkdir(parents=True)
    tarfile.open(base.archive_path, "w").close()
    base.ensure(pytest.fail)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["STEP 1/2: FROM a", "STEP 2/2: RUN b", "--> 1234"], "step 2/2"),
        (["[2/3] STEP 5/5: RUN cd /build && rm -rf bin"], "[2/3] step 5/5"),
        (["Getting image"], "Getting image"),
    ],
    ids=["one-stage", "stages", "before"],
)
def test_progress_names_the_step_without_its_text(lines: Sequence[str], said: str) -> None:
    assert _find_current_step(lines) == said
