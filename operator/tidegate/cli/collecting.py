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
from tidegate.cli.analysing import analyse
from tidegate.cli.asking import ask_all
from tidegate.cli.connection import connected
from tidegate.cli.examining import examined
from tidegate.cli.options import Where
from tidegate.cli.servers import REPORT_PORT
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import key_of
from tidegate.operations.fleet import fleet_of
from tidegate.operations.installation import INSTANCE, OURS, release_of
from tidegate.reports.bundle import MANIFEST, BundleReport, Contents
from tidegate.reports.redaction import Redaction
from tidegate.reports.report import Report
from tidegate.resources.names import MANAGED_BY, MANAGER

_OURS: Final = (
    kinds.COMPUTE_POOL,
    kinds.INFERENCE,
    kinds.MODEL_ACCESS,
    kinds.FEATURE_COMPUTE,
    kinds.COMPUTE_OVERRIDE,
    kinds.ALLOCATION_DECISION,
)
_CHILDREN: Final = (kinds.DEPLOYMENT, kinds.JOB, kinds.POD, kinds.POD_DISRUPTION_BUDGET)
_PODS_LOGGED: Final = 40
_OBJECTS: Final = 2_000
"""The most objects of one kind; the newest stay."""
_MANIFEST_ROOM: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a support bundle."""

    most_bytes: int = 64 << 20
    most_of_one: int = 8 << 20
    log_lines: int = 2_000


async def collect(where: Where, system: str | None, file: Path, bounds: Bounds) -> BundleReport:
    """Write a support bundle to `file` and return its manifest. Raises TidegateError without a cluster to read."""
    _check(file)
    async with connected(where) as (client, default_namespace):
        kubernetes = await client.version()
        collector = _Collecting(client, bounds)
        try:
            release, namespace = await release_of(client, system)
        except TidegateError as error:
            collector.contents.lacks("the installation", str(error))
            release, namespace = "tidegate", system or "tidegate-system"
        await collector.reports(where, default_namespace, namespace)
        await collector.objects(where.namespace or "")
        await collector.processes(release, namespace)
    contents = collector.contents
    report = BundleReport(
        file=str(file),
        at=datetime.now(UTC),
        version=__version__,
        kubernetes=kubernetes,
        release=release,
        release_namespace=namespace,
        namespace=where.namespace,
        files=tuple(contents.files),
        missing=tuple(contents.missing),
        redacted=collector.redaction.count,
        bytes=contents.total,
    )
    _write(file, {MANIFEST: _json(report.serialised()), **contents.parts})
    return report


class _Collecting:
    """The collector of one support bundle.

    It collects small and informative files first, so that they fit into the bundle whatever its limits.
    """

    def __init__(self, client: KubeClient, bounds: Bounds) -> None:
        self._client, self._bounds = client, bounds
        self.contents = Contents(bounds.most_bytes - _MANIFEST_ROOM, bounds.most_of_one)
        self.redaction = Redaction()

    async def reports(self, where: Where, usual: str, system: str) -> None:
        """Add the reports of other commands."""
        object_options = Where(
            where.namespace, where.namespace is None, where.kubeconfig, where.context, where.acting_for
        )
        installation_options = Where(system, False, where.kubeconfig, where.context, where.acting_for)
        await self._report("status", lambda: fleet_of(self._client, where.namespace, usual))
        await self._report("doctor", lambda: examined(installation_options, ()))
        await self._report("analyze", lambda: analyse(object_options, (), ()))
        try:
            answers = await ask_all(self._client, system, REPORT_PORT, "/v1/proxies")
        except TidegateError as error:
            self.contents.lacks("reports/xds-status.json", str(error))
            return
        for missing in answers.missing:
            self.contents.lacks("an xDS server", missing)
        self._add("reports/xds-status.json", answers.said, "tidegate xds status, of each server")

    async def objects(self, namespace: str) -> None:
        """Add our objects, their children, and the events about both."""
        uids = set[str]()
        for kind in _OURS:
            uids |= await self._list(kind, namespace if kind.namespaced else "", "objects")
        children = f"{MANAGED_BY}={MANAGER}"
        for kind in _CHILDREN:
            uids |= await self._list(kind, namespace, "objects", selector=children)
        await self._events(namespace, "objects", uids)

    async def processes(self, release: str, namespace: str) -> None:
        """Add the operator's own processes and the gateways: Deployments, pods, events and logs."""
        selector = f"{OURS},{INSTANCE}={release}"
        uids = set[str]()
        for kind in (kinds.DEPLOYMENT, kinds.LEASE):
            ours = selector if kind == kinds.DEPLOYMENT else ""
            uids |= await self._list(kind, namespace, "installation", selector=ours)
        pods = await self._read(kinds.POD, namespace, "installation", selector)
        if pods is None:
            return
        self._bodies(kinds.POD, pods, "installation")
        await self._events(namespace, "installation", uids | {pod["metadata"]["uid"] for pod in pods})
        for pod in pods[:_PODS_LOGGED]:
            await self._logs(pod)
        if len(pods) > _PODS_LOGGED:
            self.contents.lacks("logs", f"of {len(pods) - _PODS_LOGGED} pods more")

    async def _report(self, name: str, make: Callable[[], Awaitable[Report]]) -> None:
        path = f"reports/{name}.json"
        try:
            report = await make()
        except (TidegateError, ValueError) as error:
            self.contents.lacks(path, str(error))
            return
        self._add(path, report.serialised(), f"tidegate {name}")

    async def _list(self, kind: Kind, namespace: str, folder: str, *, selector: str = "") -> set[str]:
        bodies = await self._read(kind, namespace, folder, selector)
        if bodies is not None:
            self._bodies(kind, bodies, folder)
        return {body["metadata"]["uid"] for body in bodies or ()}

    async def _read(
        self, kind: Kind, namespace: str, folder: str, selector: str
    ) -> Sequence[Manifest] | None:
        try:
            return await self._client.list(kind, namespace=namespace, selector=selector)
        except TidegateError as error:
            self.contents.lacks(f"{folder}/{kind.plural}.json", str(error))
            return None

    async def _events(self, namespace: str, folder: str, seen: set[str]) -> None:
        events = await self._read(kinds.EVENT, namespace, folder, "")
        about = [event for event in events or () if (event.get("involvedObject") or {}).get("uid") in seen]
        if events is not None:
            self._bodies(kinds.EVENT, about, folder)

    def _bodies(self, kind: Kind, bodies: Sequence[Manifest], folder: str) -> None:
        path = f"{folder}/{kind.plural}.json"
        newest = sorted(bodies, key=lambda body: str(body["metadata"].get("creationTimestamp")))[-_OBJECTS:]
        if len(newest) < len(bodies):
            self.contents.lacks(path, f"the {len(bodies) - len(newest)} oldest of {len(bodies)}")
        self._add(path, [self.redaction.body(body) for body in newest], f"{len(newest)} {kind}")

    async def _logs(self, pod: Manifest) -> None:
        status = pod.get("status") or {}
        for container in status.get("containerStatuses") or ():
            await self._log(key_of(pod), container["name"], previous=False)
            if container.get("restartCount"):
                await self._log(key_of(pod), container["name"], previous=True)

    async def _log(self, pod: ObjectKey, container: str, *, previous: bool) -> None:
        suffix = ".previous" if previous else ""
        path = f"logs/{pod.namespace}/{pod.name}/{container}{suffix}.log"
        try:
            content, cut = await self._client.log_of_pod(
                pod,
                container,
                lines=self._bounds.log_lines,
                most_bytes=self._bounds.most_of_one,
                previous=previous,
            )
        except TidegateError as error:
            self.contents.lacks(path, str(error))
            return
        text = self.redaction.text(content.decode(errors="replace"))
        self.contents.add_newest(path, text.encode(), f"newest {self._bounds.log_lines} lines", cut=cut)

    def _add(self, path: str, value: Any, about: str) -> None:
        # Reports of other commands repeat messages of objects, which may contain anything.
        self.contents.add(path, _json(self.redaction.value(value)), about)


def _check(file: Path) -> None:
    if not file.name.endswith((".tar.gz", ".tgz", ".zip")):
        message = f"{file} must end with .tar.gz, .tgz or .zip"
        raise PermanentError(message)
    if file.exists():
        message = f"{file} is there already: name another file with --file, or remove it"
        raise PermanentError(message)
    if not file.absolute().parent.is_dir():
        message = f"there is no folder {file.absolute().parent}"
        raise PermanentError(message)


def _write(file: Path, parts: Mapping[str, bytes]) -> None:
    """Pack the files into an archive that only its owner can read.

    Redaction may have missed something, so the archive counts as secret.
    """
    folder = file.name.removesuffix(".zip").removesuffix(".tar.gz").removesuffix(".tgz")
    packed = io.BytesIO()
    if file.name.endswith(".zip"):
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in parts.items():
                archive.writestr(f"{folder}/{path}", content)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for path, content in parts.items():
                entry = tarfile.TarInfo(f"{folder}/{path}")
                entry.size, entry.mode = len(content), 0o600
                tar.addfile(entry, io.BytesIO(content))
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
            output.write(packed.getvalue())
    except OSError as error:
        message = f"cannot write {file}: {error}"
        raise PermanentError(message) from error


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, default=str).encode() + b"\n"


def usual_file(now: datetime) -> Path:
    """Return the name of the archive for a command without --file."""
    return Path(f"tidegate-report-{now.strftime('%Y%m%dT%H%M%SZ')}.tar.gz")
