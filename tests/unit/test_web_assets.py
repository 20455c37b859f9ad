"""The scripts and styles of others that the dashboard serves: they are what the list says, and all are in it."""

from __future__ import annotations

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import tidegate.web

STATIC = Path(str(tidegate.web.__file__)).parent / "static"
VENDOR = STATIC / "vendor"
ASSETS: list[dict[str, Any]] = tomllib.loads((VENDOR / "assets.toml").read_text())["asset"]


@pytest.mark.parametrize("asset", ASSETS, ids=lambda asset: str(asset["file"]))
def test_an_asset_is_as_its_authors_published_it(asset: dict[str, str]) -> None:
    assert sha256((VENDOR / asset["file"]).read_bytes()).hexdigest() == asset["sha256"]
    assert asset["version"] in asset["source"]
    assert (VENDOR / asset["licence_file"]).read_text().strip()


def test_nothing_lies_there_that_nobody_has_listed() -> None:
    listed = {asset["file"] for asset in ASSETS} | {asset["licence_file"] for asset in ASSETS}
    assert {path.name for path in VENDOR.iterdir()} == listed | {"assets.toml"}


def test_nothing_is_loaded_from_elsewhere() -> None:
    """Own scripts and styles name no address; those of others name some in comments alone."""
    for path in (*STATIC.glob("*.js"), *STATIC.glob("*.css")):
        text = path.read_text()
        assert not any(word in text for word in ("http:", "https:", "@import")), path
