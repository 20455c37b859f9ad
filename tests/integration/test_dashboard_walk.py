"""The whole way through the dashboard in a real browser, on a real API server and with an allocator that decides."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from builders.waiting import eventually
from fixtures.allocated import Allocated, looks_again
from fixtures.browser import Visitor
from fixtures.processes import Running
from fixtures.web_process import READER, STEERER, WebProcess

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.slow(
    "the same way without a browser is in test_dashboard.py, pages in a browser in component/test_web_browser.py"
)


async def sign_in(page: Page, token: str) -> None:
    await page.goto("/")
    await page.get_by_role("textbox", name="Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/")


async def test_from_signing_in_to_an_override_that_the_allocator_keeps(
    allocated: Allocated,
    controllers: Running,
    dashboard_process: WebProcess,
    visitor: Visitor,
) -> None:
    from playwright.async_api import expect

    allocated.mode("Auto")
    allocated.model("batch", 0, 3, tier="offline")
    await asyncio.to_thread(allocated.settled, batch=3)
    looks_again(controllers, allocated.pool)
    namespace = allocated.pools.namespace
    token = dashboard_process.visitor("walks", STEERER)
    try:
        page = await visitor.page(dashboard_process.url)
        await sign_in(page, token)
        # The first page shows the worst ten: other tests of this API server may have left as many.
        await page.get_by_role("link", name="Inferences", exact=True).first.click()
        await page.get_by_label("Namespace").select_option(namespace)
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_role("link", name=f"{namespace}/batch").click()
        await expect(page.get_by_role("heading", name="Why it has its replicas")).to_be_visible()
        await expect(page.locator("#why")).to_contain_text("3 replicas, 3 ready")

        # What if the pool had two slices?
        await page.goto(f"/computepools/{allocated.pool}")
        await page.get_by_role("link", name="What if").first.click()
        await page.get_by_label("Healthy slices").fill("2")
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(page.locator("#answer")).to_contain_text(f"{namespace}/batch")
        assert allocated.overrides() == []

        # An override with an end, looked at before it is made.
        await page.goto(f"/inferences/{namespace}/batch")
        await page.get_by_text("Override the allocator").click()
        await page.get_by_label("Pin: exactly this number").check()
        await page.get_by_label("Number of replicas").fill("1")
        await page.get_by_label("Reason").fill("the walk")
        await page.get_by_role("button", name="Preview").click()
        await expect(page.get_by_role("heading", name="Preview of the override")).to_be_visible()
        await page.get_by_role("button", name="Pin it for 30m").click()
        await eventually(lambda: len(allocated.overrides()) == 1, what="the override is made")
        await expect(page.get_by_text("the walk").first).to_be_visible()
        [override] = allocated.overrides()
        assert (override["spec"]["pin"], override["spec"]["reason"]) == ({"replicas": 1}, "the walk")

        # It is seen where it acts, without a reload, and in the decision log.
        await page.goto(f"/inferences/{namespace}/batch")
        await asyncio.to_thread(allocated.settled, batch=1)
        await expect(page.locator("#why")).to_contain_text("1 replica, 1 ready")
        newest = allocated.decisions()[0]["metadata"]["name"]
        await page.goto("/decisions")
        await expect(page.locator(f'a[href="/decisions/{newest}"]').first).to_be_visible()

        # Ended by the same hand.
        await page.goto("/overrides")
        await page.get_by_text("End…").first.click()
        await page.get_by_role("button", name="End it now").click()
        await eventually(lambda: allocated.overrides() == [], what="the override is ended")
    finally:
        dashboard_process.forget("walks")


async def test_who_may_only_look_finds_no_button_that_changes_anything(
    allocated: Allocated, controllers: Running, dashboard_process: WebProcess, visitor: Visitor
) -> None:
    allocated.model("batch", 0, 2, tier="offline")
    looks_again(controllers, allocated.pool, times=1)
    token = dashboard_process.visitor("only-looks", READER)
    try:
        page = await visitor.page(dashboard_process.url)
        await sign_in(page, token)
        for path in (
            f"/inferences/{allocated.pools.namespace}/batch",
            f"/computepools/{allocated.pool}",
            "/overrides",
            "/decisions",
        ):
            answer = await page.goto(path)
            assert answer is not None
            assert answer.ok
            changing = page.locator('form[method="post"]:not([action="/sign-out"])')
            assert await changing.count() == 0, path
        refused = await page.goto(f"/plan/{allocated.pool}")
        assert refused is not None
        assert refused.status == 403
        visitor.errors.clear()  # the console calls a 403 an error
    finally:
        dashboard_process.forget("only-looks")
