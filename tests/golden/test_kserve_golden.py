"""What `tidegate convert kserve` prints for manifests of KServe; the objects are valid."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fixtures.golden import CheckGolden
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectMeta
from tidegate.main import app

FOLDER = Path(__file__).parent / "kserve"


@pytest.mark.parametrize("manifest", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_of_kserve_become_valid_objects(
    manifest: Path, check_golden: CheckGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)

    printed = CliRunner().invoke(app, ["convert", "kserve", manifest.name])

    assert (printed.exit_code, printed.stderr) == (0, "")
    check_golden(manifest.with_suffix(".txt"), printed.stdout)
    bodies = [body for body in yaml.safe_load_all(printed.stdout) if body]
    assert [body["kind"] for body in bodies[:2]] == ["Inference", "ModelAccess"]
    inference = Inference.parse(bodies[0])
    assert inference.metadata.name == ObjectMeta.model_validate(bodies[1]["metadata"]).name
