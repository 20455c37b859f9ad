"""What stays the same from page to page of the dashboard, and what a page shows without the allocator."""

from __future__ import annotations

import html
import re

from builders.pictured_fleet import NAMESPACE
from builders.shown_fleet import POOL
from fixtures.dashboard import Dashboard


async def test_a_chosen_namespace_is_kept_on_every_page(dashboard: Dashboard) -> None:
    await dashboard.show_recorded_fleet()
    kept = f"namespace={NAMESPACE}"
    visited, waiting = set[str](), [f"/?{kept}"]
    async with dashboard.browser() as browser:
        while waiting:
            address = waiting.pop()
            shape = re.sub(r"(?<=/)[^/]+", "*", address.partition("?")[0].lstrip("/"))
            if shape in visited:
                continue
            visited.add(shape)
            answer = await browser.get(address, follow_redirects=True)
            assert (answer.status_code, answer.url.params.get("namespace")) == (200, NAMESPACE), address
            links = re.findall(r'<a [^>]*href="(/[^"#]*)[^>]*>(?!Show all)', html.unescape(answer.text))
            assert [link for link in links if kept not in link] == [], address
            forms = re.findall(r'<form [^>]*method="post"[^>]*action="(/[^"]*)"', html.unescape(answer.text))
            assert [form for form in forms if kept not in form and form != "/sign-out"] == []
            fields = answer.text.count(f'<input type="hidden" name="namespace" value="{NAMESPACE}">')
            assert fields or shape in {"", "list/*"}, address
            waiting += links
    assert {
        "decisions",
        "overrides",
        "inferences/*/*",
        "modelaccesses/*/*",
        "computepools/*",
        "plan/*",
    } <= visited


async def test_without_a_chosen_namespace_links_name_none(dashboard: Dashboard) -> None:
    dashboard.show_fleet()
    for path in ("/decisions", "/overrides", f"/computepools/{POOL}"):
        async with dashboard.browser() as browser:
            page = html.unescape((await browser.get(path)).text)
        assert [link for link in re.findall(r'(?:href|action)="([^"]*)', page) if "namespace=" in link] == []
        assert 'href="/list/inferences"' in page


async def test_a_chosen_namespace_is_kept_on_the_page_of_an_error(dashboard: Dashboard) -> None:
    dashboard.show_fleet()
    async with dashboard.browser() as browser:
        for namespace, status, kept in (
            ("?namespace=ads", 404, "/?namespace=ads"),
            ("?namespace=a%22%3E%26b", 404, "/?namespace=a%22%3E%26b"),
            ("", 404, "/"),
        ):
            for path in ("/inferences/ads/gone", "/no-such-page"):
                answer = await browser.get(f"{path}{namespace}")
                links = re.findall(r'<a [^>]*href="(/[^"]*)"', html.unescape(answer.text))
                assert (answer.status_code, links) == (status, [kept, kept]), path


async def test_demand_without_a_leader_names_the_cause_and_no_command(dashboard: Dashboard) -> None:
    dashboard.show_fleet()
    async with dashboard.browser() as browser:
        demand = html.unescape((await browser.get(f"/computepools/{POOL}/demand")).text)
    assert (
        "Not known: no controllers lead in namespace tidegate-system: the allocator decides nothing" in demand
    )
    assert "tidegate doctor" not in demand
    assert "--system-namespace" not in demand
