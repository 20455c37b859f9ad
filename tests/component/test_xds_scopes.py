"""Scoped routes in a real Envoy: a change of one access is that access alone, and hosts lead to the same routes as the header."""

from __future__ import annotations

from typing import Any

from builders.model_access import a_model_access, a_route
from fixtures.envoy import Gateway, Load, backend_of

CTR = (("x-tidegate-access", "ads/ctr"),)
INFER = "/v2/models/ctr/infer"


async def received(gateway: Gateway) -> int:
    """Bytes from the xDS server so far."""
    return await gateway.envoy.stat("cluster.tidegate-xds.upstream_cx_rx_bytes_total")


async def test_a_change_of_one_access_sends_that_access_alone(gateway: Gateway) -> None:
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    backends = [backend_of("one", one), backend_of("other", other)]
    others = [a_model_access(f"a{number}", routes=[a_route("default", "one")]) for number in range(50)]
    client = await gateway.start(a_model_access(routes=[a_route("default", "one")]), *others, *backends)
    assert await client.infer(metadata=CTR) == "one"
    before = await received(gateway)
    assert before > 30_000  # all fifty-one
    await gateway.control_plane.push(
        a_model_access(routes=[a_route("default", "other")], metadata={"generation": 2}), *others, *backends
    )
    assert await client.infer(metadata=CTR) == "other"
    assert 0 < await received(gateway) - before < 3_000


async def test_a_host_and_the_header_share_one_rate_limit(gateway: Gateway) -> None:
    protection = {"rateLimit": {"requests": 2, "per": "1m"}}
    client = await gateway.start(
        a_model_access(hosts=["ctr.example.com"], protection=protection),
        a_model_access("free"),
        backend_of("ctr", await gateway.upstream("v1")),
    )
    named = {"x-tidegate-access": "ads/ctr"}
    statuses = [
        (await client.rest("POST", INFER, headers=headers, body=b"{}"))[0]
        for headers in (named, {"host": "ctr.example.com"}, {"host": "ctr.ads.tidegate"}, named)
    ]
    assert statuses == [200, 200, 429, 429]
    free = [await client.rest("POST", INFER, headers={"host": "free.ads.tidegate"}) for _ in range(3)]
    assert [status for status, _, _ in free] == [200, 200, 200]


async def test_an_empty_header_counts_as_none(gateway: Gateway) -> None:
    client = await gateway.start(a_model_access(), backend_of("ctr", await gateway.upstream("v1")))
    for header in ("x-tidegate-access", "x-tidegate-features"):
        for value, expected in (("", 200), ("ads/none", 404)):
            headers = {"host": "ctr.ads.tidegate", header: value}
            assert (await client.rest("POST", INFER, headers=headers, body=b"{}"))[0] == expected


async def test_a_host_that_moves_to_another_access_loses_nothing(gateway: Gateway) -> None:
    one, other = await gateway.upstream("one"), await gateway.upstream("other")
    backends = [backend_of("one", one), backend_of("other", other)]
    host = "shared.example.com"

    def fleet(owner: str) -> list[Any]:
        return [
            *(
                a_model_access(name, routes=[a_route("default", name)], hosts=[host] if name == owner else [])
                for name in ("one", "other")
            ),
            *backends,
        ]

    client = await gateway.start(*fleet("one"))
    load = Load(client, (("x-tidegate-access", "ads/one"),))
    answers = []
    async with load.running(workers=1):
        for turn in range(20):
            await gateway.control_plane.push(*fleet(("other", "one")[turn % 2]))
            status, body, _ = await client.rest("POST", INFER, headers={"host": host}, body=b"{}")
            answers.append((status, '"other"' in body))
    assert load.errors == []
    assert answers == [(200, turn % 2 == 0) for turn in range(20)]


async def test_an_access_that_is_deleted_is_not_found_by_either_name(gateway: Gateway) -> None:
    backend = backend_of("ctr", await gateway.upstream("v1"))
    client = await gateway.start(a_model_access(), a_model_access("gone"), backend)
    headers = ({"x-tidegate-access": "ads/gone"}, {"host": "gone.ads.tidegate"})
    assert [(await client.rest("POST", INFER, headers=one))[0] for one in headers] == [200, 200]
    await gateway.control_plane.push(a_model_access(), backend)
    assert [(await client.rest("POST", INFER, headers=one))[0] for one in headers] == [404, 404]
