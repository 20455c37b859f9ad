"""What travels with a version is enough for the model that runs it: the server has none of our packages."""

from __future__ import annotations

import py_compile
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate_dataplane.agent import repository
from tidegate_dataplane.agent.repository import HOST_MODELS, PACKAGE, RUNTIME_PARTS, _copy_package
from tidegate_dataplane.contract import ModelFormat

IMPORT = re.compile(r"^\s*from (tidegate_dataplane[\w.]*) import", re.MULTILINE)


@pytest.mark.parametrize("model_format", RUNTIME_PARTS)
def test_each_model_imports_what_it_needs_from_its_own_folder(
    tmp_path: Path, model_format: ModelFormat
) -> None:
    _copy_package(tmp_path / PACKAGE.name, RUNTIME_PARTS[model_format])
    modules = sorted(set(IMPORT.findall(HOST_MODELS[model_format].read_text())))
    assert modules
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + "\n".join(
        f"import {module}" for module in modules
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_byte_code_travels_with_it_and_is_run_instead_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in our images, whose byte code does not depend on the time of the source."""
    package = tmp_path / "from" / "package"
    (package / "part").mkdir(parents=True)
    for name in ("__init__.py", "one.py", "part/__init__.py"):
        (package / name).write_text(f"print('byte code of {name}')")
        py_compile.compile(
            str(package / name), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        (package / name).write_text("raise AssertionError('compiled again')")
    monkeypatch.setattr(repository, "PACKAGE", package)
    _copy_package(tmp_path / "package", ("__init__.py", "one.py", "part"))

    command = [sys.executable, "-B", "-c", "import package.one, package.part"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert printed.stdout.splitlines() == [
        f"byte code of {name}" for name in ("__init__.py", "one.py", "part/__init__.py")
    ], printed.stderr
