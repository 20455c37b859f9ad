"""The dashboard's application: what it shows to whom, in which order, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest

from builders.inference import an_inference
from builders.model_access import a_model_access
from fixtures.dashboard import Dashboard
from tidegate.web.access.identity import Identity
from tidegate.web.api import stream_events
from tidegate.web.request_context import RequestContext

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AllReplicasReady",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def shown(dashboard: Dashboard) -> Dashboard:
    """A fleet of two Inferences, one of them well, and one ModelAccess."""
    fine = an_inference(
        "fine",
        status={"observedGeneration": 1, "conditions": [READY], "versions": {"serving": "3", "target": "3"}},
    )
    dashboard.put(fine, an_inference("zz"), a_model_access())
    return dashboard


async def test_worst_objects_come_first_with_their_traffic(shown: Dashboard) -> None:
    async with shown.browser() as browser:
        found = (await browser.get("/api/v1/rows/inferences")).json()

    assert [row["name"] for row in found["items"]] == ["zz", "fine"]
    assert (found["total"], found["notWell"]) == (2, 1)
    fine = found["items"][1]
    assert (fine["detail"], fine["requestsPerSecond"], fine["latencyP99Ms"]) == ("version 3", 13.0, 8.0)


async def test_an_object_is_as_the_api_server_has_it(shown: Dashboard) -> None:
    async with shown.browser() as browser:
        found = await browser.get("/api/v1/inferences/ads/fine")
        missing = await browser.get("/api/v1/inferences/ads/gone")
        unknown = await browser.get("/api/v1/pods/ads/gone")

    assert (found.json()["kind"], found.json()["metadata"]["name"]) == ("Inference", "fine")
    assert missing.status_code == 404
    assert "there is no ads/gone among the inferences" in missing.json()["detail"]
    assert unknown.status_code == 422


@pytest.mark.parametrize(
    "path", ["/", "/list/inferences", "/inferences/ads/fine", "/decisions", "/overrides"]
)
async def test_pages_are_shown_to_those_who_are_known(shown: Dashboard, path: str) -> None:
    async with shown.browser() as browser:
        page = await browser.get(path)
    async with shown.browser(token="") as stranger:
        sent = await stranger.get(path)

    assert page.status_code == 200, page.text
    assert "ann" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    assert (sent.status_code, sent.headers["location"][:14]) == (303, "/sign-in?next=")


async def test_the_api_tells_strangers_how_to_come_in(shown: Dashboard) -> None:
    async with shown.browser(token="of-nobody") as stranger:
        refused = await stranger.get("/api/v1/rows/inferences")

    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "kubectl create token" in refused.json()["detail"]


async def test_somebody_without_rights_is_told_which_one_is_missing(shown: Dashboard) -> None:
    shown.allowed.verbs["bob"] = frozenset()

    async with shown.browser("token-of-bob") as bob:
        page = await bob.get("/")
        told = await bob.get("/api/v1/inferences/ads/fine")

    assert (page.status_code, told.status_code) == (403, 403)
    assert "user bob may not get inferences.tidegate.io fine in namespace ads" in told.json()["detail"]


async def test_somebody_sees_the_namespaces_that_they_may_list(shown: Dashboard) -> None:
    shown.put(an_inference("theirs", namespace="feeds"))
    shown.allowed.namespaces["bob"] = frozenset({"feeds"})

    async with shown.browser("token-of-bob") as bob:
        found = (await bob.get("/api/v1/rows/inferences")).json()
        page = await bob.get("/list/inferences")

    assert [row["name"] for row in found["items"]] == ["theirs"]
    assert found["total"] == 1
    assert "fine" not in page.text


async def test_an_override_is_made_in_the_name_of_who_asks_for_it(shown: Dashboard) -> None:
    wanted = {"namespace": "ads", "name": "fine", "action": "hold", "reason": "a sale", "lasting": "30m"}

    async with shown.browser() as ann, shown.browser("token-of-bob") as bob:
        refused = await bob.post("/api/v1/overrides", json=wanted)
        asked = await ann.post("/api/v1/overrides", json=wanted)

    assert refused.status_code == 403
    assert "may not create computeoverrides" in refused.json()["detail"]
    # The API server of this test has no Inference: it is asked for it, and in her name.
    assert asked.status_code == 400
    assert 'Inference "fine" not found in namespace "ads"' in asked.json()["detail"]


async def test_tokens_are_reviewed_once_a_minute_and_guessing_is_slowed_down(shown: Dashboard) -> None:
    async with shown.browser() as ann:
        for _ in range(5):
            await ann.get("/api/v1/me")
    assert shown.allowed.reviews == 1

    answers = []
    for number in range(30):
        async with shown.browser(f"guess-{number}") as stranger:
            answers.append((await stranger.get("/api/v1/me")).status_code)

    assert answers.count(429) > 15
    assert shown.allowed.reviews < 15


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost:8080"}, 200),
        ({"host": "localhost:8080", "x-forwarded-host": "evil.example"}, 200),
    ],
    ids=["another-name", "own-name", "a-proxy-says-another"],
)
async def test_another_name_is_refused(shown: Dashboard, headers: dict[str, str], status: int) -> None:
    async with shown.browser() as browser:
        assert (await browser.get("/api/v1/me", headers=headers)).status_code == status


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
    ids=["origin", "no-origin", "fetch-site"],
)
async def test_what_another_site_makes_a_browser_do_is_refused(
    shown: Dashboard, headers: dict[str, str]
) -> None:
    async with shown.browser() as browser:
        answer = await browser.post("/api/v1/plan", json={"pool": "a"}, headers=headers)

    assert answer.status_code == 403
    assert "another site" in answer.json()["detail"]


async def test_signing_in_leaves_a_sealed_cookie_and_forms_need_their_proof(shown: Dashboard) -> None:
    async with shown.browser(token="") as browser:
        wrong = await browser.post("/sign-in", data={"token": "of-nobody"})
        signed_in = await browser.post("/sign-in", data={"token": "token-of-ann", "next": "//evil.example"})
        page = await browser.get("/overrides")
        forged = await browser.post("/overrides/confirm", data={"csrf": "0" * 64, "name": "fine"})

    assert wrong.status_code == 401
    cookie = signed_in.headers["set-cookie"]
    assert signed_in.headers["location"] == "/"
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "token-of-ann" not in cookie
    assert page.status_code == 200
    assert forged.status_code == 400
    assert "of an earlier session" in forged.text


async def test_a_cookie_of_another_installation_lets_nobody_in(shown: Dashboard) -> None:
    from cryptography.fernet import Fernet

    from tidegate.web.access.sessions import SessionSeal

    forged = SessionSeal(Fernet.generate_key()).seal_token("token-of-ann")
    async with shown.browser(token="", cookie=f"{shown.parts.seal.cookie_name}={forged}") as browser:
        answer = await browser.get("/api/v1/me")

    assert answer.status_code == 401


async def test_a_page_hears_of_a_change_of_what_it_shows(shown: Dashboard) -> None:
    heard = shown.parts.changes.subscribe(["inferences/ads/fine"])
    first = anext(heard)
    waiting = asyncio.ensure_future(first)
    await asyncio.sleep(0)
    shown.put(an_inference("other"))
    fine = an_inference(
        "fine",
        status={"observedGeneration": 1, "conditions": [READY], "versions": {"serving": "4", "target": "4"}},
    )
    shown.put(fine)

    assert await asyncio.wait_for(waiting, 60) == {"inferences/ads/fine"}
    await heard.aclose()
    assert shown.parts.changes.subscriber_count == 0


async def test_who_has_many_pages_open_keeps_nobody_else_from_theirs(shown: Dashboard) -> None:
    changes = shown.parts.changes
    open_pages = [changes.subscribe(["inferences"], user="ann") for _ in range(100)]
    reading = [asyncio.ensure_future(anext(page)) for page in open_pages]
    await asyncio.sleep(0)
    assert (changes.count_subscribers("ann"), changes.count_subscribers("bob")) == (100, 0)

    async with shown.browser() as ann:
        answer = await ann.get("/api/v1/events", params={"topic": "inferences"})
    bob = RequestContext(Identity("bob", (), "token-of-bob"), shown.parts, "")
    assert (answer.status_code, "100 pages of ann" in answer.json()["detail"]) == (503, True)
    assert (await stream_events(bob, ["traffic"])).status_code == 200

    shown.put(an_inference("fine"))
    await asyncio.wait_for(asyncio.gather(*reading), 60)
    for page in open_pages:
        await page.aclose()


async def test_a_page_hears_what_has_changed_before_it_listened(shown: Dashboard) -> None:
    shown.put(an_inference("other"))
    since = shown.parts.changes.position
    shown.put(an_inference("fine", status={"observedGeneration": 1, "conditions": [READY]}))
    topics = ["inferences/ads/fine", "inferences/ads/other", "modelaccesses"]

    async def first(since: str) -> frozenset[str]:
        heard = shown.parts.changes.subscribe(topics, since)
        try:
            async with asyncio.timeout(0.2):
                return await anext(heard)
        except TimeoutError:
            return frozenset()
        finally:
            await heard.aclose()

    assert await first(since) == {"inferences/ads/fine"}
    assert await first(shown.parts.changes.position) == frozenset()
    assert await first("of-another-process") == frozenset(topics)


async def test_topics_that_changed_long_ago_are_told_rather_than_kept(shown: Dashboard) -> None:
    since = shown.parts.changes.position
    shown.put(an_inference("fine", status={"observedGeneration": 1, "conditions": [READY]}))
    for number in range(5_000):
        shown.parts.changes.publish(f"computepools/{number}")

    heard = shown.parts.changes.subscribe(["inferences/ads/fine"], since)
    assert await asyncio.wait_for(anext(heard), 60) == {"inferences/ads/fine"}
    await heard.aclose()


async def test_many_who_are_known_share_an_address_and_are_not_taken_for_guessers(shown: Dashboard) -> None:
    for number in range(60):
        shown.allowed.users[f"token-{number}"] = "ann"
    for _ in range(2):
        for number in range(60):
            async with shown.browser(f"token-{number}") as browser:
                assert (await browser.get("/api/v1/me")).status_code == 200


async def test_one_page_that_asks_several_things_asks_once_whose_token_it_is(shown: Dashboard) -> None:
    async with shown.browser() as browser:
        answers = await asyncio.gather(*(browser.get("/api/v1/me") for _ in range(10)))

    assert [each.status_code for each in answers] == [200] * 10
    assert shown.allowed.reviews == 1


@pytest.mark.parametrize(
    ("path", "resources", "status"),
    [
        ("/api/v1/computepools/cpu-a/why", {"computepools"}, 403),
        ("/api/v1/computepools/cpu-a/power", {"computepools"}, 403),
        ("/computepools/cpu-a", {"computepools"}, 403),
        ("/api/v1/history", {"computepools", "inferences"}, 403),
        ("/api/v1/inferences/ads/din/why", {"inferences"}, 403),
        ("/overrides", {"computepools", "allocationdecisions"}, 403),
        ("/api/v1/computepools/cpu-a/why", {"computepools", "allocationdecisions"}, 200),
    ],
)
async def test_nothing_is_shown_beside_what_somebody_may_see(
    dashboard: Dashboard, path: str, resources: set[str], status: int
) -> None:
    dashboard.show_fleet()
    dashboard.allowed.resources["bob"] = frozenset(resources)
    async with dashboard.browser("token-of-bob") as bob:
        assert (await bob.get(path)).status_code == status


async def test_overrides_and_names_of_pods_are_left_out_for_those_who_may_not_list_them(
    dashboard: Dashboard,
) -> None:
    dashboard.show_fleet()
    dashboard.allowed.resources["bob"] = frozenset({"computepools", "allocationdecisions", "inferences"})
    async with dashboard.browser("token-of-bob") as bob, dashboard.browser() as ann:
        for path in ("/api/v1/inferences/ads/din/why", "/inferences/ads/din", "/computepools/cpu-a"):
            theirs, hers = await bob.get(path), await ann.get(path)
            assert (theirs.status_code, hers.status_code) == (200, 200)
            assert "the sale" not in theirs.text
            assert "din-1" not in theirs.text
        power = (await bob.get("/api/v1/computepools/cpu-a/power")).json()
        assert sum(node["used"] for node in power["nodes"]) == 40
        assert {slot["pod"] for node in power["nodes"] for slot in node["slots"]} == {""}
        assert "the sale" in (await ann.get("/inferences/ads/din")).text
        assert "din-1" in (await ann.get("/computepools/cpu-a")).text


async def test_a_new_namespace_without_objects_is_an_empty_list_and_no_refusal(shown: Dashboard) -> None:
    shown.allowed.namespaces["bob"] = frozenset({"fresh"})
    async with shown.browser("token-of-bob") as bob:
        assert (await bob.get("/list/inferences", params={"namespace": "fresh"})).status_code == 200
        assert (await bob.get("/list/inferences", params={"namespace": "ads"})).status_code == 403


async def test_signing_out_takes_the_cookie_away_even_of_a_token_that_has_ended(shown: Dashboard) -> None:
    async with shown.browser(token="") as browser:
        await browser.post("/sign-in", data={"token": "token-of-ann"})
        shown.allowed.users.clear()
        out = await browser.post("/sign-out")

    assert out.status_code == 303
    assert "Max-Age=0" in out.headers["set-cookie"]
