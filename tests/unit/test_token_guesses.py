"""How many tokens reach the API server, however many are guessed at once, and who else is let in meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pytest

from builders.waiting import eventually
from tidegate.errors import ApiUnavailableError
from tidegate.kube.client import KubeClient
from tidegate.web.access.tokens import TokenReviewer, TooManyTokensError


class Reviews:
    """The API server's reviews: a token that begins with `good` is ann's; an answer waits until the gate is open."""

    def __init__(self) -> None:
        self.count = self.under_way = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False

    async def post_review(self, _: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.count += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if self.broken:
            raise ApiUnavailableError("away")
        good = body["spec"]["token"].startswith("good")
        return {"status": {"authenticated": good, "user": {"username": "ann"}}}


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


@pytest.fixture
def tokens(reviews: Reviews) -> TokenReviewer:
    """Of a clock that stands still, so that nothing is given back with time."""
    return TokenReviewer(cast(KubeClient, reviews), lambda: 0.0)


async def outcome(tokens: TokenReviewer, token: str, address: str) -> str:
    try:
        return "refused" if await tokens.find_identity(token, address) is None else "let in"
    except TooManyTokensError:
        return "too many"
    except ApiUnavailableError:
        return "away"


async def test_parallel_guesses_of_one_address_are_slowed_down_as_those_one_after_the_other(
    tokens: TokenReviewer, reviews: Reviews
) -> None:
    outcomes = await asyncio.gather(*(outcome(tokens, f"guess-{n}", "10.0.0.1") for n in range(2_000)))
    assert Counter(outcomes) == {"refused": 10, "too many": 1_990}
    assert reviews.count == 10


async def test_who_guesses_from_many_addresses_locks_nobody_out(
    tokens: TokenReviewer, reviews: Reviews
) -> None:
    guesses = (
        outcome(tokens, f"guess-{n}-{host}", f"10.0.{host}.1") for host in range(200) for n in range(12)
    )
    *guessed, colleague = await asyncio.gather(*guesses, outcome(tokens, "good", "10.9.9.9"))
    assert colleague == "let in"
    assert Counter(guessed) == {"refused": 2_000, "too many": 400}
    assert reviews.most <= 16


async def test_a_colleague_waits_for_one_guess_of_each_address_and_one_who_was_here_for_none(
    tokens: TokenReviewer, reviews: Reviews
) -> None:
    assert await outcome(tokens, "good-before", "10.8.8.8") == "let in"
    reviews.gate.clear()
    guessing = [
        asyncio.create_task(outcome(tokens, f"guess-{n}-{host}", f"10.0.{host}.1"))
        for host in range(4)
        for n in range(10)
    ]
    await eventually(lambda: reviews.under_way == 16, what="16 reviews are under way")
    stranger = asyncio.create_task(outcome(tokens, "good-stranger", "10.9.9.9"))
    known = asyncio.create_task(outcome(tokens, "good-again", "10.8.8.8"))
    await eventually(lambda: reviews.under_way == 17, what="17 reviews are under way")
    reviews.gate.set()
    assert await known == await stranger == "let in"
    assert not all(guess.done() for guess in guessing)
    await asyncio.gather(*guessing)


async def test_many_with_good_tokens_behind_one_address_are_all_let_in_at_once(tokens: TokenReviewer) -> None:
    outcomes = await asyncio.gather(*(outcome(tokens, f"good-{n}", "127.0.0.1") for n in range(200)))
    assert Counter(outcomes) == {"let in": 200}


async def test_an_api_server_that_is_away_makes_nobody_a_guesser(
    tokens: TokenReviewer, reviews: Reviews
) -> None:
    reviews.broken = True
    outcomes = [await outcome(tokens, f"good-{n}", "10.0.0.1") for n in range(30)]
    assert Counter(outcomes) == {"away": 30}


async def test_a_site_of_ipv6_is_one_address(tokens: TokenReviewer) -> None:
    outcomes = [await outcome(tokens, f"guess-{n}", f"2001:db8::{n:x}") for n in range(30)]
    assert Counter(outcomes) == {"refused": 10, "too many": 20}


async def test_who_goes_away_while_waiting_leaves_their_turn_to_others(
    tokens: TokenReviewer, reviews: Reviews
) -> None:
    reviews.gate.clear()
    waiting = [asyncio.create_task(outcome(tokens, f"good-{n}", f"10.0.0.{n}")) for n in range(100)]
    await eventually(lambda: reviews.under_way == 16, what="16 reviews are under way")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    reviews.gate.set()
    outcomes = await asyncio.gather(*(outcome(tokens, f"good-{n}", "10.1.1.1") for n in range(100)))
    assert Counter(outcomes) == {"let in": 100}
