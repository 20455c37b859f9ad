"""Write a support bundle: objects, events, logs and reports of other commands, as far as the user may read them."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tidegate import __version__
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import key_of
from tidegate.reports.bundle import MANIFEST, BundleContents, BundleReport
from tidegate.reports.redaction import Redactor
from tidegate.reports.report import Report
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate.services.analysis import analyse_cluster
from tidegate.services.fleet import read_fleet
from tidegate.services.installation import INSTANCE_LABEL, TIDEGATE_SELECTOR, find_release
from tidegate.services.installation_check import check_installation
from tidegate.services.manifests import Manifests
from tidegate.services.xds import REPORT_PORT, query_servers

_TIDEGATE_KINDS: Final = (
    kinds.COMPUTE_POOL,
    kinds.INFERENCE,
    kinds.MODEL_ACCESS,
    kinds.FEATURE_COMPUTE,
    kinds.COMPUTE_OVERRIDE,
    kinds.ALLOCATION_DECISION,
)
_CHILD_KINDS: Final = (kinds.DEPLOYMENT, kinds.JOB, kinds.POD, kinds.POD_DISRUPTION_BUDGET)
_MAX_LOGGED_PODS: Final = 40
_MAX_OBJECTS: Final = 2_000
"""The most objects of one kind; the newest stay."""
_MANIFEST_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """The limits of a support bundle."""

    max_bytes: int = 64 << 20
    max_file_bytes: int = 8 << 20
    log_lines: int = 2_000


@dataclass(frozen=True, slots=True)
class BundleNamespaces:
    """The namespaces whose objects a support bundle contains."""

    objects: str | None
    """None means all that can be listed."""
    default: str
    """For a user who may not list all."""
    system: str | None
    """The installation's; None means the only installation."""


async def write_bundle(
    client: KubeClient,
    namespaces: BundleNamespaces,
    file: Path | None,
    limits: BundleLimits,
) -> BundleReport:
    """Write a support bundle to `file`, by default one named after the time, and return its manifest.

    Raises TidegateError without a cluster to read.
    """
    now = datetime.now(UTC)
    file = file or Path(f"tidegate-report-{now.strftime('%Y%m%dT%H%M%SZ')}.tar.gz")
    _check_file(file)
    kubernetes = await client.get_version()
    collector = _BundleCollector(client, limits)
    try:
        release, namespace = await find_release(client, namespaces.system)
    except TidegateError as error:
        collector.contents.add_missing("the installation", str(error))
        release, namespace = "tidegate", namespaces.system or "tidegate-system"
    await collector.collect_reports(namespaces.objects, namespaces.default, namespace)
    await collector.collect_objects(namespaces.objects or "")
    await collector.collect_processes(release, namespace)
    contents = collector.contents
    report = BundleReport(
        file=str(file),
        at=now,
        version=__version__,
        kubernetes=kubernetes,
        release=release,
        release_namespace=namespace,
        namespace=namespaces.objects,
        files=tuple(contents.files),
        missing=tuple(contents.missing),
        redacted=collector.redaction.count,
        bytes=contents.total_bytes,
    )
    _write_archive(file, {MANIFEST: _encode_json(report.to_json()), **contents.parts})
    return report


class _BundleCollector:
    """The collector of one support bundle.

    It collects small and informative files first, so that they fit into the bundle whatever its limits.
    """

    def __init__(self, client: KubeClient, limits: BundleLimits) -> None:
        self._client, self._limits = client, limits
        self.contents = BundleContents(limits.max_bytes - _MANIFEST_BYTES, limits.max_file_bytes)
        self.redaction = Redactor()

    async def collect_reports(
        self, namespace: str | None, default_namespace: str, system_namespace: str
    ) -> None:
        """Add the reports of other commands."""
        await self._add_report("status", lambda: read_fleet(self._client, namespace, default_namespace))
        await self._add_report("doctor", lambda: check_installation(self._client, system_namespace, ()))
        await self._add_report("analyze", lambda: analyse_cluster(self._client, namespace, Manifests(), ()))
        try:
            answers = await query_servers(self._client, system_namespace, REPORT_PORT, "/v1/proxies")
        except TidegateError as error:
            self.contents.add_missing("reports/xds-status.json", str(error))
            return
        for missing in answers.failures:
            self.contents.add_missing("an xDS server", missing)
        self._add_json("reports/xds-status.json", answers.by_server, "tidegate xds status, of each server")

    async def collect_objects(self, namespace: str) -> None:
        """Add our objects, their children, and the events about both."""
        uids = set[str]()
        for kind in _TIDEGATE_KINDS:
            uids |= await self._collect_kind(kind, namespace if kind.namespaced else "", "objects")
        children = f"{MANAGED_BY}={MANAGER}"
        for kind in _CHILD_KINDS:
            uids |= await self._collect_kind(kind, namespace, "objects", selector=children)
        await self._collect_events(namespace, "objects", uids)

    async def collect_processes(self, release: str, namespace: str) -> None:
        """Add the operator's own processes and the gateways: Deployments, pods, events and logs."""
        selector = f"{TIDEGATE_SELECTOR},{INSTANCE_LABEL}={release}"
        uids = set[str]()
        for kind in (kinds.DEPLOYMENT, kinds.LEASE):
            ours = selector if kind == kinds.DEPLOYMENT else ""
            uids |= await self._collect_kind(kind, namespace, "installation", selector=ours)
        pods = await self._list_objects(kinds.POD, namespace, "installation", selector)
        if pods is None:
            return
        self._add_objects(kinds.POD, pods, "installation")
        await self._collect_events(namespace, "installation", uids | {pod["metadata"]["uid"] for pod in pods})
        for pod in pods[:_MAX_LOGGED_PODS]:
            await self._collect_pod_logs(pod)
        if len(pods) > _MAX_LOGGED_PODS:
            self.contents.add_missing("logs", f"of {len(pods) - _MAX_LOGGED_PODS} pods more")

    async def _add_report(self, name: str, read_report: Callable[[], Awaitable[Report]]) -> None:
        path = f"reports/{name}.json"
        try:
            report = await read_report()
        except (TidegateError, ValueError) as error:
            self.contents.add_missing(path, str(error))
            return
        self._add_json(path, report.to_json(), f"tidegate {name}")

    async def _collect_kind(self, kind: Kind, namespace: str, folder: str, *, selector: str = "") -> set[str]:
        bodies = await self._list_objects(kind, namespace, folder, selector)
        if bodies is not None:
            self._add_objects(kind, bodies, folder)
        return {body["metadata"]["uid"] for body in bodies or ()}

    async def _list_objects(
        self, kind: Kind, namespace: str, folder: str, selector: str
    ) -> Sequence[Manifest] | None:
        try:
            return await self._client.list(kind, namespace=namespace, selector=selector)
        except TidegateError as error:
            self.contents.add_missing(f"{folder}/{kind.plural}.json", str(error))
            return None

    async def _collect_events(self, namespace: str, folder: str, uids: set[str]) -> None:
        events = await self._list_objects(kinds.EVENT, namespace, folder, "")
        about = [event for event in events or () if (event.get("involvedObject") or {}).get("uid") in uids]
        if events is not None:
            self._add_objects(kinds.EVENT, about, folder)

    def _add_objects(self, kind: Kind, bodies: Sequence[Manifest], folder: str) -> None:
        path = f"{folder}/{kind.plural}.json"
        newest = sorted(bodies, key=lambda body: str(body["metadata"].get("creationTimestamp")))[
            -_MAX_OBJECTS:
        ]
        if len(newest) < len(bodies):
            self.contents.add_missing(path, f"the {len(bodies) - len(newest)} oldest of {len(bodies)}")
        self._add_json(path, [self.redaction.redact_object(body) for body in newest], f"{len(newest)} {kind}")

    async def _collect_pod_logs(self, pod: Manifest) -> None:
        status = pod.get("status") or {}
        for container in status.get("containerStatuses") or ():
            await self._collect_log(key_of(pod), container["name"], previous=False)
            if container.get("restartCount"):
                await self._collect_log(key_of(pod), container["name"], previous=True)

    async def _collect_log(self, pod: ObjectKey, container: str, *, previous: bool) -> None:
        suffix = ".previous" if previous else ""
        path = f"logs/{pod.namespace}/{pod.name}/{container}{suffix}.log"
        try:
            content, cut = await self._client.read_pod_log(
                pod,
                container,
                lines=self._limits.log_lines,
                max_bytes=self._limits.max_file_bytes,
                previous=previous,
            )
        except TidegateError as error:
            self.contents.add_missing(path, str(error))
            return
        text = self.redaction.redact_text(content.decode(errors="replace"))
        self.contents.add_newest(path, text.encode(), f"newest {self._limits.log_lines} lines", cut=cut)

    def _add_json(self, path: str, value: Any, about: str) -> None:
        # Reports of other commands repeat messages of objects, which may contain anything.
        self.contents.add_whole(path, _encode_json(self.redaction.redact_value(value)), about)


def _check_file(file: Path) -> None:
    if not file.name.endswith((".tar.gz", ".tgz", ".zip")):
        message = f"{file} must end with .tar.gz, .tgz or .zip"
        raise PermanentError(message)
    if file.exists():
        message = f"{file} is there already: name another file with --file, or remove it"
        raise PermanentError(message)
    if not file.absolute().parent.is_dir():
        message = f"there is no folder {file.absolute().parent}"
        raise PermanentError(message)


def _write_archive(file: Path, files: Mapping[str, bytes]) -> None:
    """Pack the files into an archive that only its owner can read.

    Redaction may have missed something, so the archive counts as secret.
    """
    folder = file.name.removesuffix(".zip").removesuffix(".tar.gz").removesuffix(".tgz")
    packed = io.BytesIO()
    if file.name.endswith(".zip"):
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in files.items():
                archive.writestr(f"{folder}/{path}", content)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for path, content in files.items():
                entry = tarfile.TarInfo(f"{folder}/{path}")
                entry.size, entry.mode = len(content), 0o600
                tar.addfile(entry, io.BytesIO(content))
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
            output.write(packed.getvalue())
    except OSError as error:
        message = f"cannot write {file}: {error}"
        raise PermanentError(message) from error


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=str).encode() + b"\n"
