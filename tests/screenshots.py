"""Takes the pictures of the dashboard that the documentation shows: `python tests/screenshots.py [--only NAME]`.

Each of PICTURES is taken light and dark, of a recorded fleet demo (tests/record_fleet.py), with fonts and settings that do not
depend on the machine: what changes in a picture has changed in the page, in the record, or in Debian's Chromium.
Beside them is pages.json, with a digest of the text of each page: tests/component/test_screenshots.py fails where a page has
other texts than its picture.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import io
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import get_args

from PIL import Image

from builders.pictured_fleet import ACCESS, NAMESPACE, PICTURED, POOL, WINDOW
from builders.web_page import Page
from fixtures.app_server import served
from fixtures.browser import ColorScheme, Visitor, chromium_binary, connected, running_chromium, visiting
from fixtures.dashboard import TOKEN, Dashboard, a_dashboard
from tidegate_localcluster.errors import BinaryUnavailableError

say = functools.partial(print, flush=True)

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static" / "screenshots"
WIDTH = 1280
PALETTE = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, by its path, and what its files are called."""

    name: str
    path: str
    drawn: str = ""
    """What the page draws after it is loaded, as a selector."""
    height: int = 800


PICTURES = (
    Picture("overview", "/"),
    Picture("power", f"/computepools/{POOL}?window={WINDOW}", "#samples-charts canvas", 960),
    Picture("inference", f"/inferences/{NAMESPACE}/{PICTURED}?window={WINDOW}", "#charts svg"),
    Picture("access", f"/modelaccesses/{NAMESPACE}/{ACCESS}"),
    Picture("release", f"/modelaccesses/{NAMESPACE}/{ACCESS}/release?window={WINDOW}", "#charts svg", 960),
    Picture("list", "/list/inferences?sort=-requests"),
    Picture("decisions", "/decisions"),
    Picture("overrides", f"/overrides?target={NAMESPACE}/cvr-000"),
)
DIGESTS = "pages.json"


def digest_page(text: str) -> str:
    """Return a digest of the texts of a page, without its times, which grow older."""
    texts = Page(re.sub(r"<time[^>]*>[^<]*</time>", "", text)).texts
    return sha256(" ".join(" ".join(texts).split()).encode()).hexdigest()[:16]


async def digest_pictures(dashboard: Dashboard) -> Mapping[str, str]:
    """Return the digest of each picture's page. Raises AssertionError if there is no such page."""
    digests: dict[str, str] = {}
    async with dashboard.browser() as browser:
        for picture in PICTURES:
            answer = await browser.get(picture.path)
            assert answer.status_code == 200, f"{picture.path}: {answer.status_code}"
            digests[picture.name] = digest_page(answer.text)
    return digests


async def take(visitor: Visitor, address: str, picture: Picture, scheme: ColorScheme, now: datetime) -> bytes:
    """The picture as PNG. Raises RuntimeError when something went wrong in the page: there is nothing to show then."""
    page = await visitor.page(address, scheme=scheme, width=WIDTH, height=picture.height)
    await page.set_extra_http_headers({"authorization": f"Bearer {TOKEN}"})
    await page.clock.set_fixed_time(now)
    answer = await page.goto(picture.path)
    if answer is None or not answer.ok or visitor.errors:
        raise RuntimeError(f"{picture.path}: {answer and answer.status} {'; '.join(visitor.errors)}")
    if picture.drawn:
        await page.locator(picture.drawn).first.wait_for()
    await page.locator("#stream", has_text="Live").wait_for()
    await page.evaluate("document.fonts.ready")
    # Boxes that the word `Live` has moved are painted again, at their place of now.
    await page.evaluate("document.body.style.transform = 'translateZ(0)'")
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    taken = await page.screenshot(animations="disabled", caret="hide", scale="css")
    await page.context.close()
    return smaller(taken)


def smaller(png: bytes) -> bytes:
    """The same pixels in fewer bytes: most pages have no more colours than fit into a palette."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.getcolors(PALETTE) is not None:
        image = image.quantize(PALETTE, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    image.save(packed, "PNG", optimize=True)
    return min(packed.getvalue(), png, key=len)


async def take_all(browser: str, pictures: Sequence[Picture]) -> AsyncIterator[tuple[str, bytes]]:
    """Each picture light and dark, with the name of its file; `browser` is the address of a Chromium."""
    async with (
        connected(browser) as connection,
        visiting(connection) as visitor,
        a_dashboard() as dashboard,
        served(dashboard.app) as address,
    ):
        await dashboard.show_recorded_fleet()
        for picture in pictures:
            for scheme in get_args(ColorScheme):
                png = await take(visitor, address, picture, scheme, dashboard.clock.now)
                yield f"{picture.name}-{scheme}.png", png
        yield DIGESTS, (json.dumps(await digest_pictures(dashboard), indent=2) + "\n").encode()


async def keep_all(browser: str, pictures: Sequence[Picture], folder: Path) -> None:
    """Write them into `folder`, which is there."""
    async for name, png in take_all(browser, pictures):
        (folder / name).write_bytes(png)
        say(f"{folder / name}: {len(png) / 1024:.0f} KiB")


def main() -> int:
    """Take all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=[picture.name for picture in PICTURES])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    chosen = [picture for picture in PICTURES if options.only is None or picture.name in options.only]
    try:
        program = chromium_binary(say)
    except BinaryUnavailableError as error:
        say(error, file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-screenshots-") as scratch,
        running_chromium(program, Path(scratch)) as browser,
    ):
        asyncio.run(keep_all(browser, chosen, options.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
