"""Publishing: a version appears whole, is replaced whole, and is recognised when it is already there."""

import json
from pathlib import Path

import pytest

from tidegate_localcluster.demo.recipe import PublishedRatings, TrainingRecipe
from tidegate_localcluster.errors import LocalClusterError


@pytest.fixture
def recipe(tmp_path: Path) -> TrainingRecipe:
    """A recipe whose versions 1 and 2 are trained."""
    example = tmp_path / "source" / "examples" / "movielens"
    example.mkdir(parents=True)
    (example / "train.py").write_text("raise SystemExit('must not run')\n")
    made = TrainingRecipe(tmp_path / "source", tmp_path / "home")
    for version in ("1", "2"):
        (made.output_folder / version).mkdir(parents=True)
        (made.output_folder / version / "model.onnx").write_text(f"model {version}")
    for table in ("users.parquet", "items.parquet"):
        (made.output_folder / "tables").mkdir(exist_ok=True)
        (made.output_folder / "tables" / table).write_text(table)
    (made.output_folder / "training").mkdir()
    for version in ("1", "2"):
        report = {"version": version, "sha256": "ab", "auc": 0.7, "maxAbsDifference": 1e-7, "seconds": 2.0}
        (made.output_folder / "training" / f"{version}.json").write_text(json.dumps(report))
    return made


def test_what_was_trained_is_not_trained_again(recipe: TrainingRecipe) -> None:
    said: list[str] = []
    found = recipe.train_versions(("1", "2"), said.append)
    assert found["2"].auc == 0.7
    assert "trained before" in said[0]


def test_changed_code_is_trained_again(recipe: TrainingRecipe) -> None:
    before = recipe.output_folder
    (recipe.example_folder / "train.py").write_text("raise SystemExit('changed')\n")
    assert recipe.output_folder != before


def test_a_version_is_published_whole_and_recognised(recipe: TrainingRecipe, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "movielens").mkdir(parents=True)
    assert not recipe.is_published("1", models)
    recipe.publish_tables(models)
    path = recipe.publish_version("1", models)
    assert path.read_text() == "model 1"
    assert recipe.is_published("1", models)
    assert sorted(entry.name for entry in (models / "movielens").iterdir()) == ["1", "tables"]


def test_another_model_under_the_same_version_is_noticed(recipe: TrainingRecipe, tmp_path: Path) -> None:
    models = tmp_path / "models"
    recipe.publish_tables(models)
    recipe.publish_version("1", models).write_text("of yesterday")
    assert not recipe.is_published("1", models)
    recipe.publish_version("1", models)
    assert recipe.is_published("1", models)


def test_events_are_published_by_the_example(recipe: TrainingRecipe) -> None:
    script = recipe.example_folder / "publish_events.py"
    script.write_text(
        "import json, sys; print('reading');"
        "print(json.dumps({'stream': 'S', 'subject': ' '.join(sys.argv[1:]), 'count': 3, 'shiftMs': 7, 'isNew': True}))"
    )
    published = recipe.publish_events("127.0.0.1:4222", lambda _: None)
    events = recipe.output_folder / "events.parquet"
    arguments = f"--events {events} --url nats://127.0.0.1:4222 --json"
    assert published == PublishedRatings("S", arguments, count=3, shift_ms=7, is_new=True)


def test_a_stream_that_refuses_is_an_error_with_its_words(recipe: TrainingRecipe) -> None:
    (recipe.example_folder / "publish_events.py").write_text("raise SystemExit('no servers available')")
    with pytest.raises(
        LocalClusterError, match=r"(?s)publishing the ratings as events.*no servers available"
    ):
        recipe.publish_events("127.0.0.1:4222", lambda _: None)
