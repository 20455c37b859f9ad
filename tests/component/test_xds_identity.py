"""Proxies and xDS server show each other certificates, on a real Envoy: who has none, or another's, is told nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from builders.certificates import Authority
from builders.model_access import a_model_access
from builders.waiting import eventually
from fixtures.envoy import Client, Envoy, Gateway, backend_of
from tidegate.routing.bootstrap import TlsFiles, build_sds_files
from tidegate.xds.identity import ServerCertificate, belongs_to_namespace, matches_node_id

CTR = (("x-tidegate-access", "ads/ctr"),)
NODE = "gateway-1.system"


def with_keys(envoy: Envoy, keys: Path) -> None:
    """Gives an Envoy what the chart does: keys in one folder, in another what names them."""
    folder = envoy.folder / "secrets"
    folder.mkdir()
    for name, content in build_sds_files(str(keys)).items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    envoy.tls = TlsFiles(str(keys), str(folder))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "authority")


async def secured(gateway: Gateway, authority: Authority, folder: Path) -> Client:
    """A gateway with a certificate for its namespace, in front of a model, running."""
    v1 = await gateway.upstream("v1")
    gateway.control_plane.certificate = ServerCertificate(
        authority.issue_into(folder / "server", "tidegate-xds")
    )
    gateway.envoy.node = NODE
    with_keys(gateway.envoy, authority.issue_into(folder / "gateway", "*.system"))
    return await gateway.start(a_model_access(), backend_of("ctr", v1))


def an_envoy(folder: Path, node: str, keys: Path | None) -> Envoy:
    folder.mkdir()
    envoy = Envoy(folder, node)
    if keys is not None:
        with_keys(envoy, keys)
    return envoy


@contextlib.asynccontextmanager
async def another(gateway: Gateway, folder: Path, node: str, keys: Path | None) -> AsyncIterator[Envoy]:
    """A second proxy, started and not waited for."""
    envoy = an_envoy(folder, node, keys)
    await envoy.begin(gateway.control_plane.port)
    try:
        yield envoy
    finally:
        envoy.stop()


def nodes(gateway: Gateway) -> list[str]:
    return [proxy.node for proxy in gateway.control_plane.ledger.build_report().proxies]


async def test_a_proxy_with_a_certificate_for_its_node_is_served(
    gateway: Gateway, authority: Authority, tmp_path: Path
) -> None:
    client = await secured(gateway, authority, tmp_path)
    assert await client.infer(metadata=CTR) == "v1"
    async with another(gateway, tmp_path / "two", "gateway-2.system", tmp_path / "gateway") as second:
        await second.listening()
        assert sorted(nodes(gateway)) == [NODE, "gateway-2.system"]


async def test_a_proxy_that_calls_itself_something_else_is_refused_and_counted(
    gateway: Gateway, authority: Authority, tmp_path: Path
) -> None:
    """Which names a certificate is for is a table below."""
    client = await secured(gateway, authority, tmp_path)
    plane = gateway.control_plane
    async with another(gateway, tmp_path / "two", "gateway-1.elsewhere", tmp_path / "gateway") as stranger:

        async def counted() -> bool:
            return plane.metric("tidegate_xds_refused_proxies_total") > 1

        await eventually(counted, "it is refused, and again when it comes back")
        assert await stranger.stat("listener_manager.lds.update_success") == 0
        assert "gateway" not in await stranger.get_admin("/listeners")
        assert nodes(gateway) == [NODE]
        # Nobody else notices.
        await plane.push(a_model_access(hosts=["x.com"]), backend_of("ctr"))
        assert plane.metric("tidegate_xds_nacks_total", type="cluster") == 0
        await client.rest("GET", "/v2/health/live", headers=dict(CTR))


async def test_a_proxy_without_a_certificate_of_ours_gets_nothing(
    gateway: Gateway, authority: Authority, tmp_path: Path
) -> None:
    await secured(gateway, authority, tmp_path)
    foreign = Authority.make(tmp_path / "foreign")
    # Each of the last two has a certificate that the server does not trust; the first of them trusts the server.
    trusting = foreign.issue_into(tmp_path / "trusting", "*.system")
    (trusting / "ca.crt").write_bytes(authority.certificate.read_bytes())
    for number, keys in enumerate((None, trusting, foreign.issue_into(tmp_path / "keys", "*.system"))):
        async with another(
            gateway, tmp_path / f"of-{number}", f"gateway-{number + 2}.system", keys
        ) as stranger:

            async def tried(stranger: Envoy = stranger) -> bool:
                return await stranger.stat("cluster.tidegate-xds.upstream_cx_total") > 1

            await eventually(tried, "it tries, and tries again")
            assert await stranger.stat("listener_manager.lds.update_success") == 0
            assert nodes(gateway) == [NODE]


async def test_certificates_are_replaced_without_a_restart_or_a_cut_stream(
    gateway: Gateway, authority: Authority, tmp_path: Path
) -> None:
    client = await secured(gateway, authority, tmp_path)
    later = Authority.make(tmp_path / "later")
    old_keys = authority.issue_into(tmp_path / "old", "*.system")
    later.issue_into(tmp_path / "server", "tidegate-xds")
    async with another(
        gateway, tmp_path / "two", "gateway-2.system", later.issue_into(tmp_path / "new", "*.system")
    ) as second:
        await second.listening()
        assert sorted(nodes(gateway)) == [NODE, "gateway-2.system"]
        async with another(gateway, tmp_path / "three", "gateway-3.system", old_keys) as third:

            async def tried() -> bool:
                return await third.stat("cluster.tidegate-xds.upstream_cx_total") > 1

            await eventually(tried, "the old one is refused")
            assert "gateway-3.system" not in nodes(gateway)
    assert await gateway.envoy.stat("cluster.tidegate-xds.upstream_cx_total") == 1
    assert await client.infer(metadata=CTR) == "v1"


@pytest.mark.parametrize(
    ("node", "names", "may"),
    [
        ("a.b", ["a.b"], True),
        ("b", ["*.b"], False),
        ("a.b", ["c.d", "*.b"], True),
        ("a.b.c", ["*.c"], False),
        ("a.b.c", ["*.b.c"], True),
        ("a.b", [], False),
        ("a.b", ["*"], False),
        ("a.b", ["*.*"], False),
        ("a", ["*."], False),
        (".b", ["*.b"], False),
        ("", [""], False),
        ("A.b", ["a.b"], False),
        ("*.b", ["*.b"], True),
    ],
)
def test_a_certificate_is_for_the_nodes_that_it_names(node: str, names: list[str], may: bool) -> None:
    assert matches_node_id(node, names) is may


@pytest.mark.parametrize(
    ("node", "namespace", "is_one"),
    [
        ("gateway-1.system", "system", True),
        ("gateway-1.elsewhere", "", True),
        ("gateway-1.elsewhere", "system", False),
        # A certificate for *.y.system says that it may.
        ("x.y.system", "system", False),
        ("x.y.system", "y.system", True),
        ("system", "system", False),
    ],
)
def test_a_node_is_of_the_namespace_after_its_first_dot(node: str, namespace: str, is_one: bool) -> None:
    assert belongs_to_namespace(node, namespace) is is_one


def test_it_says_when_the_newest_certificate_in_its_folder_ends(authority: Authority, tmp_path: Path) -> None:
    served = ServerCertificate(authority.issue_into(tmp_path / "server", "tidegate-xds"))
    first = served.expires_at()
    assert first > time.time()
    newer = authority.pair("tidegate-xds", lasting=timedelta(days=9))
    (tmp_path / "server" / "tls.crt").write_bytes(newer.chain)
    assert served.expires_at() > first + 7 * 86_400
    (tmp_path / "server" / "tls.crt").write_bytes(b"nothing that can be read")
    assert served.expires_at() == 0
