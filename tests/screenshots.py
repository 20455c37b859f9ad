"""Takes the pictures of the dashboard that the documentation shows: `python tests/screenshots.py [--only NAME]`.

Each of PICTURES is taken light and dark, with fonts and settings that do not depend on the machine: what changes in a
picture has changed in the page, or in Debian's Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import io
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from PIL import Image

from builders.shown_fleet import SHOWN_AT
from fixtures.app_server import served
from fixtures.browser import ColorScheme, Visitor, chromium_binary, connected, running_chromium, visiting
from fixtures.dashboard import TOKEN, a_dashboard
from tidegate_localcluster.errors import BinaryUnavailableError

say = functools.partial(print, flush=True)

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static" / "screenshots"
WIDTH, HEIGHT = 1280, 800
PALETTE = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """A page, by its path, and what its files are called."""

    name: str
    path: str


PICTURES = (
    Picture("overview", "/"),
    Picture("power", "/computepools/cpu-a"),
    Picture("inference", "/inferences/ads/din"),
    Picture("access", "/modelaccesses/ads/din"),
    Picture("decisions", "/decisions"),
    Picture("overrides", "/overrides"),
)


async def take(visitor: Visitor, address: str, picture: Picture, scheme: ColorScheme) -> bytes:
    """The picture as PNG. Raises RuntimeError when something went wrong in the page: there is nothing to show then."""
    page = await visitor.page(address, scheme=scheme, width=WIDTH, height=HEIGHT)
    await page.set_extra_http_headers({"authorization": f"Bearer {TOKEN}"})
    await page.clock.set_fixed_time(SHOWN_AT)
    answer = await page.goto(picture.path)
    if answer is None or not answer.ok or visitor.errors:
        raise RuntimeError(f"{picture.path}: {answer and answer.status} {'; '.join(visitor.errors)}")
    await page.evaluate("document.fonts.ready")
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
        dashboard.show_fleet()
        for picture in pictures:
            for scheme in get_args(ColorScheme):
                yield f"{picture.name}-{scheme}.png", await take(visitor, address, picture, scheme)


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
