"""`tidegate xds serve` as a real process against a real API server: what it sends follows the objects, and it ends in good order."""

from __future__ import annotations

import base64
import http.server
import json
import signal
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from builders.certificates import Authority, Pair
from builders.http_call import read_page
from builders.inference import inference_body
from builders.metrics_page import listed, metric, shown
from builders.model_access import a_route, model_access_body
from builders.tokens import Issuer
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl, a_namespace
from fixtures.processes import SYSTEM_NAMESPACE
from fixtures.xds_process import Stream, Xds, fresh, xds
from tidegate.api.reasons import Reason
from tidegate.xds.resources import TypeUrl


@dataclass(frozen=True, slots=True)
class Served:
    """One server for several tests, which have their own namespaces and read what it has logged since they began."""

    xds: Xds
    channel: grpc.Channel
    with_keys: str
    """The namespace whose Secrets with keys it may read."""

    @property
    def logged(self) -> str:
        return self.xds.log.read_text()

    def programmed(self, namespace: str) -> list[tuple[str, str]]:
        return reported(self.xds.report_port, namespace)


@pytest.fixture(scope="module")
def served(
    kubectl: Kubectl, kubeconfig: Path, crds: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server that reads keys of a namespace, and certificates of its own."""
    del crds
    kubectl.run("create", "namespace", SYSTEM_NAMESPACE)
    with a_namespace(kubectl, __name__) as with_keys:
        settings = {
            # The second namespace does not exist; that keeps nobody waiting.
            "auth_namespaces": json.dumps([with_keys, f"{with_keys}-never"]),
            "gateway_tls_secrets": json.dumps(["front"]),
            "gateway_client_authority": "clients",
            "log_level": "debug",
        }
        with xds(kubeconfig, tmp_path_factory.mktemp("xds"), **settings) as (running, channel):
            yield Served(running, channel, with_keys)


def test_what_a_proxy_gets_follows_the_objects(kubectl: Kubectl, served: Served, namespace: str) -> None:
    kubectl("apply", "-f", "-", stdin=fresh(inference_body("one", namespace)))
    clusters, routes = Stream(served.channel, TypeUrl.CLUSTER), Stream(served.channel, TypeUrl.SCOPE)
    cluster, host = f"inference/{namespace}/one/grpc", f"access/{namespace}/ctr"
    clusters.until("the cluster is there", lambda found: cluster in found)
    assert host not in routes.next()

    access = model_access_body("ctr", namespace, routes=[a_route("default", "one")])
    kubectl("apply", "-f", "-", stdin=fresh(access))
    routes.until("the access is routed", lambda found: host in found)

    kubectl("delete", "inference", "one", "-n", namespace)
    clusters.until("the cluster is gone", lambda found: cluster not in found)
    kubectl("delete", "modelaccess", "ctr", "-n", namespace)
    routes.until("the access is gone", lambda found: host not in found)


def test_the_page_of_metrics_shows_what_the_reference_lists_and_that_nothing_is_written(
    served: Served,
) -> None:
    page = served.xds.metrics()
    assert shown(page) == listed("xDS servers")
    assert metric(page, "tidegate_xds_snapshot_timestamp_seconds") > 1e9
    assert metric(page, "tidegate_api_writes_total") == 0
    # It has made snapshots, and nobody has said where spans go.
    assert metric(page, "tidegate_spans_exported_total") == 0


def test_a_process_that_is_told_to_stop_ends_its_streams_in_good_order(
    kubectl: Kubectl, kubeconfig: Path, crds: None, tmp_path: Path
) -> None:
    del kubectl, crds
    with xds(kubeconfig, tmp_path) as (running, channel):
        stream = Stream(channel, TypeUrl.LISTENER)
        assert stream.next()
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(StopIteration):
            stream.next()
        assert stream.call.code() is grpc.StatusCode.OK
        wait_until(lambda: running.process.poll() is not None, what="the process has ended")
        assert running.process.returncode == 0


@pytest.mark.slow("the control of the test before, with a process of its own")
def test_a_process_that_is_killed_does_not(
    kubectl: Kubectl, kubeconfig: Path, crds: None, tmp_path: Path
) -> None:
    """The control."""
    del kubectl, crds
    with xds(kubeconfig, tmp_path) as (running, channel):
        stream = Stream(channel, TypeUrl.LISTENER)
        assert stream.next()
        running.process.kill()
        with pytest.raises(grpc.RpcError):
            stream.next()


def test_content_is_told_on_one_address_of_loopback_and_names_on_all(
    kubectl: Kubectl, served: Served, namespace: str
) -> None:
    kubectl("apply", "-f", "-", stdin=fresh(inference_body("one", namespace)))
    access = model_access_body("ctr", namespace, routes=[a_route("default", "one")])
    kubectl("apply", "-f", "-", stdin=fresh(access))
    name = f"access/{namespace}/ctr"
    Stream(served.channel, TypeUrl.SCOPE).until("the access is routed", lambda found: name in found)

    def told(host: str, port: int) -> Any:
        url = f"http://{host}:{port}/v1/snapshots/current?name={name}"
        return json.loads(read_page(url))["resources"]["scope"]

    assert told("127.0.0.1", served.xds.contents_port)[0]["content"]["name"] == name
    # 127.0.0.2 stands for every other address that the process could have: it answers there where it listens on all.
    assert {"name", "version"} == set(told("127.0.0.2", served.xds.report_port)[0])
    with pytest.raises(urllib.error.URLError, match="refused"):
        told("127.0.0.2", served.xds.contents_port)


def secret(name: str, namespace: str, **entries: str) -> str:
    # Not stringData: what is taken out of that stays in the Secret.
    data = {who: base64.b64encode(value.encode()).decode() for who, value in entries.items()}
    metadata = {"name": name, "namespace": namespace, "labels": {"tidegate.io/auth": "gateway"}}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def holders(scope: dict[str, Any]) -> list[str]:
    """Who is let in to an access by a key."""
    (host,) = scope["route_configuration"]["virtual_hosts"]
    check = host.get("typed_per_filter_config", {}).get("envoy.filters.http.api_key_auth", {})
    return [one["client"] for one in check.get("credentials", ())]


def reported(report_port: int, namespace: str) -> list[tuple[str, str]]:
    """What the report says of callers in this namespace: object and reason. Those of a test before may not be gone."""
    page = read_page(f"http://127.0.0.1:{report_port}/v2/programmed")
    refusals = [(one["host"], one["reason"]) for one in json.loads(page)["refusals"]]
    return [one for one in refusals if one[0].startswith(f"access/{namespace}/")]


@pytest.mark.produces(Reason.CREDENTIALS_NOT_READABLE, Reason.CREDENTIALS_INVALID)
def test_keys_follow_their_secret_and_are_in_no_log(kubectl: Kubectl, served: Served) -> None:
    namespace, apply = served.with_keys, partial(kubectl, "apply", "-f", "-")
    apply(stdin=fresh(inference_body("one", namespace)))
    keyed: dict[str, Any] = {
        "auth": {"apiKeys": {"secret": "callers"}},
        "routes": [a_route("default", "one")],
    }
    apply(stdin=fresh(model_access_body("ctr", namespace, **keyed)))
    host = f"access/{namespace}/ctr"
    routes = Stream(served.channel, TypeUrl.SCOPE)
    routes.until("nobody is let in", lambda found: host in found and not holders(found[host]))
    assert served.programmed(namespace) == [(host, Reason.CREDENTIALS_NOT_READABLE)]

    def follow(what: str, expected: list[str], *reasons: Reason) -> None:
        routes.until(what, lambda found: holders(found[host]) == expected)
        assert served.programmed(namespace) == [(host, reason) for reason in reasons]

    apply(stdin=secret("callers", namespace, alice="canary-0123456789", bob="canary-9876543210"))
    follow("two are let in", ["alice", "bob"])
    apply(stdin=secret("callers", namespace, alice="canary-0123456789"))
    follow("one is taken back", ["alice"])
    apply(stdin=secret("callers", namespace, alice="canary-0123456789", eve="canary-1"))
    wait_until(
        lambda: served.programmed(namespace) == [(host, Reason.CREDENTIALS_INVALID)],
        what="an unfit one is left out",
    )
    kubectl("label", "secret", "callers", "-n", namespace, "tidegate.io/auth-")
    follow("a Secret that is not for us is not read", [], Reason.CREDENTIALS_NOT_READABLE)
    assert served.logged
    for canary in ("canary-", base64.b64encode(b"canary").decode()):
        assert canary not in served.logged
    kubectl("delete", "modelaccess", "ctr", "-n", namespace)


class Login:
    """The web server of a token issuer on loopback, which publishes the keys of `issuer`."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.make(folder)
        self.issuer = Issuer("https://login.example.com")
        login = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = Issuer.key_set(login.issuer)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  silent
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.authority.issue("login"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Login:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_keys_from_an_address_are_there_with_the_first_routes_and_where_not_the_report_says_why(
    kubectl: Kubectl, kubeconfig: Path, crds: None, namespace: str, tmp_path: Path
) -> None:
    del crds
    kubectl("apply", "-f", "-", stdin=fresh(inference_body("one", namespace)))
    with Login(tmp_path / "login") as login:

        def access(name: str, host: str) -> None:
            jwt = {
                "issuer": login.issuer.name,
                "audiences": ["ads"],
                "jwksUri": f"https://{host}/jwks.json",
            }
            body = model_access_body(name, namespace, auth={"jwt": jwt}, routes=[a_route("default", "one")])
            kubectl("apply", "-f", "-", stdin=fresh(body))

        access("listed", login.host)
        access("unlisted", "127.0.0.1:1")
        listed, unlisted = f"access/{namespace}/listed", f"access/{namespace}/unlisted"
        settings = {
            "jwks_hosts": json.dumps([login.host]),
            "jwks_authorities": str(login.authority.certificate),
        }
        with xds(kubeconfig, tmp_path, **settings) as (running, channel):
            first = Stream(channel, TypeUrl.SCOPE).next()
            assert login.issuer.key_id in json.dumps(first[listed])
            assert login.issuer.key_id not in json.dumps(first[unlisted])
            assert reported(running.report_port, namespace) == [(unlisted, Reason.CREDENTIALS_NOT_READABLE)]
            # One that comes later is asked for when it comes.
            access("unlisted", login.host)
            wait_until(lambda: reported(running.report_port, namespace) == [], what="it is open")


def tls_secret(pair: Pair) -> str:
    data = {"tls.crt": pair.chain, "tls.key": pair.key}
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    metadata = {"name": "front", "namespace": SYSTEM_NAMESPACE}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded})


def test_certificates_of_the_tls_port_follow_their_secret(
    kubectl: Kubectl, served: Served, tmp_path: Path
) -> None:
    authority = Authority.make(tmp_path / "authority")
    first, second, expired = (
        authority.pair("ctr.example.com", lasting=timedelta(hours=hours)) for hours in (1, 2, -1)
    )
    apply = partial(kubectl, "apply", "-f", "-")
    before = unusable(served, "front")
    apply(stdin=tls_secret(first))
    secrets = Stream(served.channel, TypeUrl.SECRET, ["certificate/front"])

    def chain(found: dict[str, Any]) -> bytes:
        return base64.b64decode(
            found["certificate/front"]["tls_certificate"]["certificate_chain"]["inline_bytes"]
        )

    def usable() -> bool:
        line = 'tidegate_xds_gateway_secret_usable{role="certificate",secret="front"} 1.0'
        return line in served.xds.metrics()

    def problem() -> str | None:
        url = f"http://127.0.0.1:{served.xds.report_port}/v1/proxies"
        found = {one["secret"]: one["problem"] for one in json.loads(read_page(url))["gatewaySecrets"]}
        return found["front"]

    secrets.until("the first is sent", lambda found: bool(found) and chain(found) == first.chain)
    assert usable()
    apply(stdin=tls_secret(second))
    assert chain(secrets.next()) == second.chain

    apply(stdin=tls_secret(expired))
    wait_until(lambda: not usable(), what="the expired one is noticed")
    assert "has expired" in (problem() or "")
    kubectl("delete", "secret", "front", "-n", SYSTEM_NAMESPACE)
    wait_until(lambda: "no such" in (problem() or ""), what="the loss is noticed")
    # Had either of them been sent, it would come before this one.
    apply(stdin=tls_secret(first))
    assert chain(secrets.next()) == first.chain
    assert problem() is None
    assert unusable(served, "front") - before == 2
    for pair in (first, second, expired):
        assert pair.key.splitlines()[1].decode() not in served.logged
    kubectl("delete", "secret", "front", "-n", SYSTEM_NAMESPACE)


def unusable(served: Served, secret: str) -> int:
    """How often it was logged that a Secret of the gateways is of no use."""
    lines = served.logged.splitlines()
    return sum('"event": "gateway_secret_unusable"' in line and f'"{secret}"' in line for line in lines)


@pytest.mark.produces(Reason.CLIENT_AUTHORITY_MISSING)
def test_client_certificates_count_once_there_is_an_authority_to_check_them_by(
    kubectl: Kubectl, served: Served, namespace: str, tmp_path: Path
) -> None:
    authority = Authority.make(tmp_path / "authority")
    apply = partial(kubectl, "apply", "-f", "-")
    apply(stdin=fresh(inference_body("one", namespace)))
    auth = {"mtls": {"identities": ["spiffe://example.com/ads/ranker"]}}
    apply(stdin=fresh(model_access_body("ctr", namespace, auth=auth, routes=[a_route("default", "one")])))
    host = f"access/{namespace}/ctr"

    def rules(found: dict[str, Any]) -> bool:
        (virtual_host,) = found[host]["route_configuration"]["virtual_hosts"]
        return "another_client" in json.dumps(virtual_host.get("typed_per_filter_config", {}))

    routes = Stream(served.channel, TypeUrl.SCOPE)
    routes.until("nobody is let in", lambda found: host in found and not rules(found))
    assert served.programmed(namespace) == [(host, Reason.CLIENT_AUTHORITY_MISSING)]
    bundle = f"--from-file=ca.crt={authority.certificate}"
    kubectl("create", "secret", "generic", "clients", "-n", SYSTEM_NAMESPACE, bundle)
    routes.until("those of the authority are let in", lambda found: host in found and rules(found))
    assert served.programmed(namespace) == []
    # What was good stays.
    kubectl("delete", "secret", "clients", "-n", SYSTEM_NAMESPACE)
    wait_until(
        lambda: 'gateway_secret_usable{role="clientAuthority",secret="clients"} 0.0' in served.xds.metrics(),
        what="the loss is noticed",
    )
    assert served.programmed(namespace) == []
