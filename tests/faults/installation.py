"""A control plane with Tidegate's CRDs, roles and admission policies, ready for a sweep; nothing of it needs root."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from builders import probe_model
from builders.certificates import Authority
from faults.api import Api, RefusedError
from faults.scenarios import NAME
from faults.servers import BAD_VERSION
from faults.sweep import SYSTEM, USER, Sweep
from tidegate.api.crd import DEFINITIONS
from tidegate_localcluster.control_plane import ControlPlane, ControlPlaneOptions
from tidegate_localcluster.pki import Pki

_ROOT: Final = Path(__file__).resolve().parents[2]
_CHART: Final = _ROOT / "charts" / "tidegate"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True, slots=True)
class Site:
    """A control plane that runs, and the folder of the sweep."""

    control_plane: ControlPlane
    pki: Pki
    folder: Path


@contextmanager
def a_site(binaries: Mapping[str, Path], folder: Path) -> Iterator[Site]:
    """A control plane whose nodes stay ready although nobody renews their leases."""
    options = ControlPlaneOptions(
        arguments={
            "kube-controller-manager": ["--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"]
        }
    )
    pki = Pki(folder / "control-plane" / "pki")
    with ControlPlane(folder / "control-plane", binaries, pki, options=options) as control_plane:
        yield Site(control_plane, pki, folder)


@asynccontextmanager
async def a_sweep(site: Site) -> AsyncIterator[Sweep]:
    """A sweep over the site, the operator leading."""
    async with Api.of(site.control_plane, site.pki) as api:
        await install(api)
        models = site.folder / "models" / NAME
        for version in (1, 2, 3, BAD_VERSION):
            probe_model.publish(models, version)
        settings = {"tls_directory": str(certificates(site.folder)), "models_host_path": "/models"}
        async with Sweep(api, site.folder, settings).running() as sweep:
            yield sweep


async def install(api: Api) -> None:
    """What the chart installs around the controllers."""
    for path in sorted((_ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        await api.apply(f"{_CRDS}/{crd['metadata']['name']}", crd)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    await api.apply(f"/api/v1/namespaces/{SYSTEM}", namespace)
    for tier in ("realtime", "nearline", "offline"):
        name = f"tidegate-{tier}"
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await api.apply(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}", {**body, "value": 1})
    await _grant(api, "ClusterRole", f"{_RBAC}/clusterroles", "controllers-cluster.yaml")
    await _grant(api, "Role", f"{_RBAC}/namespaces/{SYSTEM}/roles", "controllers-release.yaml")
    for body in (*fence(), *policies("child-bounds")):
        plural = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
            body["kind"], "validatingadmissionpolicybindings"
        )
        await api.apply(f"{_ADMISSION}/{plural}/{body['metadata']['name']}", body)
    for definition in DEFINITIONS:
        plural = definition.resource.PLURAL
        await _served(api, f"/apis/tidegate.io/v1alpha1/{plural}")


PLUGIN = "nvidia-device-plugin"
"""Namespace of NVIDIA's device plugin, and name of its DaemonSet, unless the chart's values say otherwise."""


def fence() -> tuple[dict[str, Any], ...]:
    """The chart's admission policy of epochs and its binding, as a release named tidegate has them."""
    return policies("fence")


def policies(template: str) -> tuple[dict[str, Any], ...]:
    """The admission policies of one of the chart's templates, and their bindings."""
    text = (_CHART / "templates" / f"{template}.yaml").read_text()
    text = text.replace('{{- include "tidegate.complete" . -}}\n', "")
    text = re.sub(r"\{\{/\*.*?\*/\}\}", "", text, flags=re.DOTALL)
    text = re.sub(r"labels: \{\{- include.*", "labels: {}", text)
    text = re.sub(r"^\{\{- (if .*|end) \}\}$", "", text, flags=re.MULTILINE)
    text = text.replace("{{ .Release.Name }}", "tidegate").replace("{{ .Release.Namespace }}", SYSTEM)
    text = text.replace('{{ include "tidegate.hostPaths" . }}', "['/models']")
    text = text.replace("{{ .Values.nodeAgent.plugin.namespace }}", PLUGIN)
    text = text.replace("{{ .Values.nodeAgent.plugin.mpsDaemonSet }}", f"{PLUGIN}-mps-control-daemon")
    return tuple(yaml.safe_load_all(text))


async def allow_secrets(api: Api, *names: str) -> None:
    """Lets the controllers keep certificates in these Secrets of the release, as the chart does."""
    path = f"{_RBAC}/namespaces/{SYSTEM}/roles"
    await _grant(
        api, "Role", path, "controllers-certificates.yaml", "tidegate-controllers-certificates", names
    )


async def _grant(
    api: Api, kind: str, path: str, file: str, name: str = "tidegate-controllers", of: Sequence[str] = ()
) -> None:
    rules = yaml.safe_load((_CHART / "files" / "rbac" / file).read_text())
    if of:
        rules = [{**rule, "resourceNames": [*of]} for rule in rules]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    await api.apply(f"{path}/{name}", {**role, "rules": rules})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    await api.apply(f"{path.removesuffix('s')}bindings/{name}", binding)


async def _served(api: Api, path: str) -> None:
    """A CRD is served a moment after it was accepted; until then the API server says 404, then 429."""

    async def answers() -> bool:
        with contextlib.suppress(RefusedError):
            return await api.get(path) is not None
        return False

    await Sweep.wait_for(answers, f"{path} is served", 15)


def certificates(folder: Path) -> Path:
    """ca.crt, tls.crt and tls.key of the controllers, as the chart's Secret is mounted."""
    tls = folder / "tls"
    if not tls.exists():
        pem = Authority.make(tls).issue("tidegate-controllers").read_bytes()
        (tls / "tls.crt").write_bytes(pem)
        (tls / "tls.key").write_bytes(pem)
    return tls
