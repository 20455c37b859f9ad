"""The pictures of the documentation: the same of the same page, small, and none of an error."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator

import pytest
from PIL import Image

from fixtures.app_server import served
from fixtures.browser import Visitor
from fixtures.dashboard import TOKEN, Dashboard
from screenshots import Picture, smaller, take


@pytest.fixture
async def address(dashboard: Dashboard) -> AsyncIterator[str]:
    dashboard.show_fleet()
    async with served(dashboard.app) as found:
        yield found


async def test_the_same_page_is_the_same_picture(address: str, visitor: Visitor) -> None:
    overview = Picture("overview", "/")
    light, again, dark = [
        await take(visitor, address, overview, scheme) for scheme in ("light", "light", "dark")
    ]

    assert light == again
    assert Image.open(io.BytesIO(light)).size == Image.open(io.BytesIO(dark)).size == (1280, 800)
    assert brightness(light) > 200 > 100 > brightness(dark)


def brightness(png: bytes) -> int:
    """Of the pixel at half of its brightness, from 0 to 255."""
    return sorted(Image.open(io.BytesIO(png)).convert("L").tobytes())[1280 * 800 // 2]


async def test_a_smaller_picture_has_the_same_pixels(address: str, visitor: Visitor) -> None:
    page = await visitor.page(address)
    await page.set_extra_http_headers({"authorization": f"Bearer {TOKEN}"})
    await page.goto("/")
    taken = await page.screenshot()

    made = smaller(taken)

    assert len(made) <= len(taken)
    pixels = [Image.open(io.BytesIO(each)).convert("RGB").tobytes() for each in (taken, made)]
    assert pixels[0] == pixels[1]


async def test_no_picture_is_taken_of_a_page_that_is_not_there(address: str, visitor: Visitor) -> None:
    with pytest.raises(RuntimeError, match="/gone: 404"):
        await take(visitor, address, Picture("gone", "/gone"), "light")
    visitor.errors.clear()
