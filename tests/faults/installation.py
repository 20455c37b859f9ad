"""A control plane with Tidegate's CRDs, roles and admission policies, ready for a sweep; nothing of it needs root."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from builders import probe_model
from builders.certificates import Authority
from builders.waiting import LONGEST_S
from faults.agents import BAD_VERSION
from faults.scenarios import NAME
from faults.sweep import USER, Sweep
from tidegate_localcluster.control_plane import ControlPlane, ControlPlaneOptions
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.api import ApiServerClient
from tidegate_localcluster.fleet_demo.site import serves_our_kinds
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.supplies import find_source_root

PLUGIN: Final = "nvidia-device-plugin"
"""Namespace of NVIDIA's device plugin, and name of its DaemonSet, unless the chart's values say otherwise."""
_ROOT: Final = find_source_root()
_VALUES: Final = {
    'include "tidegate.hostPaths" .': "['/models']",
    ".Values.nodeAgent.plugin.namespace": PLUGIN,
    ".Values.nodeAgent.plugin.mpsDaemonSet": f"{PLUGIN}-mps-control-daemon",
}


@dataclass(frozen=True, slots=True)
class Site:
    """A control plane that runs, and the folder of the sweep."""

    control_plane: ControlPlane
    pki: Pki
    folder: Path

    def api(self) -> ApiServerClient:
        """Return the API server as its administrator sees it, on a connection of its own that no fault touches."""
        return ApiServerClient.as_administrator(self.control_plane.server_url, self.pki)


@contextmanager
def a_site(binaries: Mapping[str, Path], folder: Path) -> Iterator[Site]:
    """A control plane whose nodes stay ready although nobody renews their leases."""
    options = ControlPlaneOptions(
        arguments={
            "kube-controller-manager": ["--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"]
        },
        ready_timeout_s=LONGEST_S,
    )
    pki = Pki(folder / "control-plane" / "pki")
    with ControlPlane(folder / "control-plane", binaries, pki, options=options) as control_plane:
        yield Site(control_plane, pki, folder)


@asynccontextmanager
async def a_sweep(site: Site) -> AsyncIterator[Sweep]:
    """A sweep over the site, the operator leading."""
    async with site.api() as api:
        await install(api)
        models = site.folder / "models" / NAME
        for version in (1, 2, 3, BAD_VERSION):
            probe_model.publish(models, version)
        settings = {"tls_directory": str(certificates(site.folder)), "models_host_path": "/models"}
        async with Sweep(api, site.folder, settings).running() as sweep:
            yield sweep


async def install(api: ApiServerClient) -> None:
    """Apply what the chart installs around the controllers."""
    users = {**objects.USERS, "controllers": USER}
    for path, body in (
        *objects.read_crds(_ROOT),
        *objects.make_namespaces(),
        *objects.read_chart_objects(_ROOT, users=users, templates=("fence", "child-bounds"), values=_VALUES),
    ):
        await api.apply(path, body)
    await Sweep.wait_for(lambda: serves_our_kinds(api, _ROOT), "the API server serves Tidegate's kinds", 30)


def policies(template: str) -> Sequence[Mapping[str, Any]]:
    """Return the admission policies of one of the chart's templates, and their bindings."""
    return objects.render_policies(_ROOT, template, _VALUES)


async def allow_secrets(api: ApiServerClient, *names: str) -> None:
    """Let the controllers keep certificates in these Secrets of the release, as the chart does."""
    for path, body in objects.read_rbac(_ROOT, "Role", "controllers-secrets", USER, objects=names):
        await api.apply(path, body)


def certificates(folder: Path) -> Path:
    """ca.crt, tls.crt and tls.key of the controllers, as the chart's Secret is mounted."""
    tls = folder / "tls"
    if not tls.exists():
        pem = Authority.make(tls).issue("tidegate-controllers").read_bytes()
        (tls / "tls.crt").write_bytes(pem)
        (tls / "tls.key").write_bytes(pem)
    return tls
