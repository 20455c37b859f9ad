"""What Envoy's own fetch of an issuer's keys does, which is why the xDS servers fetch them instead (ADR 24)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from builders.certificates import Authority
from builders.https_server import https_server
from builders.tokens import Issuer, base64url
from builders.waiting import eventually
from fixtures.envoy import Envoy

_V3 = "type.googleapis.com/envoy.extensions"
_NAME = "https://login.example.com"


def _config(port: int, authority: Path, *, ahead: bool) -> dict[str, Any]:
    """Two listeners like two accesses of one issuer: each checks tokens by keys from the address, and answers 200 itself."""
    place = {"uri": f"https://127.0.0.1:{port}/jwks.json", "cluster": "login", "timeout": "1s"}
    remote = {"cache_duration": "1s", **({"async_fetch": {"fast_listener": True}} if ahead else {})}
    provider = {"issuer": _NAME, "audiences": ["ads"], "remote_jwks": {"http_uri": place, **remote}}
    check = {
        "@type": f"{_V3}.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"issuer": provider},
        "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "issuer"}}],
    }
    router = {"@type": f"{_V3}.filters.http.router.v3.Router"}
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    manager = {
        "@type": f"{_V3}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "x",
        "route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [answer]}]},
        "http_filters": [
            {"name": "envoy.filters.http.jwt_authn", "typed_config": check},
            {"name": "envoy.filters.http.router", "typed_config": router},
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    trusted = {"validation_context": {"trusted_ca": {"filename": str(authority)}}}
    endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
    login = {
        "name": "login",
        "load_assignment": {"cluster_name": "login", "endpoints": [{"lb_endpoints": [endpoint]}]},
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_V3}.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": trusted,
            },
        },
    }
    listeners = [
        {
            "name": name,
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "filter_chains": [chain],
        }
        for name in ("gateway", "other")
    ]
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return {"admin": admin, "static_resources": {"listeners": listeners, "clusters": [login]}}


@contextlib.asynccontextmanager
async def fetching(
    folder: Path, keys: dict[str, Any], *, ahead: bool
) -> AsyncIterator[tuple[Envoy, contextlib.AsyncExitStack, list[float]]]:
    """A running Envoy, the issuer's server to be closed, and when it was asked."""
    asked: list[float] = []

    async def jwks(_: web.Request) -> web.Response:
        asked.append(time.monotonic())
        return web.json_response(keys)

    application = web.Application()
    application.router.add_get("/jwks.json", jwks)
    authority = Authority.make(folder / "login")
    envoy = Envoy(folder)
    async with contextlib.AsyncExitStack() as server:
        port = await server.enter_async_context(https_server(application, authority.issue("issuer")))
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(_config(port, authority.certificate, ahead=ahead)))
        try:
            await envoy._run(config)
            await envoy.listening()
            yield envoy, server, asked
        finally:
            envoy.stop()


async def asks(envoy: Envoy, token: str, listener: str = "gateway") -> tuple[int, str]:
    listeners = json.loads(await envoy.get_admin("/listeners?format=json"))["listener_statuses"]
    (port,) = (
        one["local_address"]["socket_address"]["port_value"] for one in listeners if one["name"] == listener
    )
    headers = {"authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/", headers=headers) as said,
    ):
        return said.status, await said.text()


@pytest.mark.slow(
    "it is code of Envoy that we do not use; test_xds_issuers.py has how our servers fetch keys"
)
@pytest.mark.parametrize("ahead", [False, True], ids=["when a call needs them", "ahead of calls"])
async def test_each_filter_fetches_for_itself_and_without_fetching_ahead_an_absent_issuer_shuts_everybody_out(
    tmp_path: Path, ahead: bool
) -> None:
    issuer = Issuer(_NAME)
    token = issuer.token(aud="ads")
    async with fetching(tmp_path, json.loads(Issuer.key_set(issuer)), ahead=ahead) as (envoy, server, asked):

        async def let_in() -> bool:
            return await asks(envoy, token) == (200, "") == await asks(envoy, token, "other")

        await eventually(let_in, "the token lets in at both")
        assert len(asked) >= 2
        await server.aclose()

        async def outlasted() -> bool:
            """Longer than the keys are kept, by the failures that Envoy counts when it asks ahead, or by what calls are told."""
            if ahead:
                return await envoy.stat("cluster.login.upstream_cx_connect_fail") > 1
            return (await asks(envoy, token))[0] == 401

        await eventually(outlasted, "the keys have come of age")
        expected = (200, "") if ahead else (401, "Jwks remote fetch is failed")
        assert await asks(envoy, token) == expected


async def test_a_symmetric_key_that_an_issuer_publishes_by_mistake_is_taken(tmp_path: Path) -> None:
    """Whoever reads it there can sign; the xDS servers refuse such a key set."""
    published = {"kty": "oct", "alg": "HS256", "k": base64url(b"secret")}
    parts = [
        {"alg": "HS256", "typ": "JWT"},
        {"iss": _NAME, "aud": "ads", "exp": int(time.time()) + 600},
    ]
    signed = ".".join(base64url(json.dumps(part).encode()) for part in parts)
    by = {key: hmac.new(key, signed.encode(), hashlib.sha256).digest() for key in (b"secret", b"another")}
    async with fetching(tmp_path, {"keys": [published]}, ahead=True) as (envoy, _, _):

        async def let_in() -> bool:
            return await asks(envoy, f"{signed}.{base64url(by[b'secret'])}") == (200, "")

        await eventually(let_in, "whoever knows the published key is let in")
        assert (await asks(envoy, f"{signed}.{base64url(by[b'another'])}"))[0] == 401
