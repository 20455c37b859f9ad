"""`tidegate xds status | dump | diff` against a running server with a real Envoy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from builders.loopback import on_loopback
from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Gateway, backend_of
from tidegate.main import app
from tidegate.routing import protos
from tidegate.xds import inspection
from tidegate.xds.report_server import add_inspection, build_contents_application, build_report_application
from tidegate.xds.resources import TypeUrl, XdsResource, content_hash


@asynccontextmanager
async def served(gateway: Gateway, *, contents: bool = False) -> AsyncGenerator[str]:
    """The address of the report, or of the contents, as the process serves it."""
    plane = gateway.control_plane
    application = build_report_application(plane.ledger)
    add_inspection(application, plane.cache, plane.server.proxy_states)
    if contents:
        application = build_contents_application(plane.cache)
    async with on_loopback(application) as address:
        yield address


async def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of `tidegate xds`."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["xds", *arguments])
    return result.exit_code, result.output


async def as_json(*arguments: str) -> Any:
    code, output = await run(*arguments, "-o", "json")
    assert code == 0, output
    return json.loads(output)


async def test_status_dump_and_diff_tell_what_a_change_was(gateway: Gateway) -> None:
    one = backend_of("one", await gateway.upstream("one"))
    await gateway.start(a_model_access(routes=[a_route("default", "one")]), one)
    async with served(gateway) as address:
        first = gateway.control_plane.cache.history[-1].revision
        weights = a_model_access(routes=[a_route("default", "one", timeout="3s")])
        snapshot = await gateway.control_plane.push(weights, one)

        (proxy,) = (await as_json("status", "--address", address))["proxies"]
        assert (proxy["node"], proxy["kind"], proxy["revision"]) == (
            "gateway-1",
            "gateway",
            snapshot.revision,
        )
        assert set(proxy["types"].values()) == {"SYNCED"}
        assert {"cluster", "endpoint", "listener", "scope"} <= set(proxy["types"])

        told = await as_json("diff", "--address", address)
        assert (told["from"], told["to"]) == (first, snapshot.revision)
        (change,) = told["changes"]["scope"]
        assert set(told["changes"]) == {"scope"}
        assert (change["name"], change["change"]) == ("access/ads/ctr", "changed")
        assert change["after"] == snapshot.resources[TypeUrl.SCOPE]["access/ads/ctr"].version
        assert (await as_json("dump", first[:8], "--address", address))["revision"] == first
        _, text = await run("dump", "--address", address)
        assert "inference/ads/one/grpc" in text

    async with served(gateway, contents=True) as address:
        named = ("--name", "access/ads/ctr", "--address", address)
        (change,) = (await as_json("diff", *named))["changes"]["scope"]
        assert "3s" in json.dumps(change["after"])
        assert "3s" not in json.dumps(change["before"])
        before = await as_json("dump", first[:8], *named)
        assert (before["revision"], set(before["resources"])) == (first, {"scope"})
        assert "3s" not in json.dumps(before)
        assert "3s" in json.dumps(await as_json("dump", *named))


async def test_the_report_shows_nobody_what_is_in_a_resource(gateway: Gateway) -> None:
    one = backend_of("one", await gateway.upstream("one"))
    await gateway.start(a_model_access(routes=[a_route("default", "one", timeout="7s")]), one)
    named = "?name=access/ads/ctr"
    async with served(gateway) as address, aiohttp.ClientSession() as session:
        for path in ("snapshots/current", f"snapshots/current{named}", f"diff{named}&from=current"):
            async with session.get(f"http://{address}/v1/{path}") as response:
                assert response.status == 200
                assert "content" not in await response.text()
    async with served(gateway, contents=True) as address, aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/v1/snapshots/current{named}") as response:
            assert "7s" in await response.text()
        async with session.get(f"http://{address}/v1/snapshots/current") as response:
            assert (await response.json())["resources"] == {}


async def test_a_proxy_that_refuses_is_shown_with_its_reason(gateway: Gateway) -> None:
    one = backend_of("one", await gateway.upstream("one"))
    await gateway.start(a_model_access(routes=[a_route("default", "one")]), one)
    good = gateway.control_plane.cache.history[-1]
    scope = good.resources[TypeUrl.SCOPE]["access/ads/ctr"]
    body = scope.body[:-3] + b"\xff\xff\xff"
    bad = replace(scope, body=body, version=content_hash([body]))
    scopes = good.resources[TypeUrl.SCOPE].with_changes({scope.name: bad})
    spoilt = replace(good, revision="spoilt", resources={**good.resources, TypeUrl.SCOPE: scopes})
    gateway.control_plane.cache.set(spoilt)

    async def refused() -> bool:
        return any(state.nack for state in gateway.control_plane.server.proxy_states())

    await eventually(refused, "the proxy refuses")
    async with served(gateway) as address:
        (proxy,) = (await as_json("status", "--address", address))["proxies"]
        assert proxy["types"]["scope"] == "NACKED"
        assert proxy["revision"] == good.revision
        assert proxy["nack"]
        _, text = await run("status", "--address", address)
        assert "refused:" in text


async def test_a_revision_that_nobody_keeps_is_an_error_with_a_way_out(gateway: Gateway) -> None:
    await gateway.start(a_model_access(), backend_of("ctr", await gateway.upstream("one")))
    async with served(gateway) as address:
        code, output = await run("dump", "0123456789", "--address", address)
        assert (code, "no such revision" in output) == (3, True)
        code, output = await run("diff", "--address", address)
        assert (code, "no such revision" in output) == (3, True)
    code, output = await run("status", "--address", address)
    assert (code, "no xDS server answers" in output) == (3, True)


@pytest.mark.parametrize("redacted", [True, False])
def test_secrets_are_named_and_not_shown(redacted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"name": "a", "alt_stat_name": "canary-of-a-secret"}
    body = protos.encode_any(
        "envoy.config.cluster.v3.Cluster", protos.encode("envoy.config.cluster.v3.Cluster", fields)
    )
    if redacted:
        monkeypatch.setattr(inspection, "REDACTED_TYPES", {TypeUrl.CLUSTER})
    shown = inspection.show_resource(TypeUrl.CLUSTER, XdsResource("a", "1", body))
    assert shown["name"] == "a"
    assert ("canary-of-a-secret" in json.dumps(shown)) is not redacted
