"""A walk through the dashboard in a real browser with the keyboard alone: pages, rows, search, an override and a release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from builders.release import ERRORS, a_release, released
from fixtures.app_server import served
from fixtures.browser import Visitor, connected, visiting
from fixtures.dashboard import TOKEN, Dashboard, a_dashboard

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = pytest.mark.asyncio(loop_scope="module")  # the loop of the one connection to the browser
TOGETHER = timedelta(seconds=1.5)
"""After which a key no longer belongs to the one before: the same as in tidegate/web/static/keys.js."""
FOCUSED = """() => {
  const element = document.activeElement;
  return (element.getAttribute("aria-label") || element.labels?.[0]?.innerText || element.innerText || "").trim();
}"""
OUTLINED = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with connected(chromium) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(browser: Browser) -> AsyncIterator[Visitor]:
    async with visiting(browser) as visitor:
        yield visitor


@pytest_asyncio.fixture(loop_scope="module")
async def shown() -> AsyncIterator[tuple[Dashboard, str]]:
    async with a_dashboard() as dashboard:
        dashboard.show_fleet()
        dashboard.put(released(a_release(checks=[ERRORS]), step=1, weight=1))
        async with served(dashboard.app) as address:
            yield dashboard, address


Shown = tuple[Dashboard, str]


async def signed_in(visitor: Visitor, address: str) -> Page:
    """A page after signing in by the keyboard: the field for the token has the focus."""
    page = await visitor.page(address)
    await page.goto("/sign-in")
    await page.get_by_role("textbox", name="Token").wait_for()
    await reach(page, "Token")
    await page.keyboard.type(TOKEN)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/")
    await page.locator("#stream", has_text="Live").wait_for()
    return page


async def reach(page: Page, text: str, *, presses: int = 60) -> None:
    """Press Tab until the element with that text has the focus, and check that each one on the way shows it."""
    passed: list[str] = []
    for _ in range(presses):
        await page.keyboard.press("Tab")
        focused = await page.evaluate(FOCUSED)
        assert await page.evaluate(OUTLINED), f"the focus on {focused!r} is not visible"
        if text in focused:
            return
        passed.append(focused)
    message = f"{text!r} is not reached by {presses} Tabs; passed: {passed}"
    raise AssertionError(message)


async def acts(page: Page, key: str) -> bool:
    """Press a key that leads to no other page; return whether it did anything."""
    await page.evaluate(
        "addEventListener('keydown', (event) => { acted = event.defaultPrevented; }, {once: true})"
    )
    await page.keyboard.press(key)
    return bool(await page.evaluate("acted"))


async def test_the_first_tab_skips_to_the_content(shown: Shown, visitor: Visitor) -> None:
    page = await signed_in(visitor, shown[1])

    await page.goto("/list/inferences")
    await page.keyboard.press("Tab")
    assert await page.evaluate(FOCUSED) == "Skip to the content"
    await page.keyboard.press("Enter")

    assert await page.evaluate("document.activeElement.id") == "main"
    await page.keyboard.press("Tab")
    assert "Filter" in await page.evaluate(FOCUSED)


async def test_keys_lead_to_pages_rows_and_the_search(shown: Shown, visitor: Visitor) -> None:
    page = await signed_in(visitor, shown[1])

    await page.keyboard.press("?")
    await page.get_by_role("dialog", name="Shortcuts").wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_role("dialog", name="Shortcuts").wait_for(state="hidden")

    # A fixed clock: on a slow machine two keys may be pressed too far apart.
    now = datetime.now(UTC)
    await page.clock.set_fixed_time(now)
    await page.keyboard.press("g")
    await page.clock.set_fixed_time(now + TOGETHER)
    assert not await acts(page, "i")
    await page.keyboard.press("g")
    await page.keyboard.press("i")
    await page.wait_for_url("**/list/inferences")
    for key, name in (("j", "wide"), ("j", "young"), ("k", "wide")):
        await page.keyboard.press(key)
        assert name in await page.evaluate(FOCUSED), key
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/inferences/ads/wide")
    await page.keyboard.press("/")
    assert await page.evaluate(FOCUSED) == "Search all kinds"
    await page.keyboard.type("score")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/?q=score")
    await page.get_by_role("link", name="score-all").first.wait_for()


async def test_a_list_is_sorted_by_a_heading(shown: Shown, visitor: Visitor) -> None:
    page = await signed_in(visitor, shown[1])
    await page.goto("/list/inferences")

    await reach(page, "Requests/s")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**sort=-requests")

    heading = page.get_by_role("columnheader", name="Requests/s")
    assert await heading.get_attribute("aria-sort") == "descending"
    assert "din" in await page.locator("[data-rows] tbody tr").first.inner_text()


async def test_an_override_is_previewed_without_a_mouse(shown: Shown, visitor: Visitor) -> None:
    page = await signed_in(visitor, shown[1])
    await page.goto("/overrides")

    await reach(page, "Target")
    await page.keyboard.type("ads/din")
    await page.keyboard.press("Enter")
    await page.get_by_text("Override the allocator: ads/din").wait_for()
    number = page.get_by_label("Number of replicas")
    assert not await number.is_visible()
    await reach(page, "Hold: keep")
    await page.keyboard.press("ArrowDown")
    assert await page.get_by_label("Pin: exactly this number").is_checked()
    await number.wait_for()
    await reach(page, "Number of replicas")
    await page.keyboard.type("9")
    await reach(page, "Reason")
    await page.keyboard.type("the walk")
    await reach(page, "Preview")
    await page.keyboard.press("Enter")

    await page.get_by_role("heading", name="Preview of the override").wait_for()
    await page.get_by_text("to 9 replicas").wait_for()
    assert shown[0].allowed.written == []


async def test_a_release_is_paused_without_a_mouse(shown: Shown, visitor: Visitor) -> None:
    page = await signed_in(visitor, shown[1])
    await page.goto("/modelaccesses/ads/ctr")

    await reach(page, "Checks, charts and commands")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/modelaccesses/ads/ctr/release")
    await reach(page, "Pause…")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Pause v4 now").wait_for()
    await reach(page, "Pause v4 now")
    await reach(page, "6 hours")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/release?window=6h#time")


async def test_single_keys_can_be_switched_off(shown: Shown, visitor: Visitor) -> None:
    page = await signed_in(visitor, shown[1])
    await page.keyboard.press("?")
    assert await page.evaluate(FOCUSED) == "Single keys act"
    await page.keyboard.press("Space")
    await page.keyboard.press("Escape")

    assert not [key for key in ("g", "i", "?") if await acts(page, key)]

    assert page.url.endswith("/")
    assert not await page.get_by_role("dialog", name="Shortcuts").is_visible()
