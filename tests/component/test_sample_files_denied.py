"""Files of samples at a store that answers and does not let us write: its own problem, not one of the network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from aiohttp import web

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.samples.buffer import BufferedRecord, Portion
from tidegate_dataplane.agent.samples.file_sink import FileSampleSink
from tidegate_dataplane.agent.samples.lines import SampleOrigin
from tidegate_dataplane.agent.samples.sink import SinkError
from tidegate_dataplane.contract import SampleProblem
from tidegate_dataplane.sampling.frames import SampleRecord


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[str]:
    """The address of a store whose buckets are named by the status that it answers with."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=int(request.path.split("/")[1][-3:]))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def write(where: str, keys: dict[str, str]) -> None:
    uri = parse_uri(where)
    sink = FileSampleSink(
        uri,
        SampleOrigin("ads/ctr", "ctr-0"),
        lambda: ObjectSource(
            uri, SecretCredentials("writer", keys), allow_loopback=True, stall_timeout_s=5.0
        ),
        Portion(1, 1, 1.0),
        now=lambda: datetime(2026, 1, 2, 3, tzinfo=UTC),
    )
    await sink.write(
        [BufferedRecord(SampleRecord("r-1", True, "ctr", "3", 1.0, (), ()), 1, 0.0, lambda: None)]
    )


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize(
    ("status", "problem", "said"),
    [
        (403, SampleProblem.SINK_REFUSED, "may not be written: it does not accept the credentials"),
        (401, SampleProblem.SINK_REFUSED, "may not be written: it does not accept the credentials"),
        (503, SampleProblem.SINK_UNREACHABLE, "cannot be written"),
    ],
)
async def test_a_permission_that_is_missing_is_refused_and_not_unreachable(
    endpoint: str, scheme: str, status: int, problem: SampleProblem, said: str
) -> None:
    keys = {"AWS_ENDPOINT_URL": endpoint, "GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": "of-a-writer"}
    with pytest.raises(SinkError, match=said) as caught:
        await write(f"{scheme}://bucket-{status}/log", keys)
    assert caught.value.problem is problem


async def test_without_an_identity_nothing_is_written_to_gs_as_the_node(endpoint: str) -> None:
    said = r"bucket-500/log/.* may not be written: Secret writer .* neither GOOGLE_SERVICE_ACCOUNT_KEY nor"
    with pytest.raises(SinkError, match=said) as caught:
        await write("gs://bucket-500/log", {"GOOGLE_BASE_URL": endpoint})
    assert caught.value.problem is SampleProblem.SINK_REFUSED
