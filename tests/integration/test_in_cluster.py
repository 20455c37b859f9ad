"""The client as a pod has it: the ServiceAccount's token from its file, read again when the kubelet rotates it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kubernetes.aio.config import incluster_config

from fixtures.control_plane import Kubectl
from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.kinds import CONFIG_MAP
from tidegate_localcluster.control_plane import ControlPlane

Mounted = Callable[[str], None]


@pytest.fixture
def mounted(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mounted:
    """Puts a token where the kubelet would, beside the cluster's CA; it counts as old at once."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    authority.write_bytes(control_plane._pki.authority.certificate.read_bytes())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    server = urlsplit(control_plane.server_url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    load: Any = incluster_config.InClusterConfigLoader.__init__

    def impatient(self: Any, *arguments: Any, **keywords: Any) -> None:
        load(self, *arguments, **keywords)
        self._token_refresh_period = timedelta()

    monkeypatch.setattr(incluster_config.InClusterConfigLoader, "__init__", impatient)
    return lambda text: _write(token, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_rotated_token_is_used_without_a_restart(
    mounted: Mounted, kubectl: Kubectl, namespace: str
) -> None:
    kubectl("create", "serviceaccount", "next", "--namespace", namespace)
    mounted(kubectl("create", "token", "default", "--namespace", namespace).strip())
    key = ObjectKey(namespace, "kube-root-ca.crt")
    async with await KubeClient.connect(ClientSettings(field_manager="tidegate-test")) as client:
        with pytest.raises(PermanentError, match=rf'403 .*"system:serviceaccount:{namespace}:default"'):
            await client.get(CONFIG_MAP, key)
        mounted(kubectl("create", "token", "next", "--namespace", namespace).strip())
        with pytest.raises(PermanentError, match=rf'403 .*"system:serviceaccount:{namespace}:next"'):
            await client.get(CONFIG_MAP, key)


async def test_a_token_that_has_run_out_is_no_permanent_refusal(mounted: Mounted, namespace: str) -> None:
    mounted("expired")
    async with await KubeClient.connect(ClientSettings(field_manager="tidegate-test")) as client:
        with pytest.raises(ApiUnavailableError, match="401"):
            await client.get(CONFIG_MAP, ObjectKey(namespace, "kube-root-ca.crt"))
