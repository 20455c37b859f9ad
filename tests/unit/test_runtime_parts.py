"""What travels with a version is enough for the model that runs it: the server has none of our packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
