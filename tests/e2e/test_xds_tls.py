"""Gateways and xDS servers show each other certificates, as the chart has it by default, and upgrades between the two ways lose nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from builders.waiting import wait_until
from fixtures.installed import Installed, Space
from tidegate_localcluster.demo.errors import CommandError
from tidegate_localcluster.demo.helm import NAMESPACE

_SECRETS: Final = ("tidegate-xds-certificate", "tidegate-gateway-certificate")
_HANDSHAKES: Final = "envoy_cluster_ssl_handshake"

# Speaks HTTP/2 without TLS to an xDS server and says what comes back before the connection ends.
_PLAIN: Final = """
import socket
with socket.create_connection(("tidegate-xds.tidegate-system", 18000), timeout=10) as to:
    to.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    try:
        said = to.recv(100)
    except ConnectionResetError:
        said = b""
print("SETTINGS" if said[3:4] == bytes((4,)) else "nothing")
"""


def test_gateways_are_told_over_tls_and_plain_text_gets_nothing(installed: Installed) -> None:
    assert all(count >= 1 for count in _handshakes(installed).values())
    assert _plainly(installed) == "nothing"


@pytest.mark.alone("changes the installation")
@pytest.mark.no_rerun("a lost request")
def test_upgrades_to_plain_text_and_back_lose_no_request_and_keep_certificates(space: Space) -> None:
    space.publish("probe", 1, 2)
    space.inference(replicas=2)
    space.access()
    space.ready()
    installed = space.installed
    before = _certificates(installed)
    back = False
    try:
        with space.load(1, 2) as load:
            load.wait_for("1", 200)
            installed.upgrade(tls__xds=False, auth__namespaces=[])
            # The measures can fail: without it there is no handshake, and whoever asks is answered.
            assert set(_handshakes(installed).values()) == {0.0}
            wait_until(
                lambda: _plainly(installed) == "SETTINGS",
                "whoever asks is answered once the last of the former servers has ended",
                evidence=lambda: _plainly(installed),
            )
            assert not any(_certificates(installed).values())
            installed.upgrade()
            back = True
            assert all(count >= 1 for count in _handshakes(installed).values())
            space.swap_version("probe", 2)
            report = load.finish()
    finally:
        if not back:
            installed.upgrade()

    assert report.problems == ()
    after = _certificates(installed)
    assert all(before.values())
    assert all(after.values())
    assert all(after[name] != before[name] for name in _SECRETS)
    space.ready()


def _handshakes(installed: Installed) -> Mapping[str, float]:
    """TLS handshakes with an xDS server, by gateway, in Envoy's own count."""

    def read(pod: str) -> float:
        page = installed.metrics(NAMESPACE, pod, 9902, "stats/prometheus")
        found = (one.value for one in page if one.name == _HANDSHAKES)
        return sum(found)

    return {pod: read(pod) for pod in (one["metadata"]["name"] for one in installed.component("gateway"))}


def _plainly(installed: Installed) -> str:
    """What a pod without a certificate gets from an xDS server, or why it reached none."""
    pod = installed.component("web")[0]["metadata"]["name"]
    try:
        return installed.kubectl.run("exec", pod, "-n", NAMESPACE, "--", "python3", "-c", _PLAIN).strip()
    except CommandError as error:
        return str(error)


def _certificates(installed: Installed) -> Mapping[str, Any]:
    """What the controllers made; nothing for a Secret that is not there."""
    found = {name: installed.kubectl.get("secret", name, NAMESPACE) for name in _SECRETS}
    return {name: secret and secret.get("data") for name, secret in found.items()}
