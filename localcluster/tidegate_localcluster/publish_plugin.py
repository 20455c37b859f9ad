"""Makes one file of the command `tidegate`, and a krew manifest for it: `python -m tidegate_localcluster.publish_plugin [URL]`."""

import argparse
import gzip
import hashlib
import io
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_parts import find_uv, read_project_version
from tidegate_localcluster.progress import Progress, run_with_progress
from tidegate_localcluster.publish_images import print_progress

PEX: Final = "pex==2.105.2"
PLUGIN: Final = "kubectl-tidegate"
MANIFEST: Final = "tidegate.yaml"
_LEAST_COMPRESSION: Final = 1
"""The packages in the file are compressed already."""
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class PluginError(LocalClusterError):
    """The file of the command cannot be made."""


def make_zipapp(source_root: Path, target: Path, progress: Progress) -> None:
    """Write the command, with the locked versions of all that it imports, as one executable file to `target`.

    It runs with a Python of the same minor version, on the same operating system and architecture. Raises LocalClusterError.
    """
    uv = find_uv()
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        export: list[str | Path] = [uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes"]
        run_with_progress(
            [*export, "--quiet", "--output-file", requirements],
            task="reading uv.lock",
            progress=progress,
            directory=source_root,
        )
        made = Path(scratch) / target.name
        pex: list[str | Path] = [uv, "tool", "run", "--python", sys.executable, "--from", PEX, "pex"]
        run_with_progress(
            [
                *pex,
                ".",
                "-r",
                requirements,
                "--script",
                "tidegate",
                "--venv",
                "prepend",
                "--output-file",
                made,
            ],
            task=f"packing the command and its packages into {target.name}",
            progress=progress,
            directory=source_root,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(made, target)


def pack_archive(zipapp: Path, licence: Path, archive: Path) -> None:
    """Write the archive that krew unpacks; the same files always make the same bytes."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", _LEAST_COMPRESSION, file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        for name, source, mode in ((PLUGIN, zipapp, 0o755), ("LICENSE", licence, 0o644)):
            content = source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            packed.addfile(entry, io.BytesIO(content))


def describe_plugin(version: str, archive: Path, url: str) -> Mapping[str, Any]:
    """Return the manifest with which krew installs the archive, which will be found below `url`. Raises PluginError."""
    system, architecture = _find_platform()
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "tidegate"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Release, explain and steer recommendation and ads models",
            "description": "The command of Tidegate, which serves recommendation and ads models on Triton and Envoy: what state models are in "
            "and why, how a release proceeds, what the allocator decides and what it would decide.\n",
            "caveats": f"Needs python{_python_version()} on the PATH. `kubectl tidegate doctor` checks the cluster and your rights.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": system, "arch": architecture}},
                    "uri": f"{url.rstrip('/')}/{archive.name}",
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "bin": PLUGIN,
                }
            ],
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, and with an address its archive and manifest too; return the exit status."""
    options = _parse_arguments(arguments)
    folder: Path = options.output
    zipapp = folder / "tidegate.pyz"
    try:
        version = read_project_version(options.root)
        make_zipapp(options.root, zipapp, print_progress)
        print_progress(f"next: copy {zipapp} to a folder on your PATH as {PLUGIN}")
        if options.url:
            archive = folder / f"tidegate-{version}-{'-'.join(_find_platform())}.tar.gz"
            pack_archive(zipapp, options.root / "LICENSE", archive)
            manifest = folder / MANIFEST
            manifest.write_text(
                yaml.safe_dump(describe_plugin(version, archive, options.url), sort_keys=False, width=120)
            )
            print_progress(
                f"or: upload {archive} to {options.url}, then kubectl krew install --manifest={manifest}"
            )
    except (LocalClusterError, OSError) as error:
        print_progress(str(error))
        return 1
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Make one file of the command, and with an address a krew manifest too."
    )
    parser.add_argument(
        "url", nargs="?", default="", help="where the archive will be, like https://example.com/plugins"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/plugin"), help="a folder [default: %(default)s]"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the repository [default: here]")
    options = parser.parse_args(arguments)
    if options.url and not options.url.startswith(("https://", "http://")):
        parser.error(f"{options.url} is no address: it begins with https:// or http://")
    return options


def _find_platform() -> tuple[str, str]:
    """Return krew's names of this operating system and architecture. Raises PluginError."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise PluginError(f"krew has no name for the architecture {machine}")
    return platform.system().lower(), _ARCHITECTURES[machine]


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


if __name__ == "__main__":
    sys.exit(main())
