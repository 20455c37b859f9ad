"""The pictures of the dashboard in docs: complete, of pages that exist, and with the texts that these pages have now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import screenshots
from fixtures.browser import ColorScheme
from fixtures.dashboard import Dashboard
from tidegate.recorded.record import read_fleet

ROOT = Path(__file__).resolve().parents[2]


def shown_in_docs() -> Iterator[str]:
    """The pictures that pages of docs show."""
    for page in (ROOT / "docs").rglob("*.md"):
        for part in page.read_text().split("_static/screenshots/")[1:]:
            yield part.partition(")")[0]


def test_the_command_takes_each_picture_that_is_committed_and_no_other() -> None:
    taken = {
        f"{picture.name}-{scheme}.png" for picture in screenshots.PICTURES for scheme in get_args(ColorScheme)
    }

    assert {path.name for path in screenshots.FOLDER.iterdir()} == {*taken, screenshots.DIGESTS}
    assert set(shown_in_docs()) == taken


async def test_pictures_have_the_texts_of_their_pages(dashboard: Dashboard) -> None:
    await dashboard.show_recorded_fleet()

    digests = await screenshots.digest_pictures(dashboard)

    committed = json.loads((screenshots.FOLDER / screenshots.DIGESTS).read_text())
    assert digests == committed, "run `make screenshots` and commit the pictures"


def test_a_digest_changes_with_a_text_and_not_with_an_age() -> None:
    page = '<p>Ready <time datetime="2026-06-01">{} ago</time></p>'

    assert screenshots.digest_page(page.format("3 min")) == screenshots.digest_page(page.format("5 h"))
    assert screenshots.digest_page(page) != screenshots.digest_page(page.replace("Ready", "Well"))


async def test_the_recorded_fleet_agrees_with_itself(dashboard: Dashboard) -> None:
    await dashboard.show_recorded_fleet()
    fleet = read_fleet()

    async with dashboard.browser() as browser:
        rows = (await browser.get("/api/v1/rows/inferences?size=100")).json()["items"]

    assert len(rows) == len(fleet.bodies["inferences"])
    for row in rows:
        ready, decided = map(int, row["replicas"].split("/"))
        assert ready <= decided, row["name"]
    pods = [body["metadata"]["labels"]["tidegate.io/inference"] for body in fleet.bodies["pods"]]
    assert set(pods) <= {row["name"] for row in rows}
