"""The REST API against its own OpenAPI: whatever is sent, it answers as it says it does, and never fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from builders.waiting import LONGEST_S
from fixtures.app_server import served
from fixtures.dashboard import Dashboard, a_dashboard
from tidegate.web.app import create_app

if TYPE_CHECKING:
    from tidegate.web.app_state import AppState

# What fits the description may be refused all the same: a hold of what is not there is answered with 400.
_NOT_ASKED = [positive_data_acceptance]


@dataclass(frozen=True)
class Served:
    """The application in a thread of its own: schemathesis asks without an event loop."""

    address: str
    dashboard: Dashboard


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    found: list[Served] = []
    ready, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with a_dashboard() as dashboard:
            dashboard.show_fleet()
            async with served(dashboard.app) as address:
                found.append(Served(address, dashboard))
                ready.set()
                await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(LONGEST_S)
    yield found[0]
    ended.set()
    thread.join(LONGEST_S)
    assert not thread.is_alive()


def operations() -> Mapping[str, Any]:
    """All that the API says it can do, but for the stream of events, which does not end."""
    described = create_app(cast("AppState", None), ()).openapi()
    found = schemathesis.openapi.from_dict(described).exclude(path="/api/v1/events").get_all_operations()
    return {f"{one.ok().method.upper()} {one.ok().path}": one.ok() for one in found}


OPERATIONS = operations()


@pytest.mark.parametrize(
    "examples", [10, pytest.param(40, marks=pytest.mark.slow("ten examples of each are always tried"))]
)
@pytest.mark.parametrize("name", OPERATIONS)
def test_it_answers_as_it_says(api: Served, name: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=OPERATIONS[name].as_strategy())
    def tried(case: Any) -> None:
        case.call_and_validate(
            base_url=api.address,
            headers={"Authorization": "Bearer token-of-ann"},
            excluded_checks=_NOT_ASKED,
            timeout=20,
        )

    tried()
