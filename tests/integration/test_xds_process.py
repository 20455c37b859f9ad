"""`tidegate xds` as a real process against a real API server: what it sends follows the objects, and it ends in good order."""

from __future__ import annotations

import base64
import http.server
import json
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from builders.certificates import Authority, Pair
from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from builders.tokens import Issuer
from fixtures.control_plane import Kubectl
from fixtures.processes import SYSTEM_NAMESPACE
from fixtures.xds_process import Stream, fresh, xds
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.routing.snapshot import TypeUrl
from tidegate_localcluster.process import wait_until

# A second on a machine at rest; this long where others work beside the test.
SOON_S = 20.0


def test_what_a_proxy_gets_follows_the_objects(
    kubectl: Kubectl, kubeconfig: Path, crds: None, namespace: str, tmp_path: Path
) -> None:
    del crds
    kubectl("apply", "-f", "-", stdin=fresh(inference_body("one", namespace)))
    with xds(kubeconfig, tmp_path) as (_, channel):
        clusters, routes = (
            Stream(channel, TypeUrl.CLUSTER),
            Stream(channel, TypeUrl.SCOPE),
        )
        cluster, host = f"inference/{namespace}/one/grpc", f"access/{namespace}/ctr"
        assert cluster in clusters.next()
        assert host not in routes.next()

        access = model_access_body("ctr", namespace, routes=[a_route("default", "one")])
        kubectl("apply", "-f", "-", stdin=fresh(access))
        routes.until("the access is routed", lambda found: host in found)

        kubectl("delete", "inference", "one", "-n", namespace)
        clusters.until("the cluster is gone", lambda found: cluster not in found)
        kubectl("delete", "modelaccess", "ctr", "-n", namespace)
        routes.until("the access is gone", lambda found: host not in found)


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
        wait_until(lambda: running.process.poll() is not None, what="the process has ended", timeout_s=60)
        assert running.process.returncode == 0


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
    kubectl: Kubectl, kubeconfig: Path, crds: None, namespace: str, tmp_path: Path
) -> None:
    del crds
    kubectl("apply", "-f", "-", stdin=fresh(inference_body("one", namespace)))
    access = model_access_body("ctr", namespace, routes=[a_route("default", "one")])
    kubectl("apply", "-f", "-", stdin=fresh(access))
    name = f"access/{namespace}/ctr"
    with xds(kubeconfig, tmp_path) as (running, channel):
        Stream(channel, TypeUrl.SCOPE).until("the access is routed", lambda found: name in found)

        def told(host: str, port: int) -> Any:
            url = f"http://{host}:{port}/v1/snapshots/current?name={name}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["resources"]["scope"]

        assert told("127.0.0.1", running.contents_port)[0]["content"]["name"] == name
        # 127.0.0.2 stands for every other address that the process could have: it answers there where it listens on all.
        assert {"name", "version"} == set(told("127.0.0.2", running.report_port)[0])
        with pytest.raises(urllib.error.URLError, match="refused"):
            told("127.0.0.2", running.contents_port)


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
    with urllib.request.urlopen(f"http://127.0.0.1:{report_port}/v1/programmed", timeout=5) as answer:
        refusals = [(one["host"], one["reason"]) for one in json.load(answer)["refusals"]]
    return [one for one in refusals if one[0].startswith(f"access/{namespace}/")]


@pytest.mark.produces(Reason.CREDENTIALS_NOT_READABLE, Reason.CREDENTIALS_INVALID)
def test_keys_follow_their_secret_within_a_second_and_are_in_no_log(
    kubectl: Kubectl, kubeconfig: Path, crds: None, namespace: str, tmp_path: Path
) -> None:
    del crds
    apply = partial(kubectl, "apply", "-f", "-")
    apply(stdin=fresh(inference_body("one", namespace)))
    keyed: dict[str, Any] = {
        "auth": {"apiKeys": {"secret": "callers"}},
        "routes": [a_route("default", "one")],
    }
    apply(stdin=fresh(model_access_body("ctr", namespace, **keyed)))
    host = f"access/{namespace}/ctr"
    # The second namespace does not exist; that keeps nobody waiting.
    allowed = json.dumps([namespace, f"{namespace}-never"])
    with xds(kubeconfig, tmp_path, auth_namespaces=allowed, log_level="debug") as (running, channel):
        routes = Stream(channel, TypeUrl.SCOPE)
        routes.until("nobody is let in", lambda found: host in found and not holders(found[host]))
        assert reported(running.report_port, namespace) == [(host, Reason.CREDENTIALS_NOT_READABLE)]

        def follow(what: str, expected: list[str], *reasons: Reason) -> None:
            started = time.monotonic()
            routes.until(what, lambda found: holders(found[host]) == expected)
            assert time.monotonic() - started < SOON_S
            assert reported(running.report_port, namespace) == [(host, reason) for reason in reasons]

        apply(stdin=secret("callers", namespace, alice="canary-0123456789", bob="canary-9876543210"))
        follow("two are let in", ["alice", "bob"])
        apply(stdin=secret("callers", namespace, alice="canary-0123456789"))
        follow("one is taken back", ["alice"])
        apply(stdin=secret("callers", namespace, alice="canary-0123456789", eve="canary-1"))
        wait_until(
            lambda: reported(running.report_port, namespace) == [(host, Reason.CREDENTIALS_INVALID)],
            what="an unfit one is left out",
            timeout_s=30.0,
        )
        kubectl("label", "secret", "callers", "-n", namespace, "tidegate.io/auth-")
        follow("a Secret that is not for us is not read", [], Reason.CREDENTIALS_NOT_READABLE)
        said = running.log.read_text()
    assert said
    for canary in ("canary-", base64.b64encode(b"canary").decode()):
        assert canary not in said


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
            wait_until(
                lambda: reported(running.report_port, namespace) == [], what="it is open", timeout_s=30.0
            )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "give exactly one of secret, jwksUri"),
        ({"secret": "a", "jwksUri": "https://a.com/b"}, "give exactly one of secret, jwksUri"),
        ({"jwksUri": "http://a.com/b"}, "must be https://<host>/<path>"),
        ({"jwksUri": "https://a.com"}, "must be https://<host>/<path>"),
        ({"jwksUri": "https://me:pw@a.com/b"}, "must be https://<host>/<path>"),
        ({"jwksUri": "https://A.com/b"}, "must be https://<host>/<path>"),
        ({"jwksUri": "https://a.com:0/b"}, "must be https://<host>/<path>"),
        ({"jwksUri": "https://a.com/b c"}, "must be https://<host>/<path>"),
        ({"jwksUri": "https://a.com/b#c"}, "must have no fragment"),
        ({"jwksUri": "https://a.com\\@b.com/"}, "must be https://<host>/<path>"),
    ],
    ids=str,
)
def test_an_address_that_is_none_is_refused_by_the_api_server(
    kubectl: Kubectl, crds: None, namespace: str, fields: dict[str, str], said: str
) -> None:
    del crds
    jwt = {"issuer": "i", "audiences": ["ads"], **fields}
    access: dict[str, Any] = {"auth": {"jwt": jwt}, "routes": [a_route("default", "one")]}
    body = json.loads(fresh(model_access_body("ctr", namespace, routes=[a_route("default", "one")])))
    body["spec"].update(access)
    assert said in kubectl.refusal("apply", "-f", "-", stdin=json.dumps(body))
    with pytest.raises(InvalidSpecError, match=said.replace("<", ".").replace(">", ".")):
        ModelAccess.parse(body)


def tls_secret(pair: Pair) -> str:
    data = {"tls.crt": pair.chain, "tls.key": pair.key}
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    metadata = {"name": "front", "namespace": SYSTEM_NAMESPACE}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded})


def test_certificates_of_the_tls_port_follow_their_secret_within_a_second(
    kubectl: Kubectl, kubeconfig: Path, crds: None, tmp_path: Path
) -> None:
    del crds
    authority = Authority.make(tmp_path / "authority")
    first, second, expired = (
        authority.pair("ctr.example.com", lasting=timedelta(hours=hours)) for hours in (1, 2, -1)
    )
    apply = partial(kubectl, "apply", "-f", "-")
    apply(stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}))
    apply(stdin=tls_secret(first))
    names = json.dumps(["front"])
    with xds(kubeconfig, tmp_path / "xds", gateway_tls_secrets=names, log_level="debug") as (
        running,
        channel,
    ):
        secrets = Stream(channel, TypeUrl.SECRET, ["certificate/front"])

        def chain(found: dict[str, Any]) -> bytes:
            return base64.b64decode(
                found["certificate/front"]["tls_certificate"]["certificate_chain"]["inline_bytes"]
            )

        def usable() -> bool:
            line = 'tidegate_xds_gateway_secret_usable{role="certificate",secret="front"} 1.0'
            return line in running.metrics()

        def problem() -> str | None:
            url = f"http://127.0.0.1:{running.report_port}/v1/proxies"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["gatewaySecrets"][0]["problem"]

        assert chain(secrets.next()) == first.chain
        assert usable()
        apply(stdin=tls_secret(second))
        started = time.monotonic()
        assert chain(secrets.next()) == second.chain
        assert time.monotonic() - started < SOON_S

        apply(stdin=tls_secret(expired))
        wait_until(lambda: not usable(), what="the expired one is noticed", timeout_s=30.0)
        assert "has expired" in (problem() or "")
        kubectl("delete", "secret", "front", "-n", SYSTEM_NAMESPACE)
        wait_until(lambda: "no such" in (problem() or ""), what="the loss is noticed", timeout_s=30.0)
        # Had either of them been sent, it would come before this one.
        apply(stdin=tls_secret(first))
        assert chain(secrets.next()) == first.chain
        assert problem() is None
        said = running.log.read_text()
    assert said.count('"event": "gateway_secret_unusable"') == 2
    for pair in (first, second, expired):
        assert pair.key.splitlines()[1].decode() not in said


@pytest.mark.produces(Reason.CLIENT_AUTHORITY_MISSING)
def test_client_certificates_count_once_there_is_an_authority_to_check_them_by(
    kubectl: Kubectl, kubeconfig: Path, crds: None, namespace: str, tmp_path: Path
) -> None:
    del crds
    authority = Authority.make(tmp_path / "authority")
    apply = partial(kubectl, "apply", "-f", "-")
    apply(stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}))
    kubectl("delete", "secret", "clients", "-n", SYSTEM_NAMESPACE, "--ignore-not-found")
    apply(stdin=fresh(inference_body("one", namespace)))
    auth = {"mtls": {"identities": ["spiffe://example.com/ads/ranker"]}}
    apply(stdin=fresh(model_access_body("ctr", namespace, auth=auth, routes=[a_route("default", "one")])))
    host = f"access/{namespace}/ctr"

    def rules(found: dict[str, Any]) -> bool:
        (virtual_host,) = found[host]["route_configuration"]["virtual_hosts"]
        return "another_client" in json.dumps(virtual_host.get("typed_per_filter_config", {}))

    tls = {"gateway_tls_secrets": json.dumps(["front"]), "gateway_client_authority": "clients"}
    missing = [(host, Reason.CLIENT_AUTHORITY_MISSING)]
    with xds(kubeconfig, tmp_path / "without") as (running, channel):
        routes = Stream(channel, TypeUrl.SCOPE)
        routes.until("nobody is let in", lambda found: host in found and not rules(found))
        assert reported(running.report_port, namespace) == missing
    with xds(kubeconfig, tmp_path / "with", **tls) as (running, channel):
        routes = Stream(channel, TypeUrl.SCOPE)
        routes.until("nobody is let in", lambda found: host in found and not rules(found))
        assert reported(running.report_port, namespace) == missing
        bundle = f"--from-file=ca.crt={authority.certificate}"
        kubectl("create", "secret", "generic", "clients", "-n", SYSTEM_NAMESPACE, bundle)
        routes.until("those of the authority are let in", lambda found: host in found and rules(found))
        assert reported(running.report_port, namespace) == []
        # What was good stays.
        kubectl("delete", "secret", "clients", "-n", SYSTEM_NAMESPACE)
        wait_until(
            lambda: 'gateway_secret_usable{role="clientAuthority",secret="clients"} 0.0' in running.metrics(),
            what="the loss is noticed",
            timeout_s=30.0,
        )
        assert reported(running.report_port, namespace) == []
