"""Read what `tidegate doctor` checks, and report its findings."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from cryptography import x509

from tidegate import __version__
from tidegate.api.crd import DEFINITIONS, custom_resource_definition
from tidegate.api.meta import ObjectKey
from tidegate.cli.connection import connected
from tidegate.cli.options import Where
from tidegate.errors import PermanentError, UnknownKindError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import (
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    LEASE,
    SECRET,
    VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
)
from tidegate.kube.lease import LeaseRecord
from tidegate.kube.port import Manifest
from tidegate.operations.installation import INSTANCE, OURS, release_among
from tidegate.planning.installation import (
    COMPONENTS,
    POLICIES,
    Installation,
    Leader,
    Process,
    examine,
    looked_at,
    unlike,
)
from tidegate.reports.analysis import AnalysisReport, analysis

_VERSION: Final = "app.kubernetes.io/version"

FoundT = TypeVar("FoundT")


async def examined(where: Where, suppressed: Collection[str]) -> AnalysisReport:
    """Return the findings about the installation in a namespace, or about the only one.

    Raises TidegateError when it cannot be read.
    """
    async with connected(where) as (client, _):
        reader = _Look(client)
        deployments = await reader.at(
            "deployments", lambda: client.list(DEPLOYMENT, namespace=where.namespace or "", selector=OURS)
        )
        release, namespace = release_among(deployments or (), where.namespace)
        installation = Installation(
            release=release,
            namespace=namespace,
            kubernetes=await client.version(),
            command=__version__,
            now=datetime.now(UTC),
            schemas=await reader.at("customresourcedefinitions", lambda: _schemas(client)),
            processes=None if deployments is None else _processes(deployments, release, namespace),
            leader=await reader.at("leases", lambda: _leader(client, release, namespace)),
            policies=await reader.at("validatingadmissionpolicies", lambda: _policies(client, release)),
            certificates=await reader.at("secrets", lambda: _certificates(client, release, namespace)),
            skipped=tuple(reader.skipped),
        )
    return analysis(
        examine(installation), looked_at(installation), suppressed=suppressed, skipped=installation.skipped
    )


class _Look:
    """A reader that skips what the user may not read, and records what it skipped."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.skipped: list[str] = []

    async def at(self, what: str, read: Callable[[], Awaitable[FoundT]]) -> FoundT | None:
        try:
            return await read()
        except (PermanentError, UnknownKindError) as error:
            self.skipped.append(f"{what}: {error}")
            return None


def _processes(deployments: Sequence[Manifest], release: str, namespace: str) -> Mapping[str, Process | None]:
    deployments_by_name = {
        deployment["metadata"]["name"]: deployment
        for deployment in deployments
        if deployment["metadata"]["namespace"] == namespace
    }
    return {
        component: _process(deployments_by_name.get(f"{release}-{component}")) for component in COMPONENTS
    }


def _process(body: Manifest | None) -> Process | None:
    if body is None:
        return None
    desired = body["spec"].get("replicas", 1)
    ready = (body.get("status") or {}).get("readyReplicas", 0)
    return Process(desired, ready, body["metadata"]["labels"].get(_VERSION, ""))


async def _schemas(client: KubeClient) -> Mapping[str, Sequence[str] | None]:
    differences: dict[str, Sequence[str] | None] = {}
    for definition in DEFINITIONS:
        expected = custom_resource_definition(definition)
        name = expected["metadata"]["name"]
        installed = await client.get(CUSTOM_RESOURCE_DEFINITION, ObjectKey("", name))
        differences[name] = None if installed is None else unlike(_schema(expected), _schema(installed))
    return differences


def _schema(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the stored version."""
    stored: Mapping[str, Any] = next(
        (version for version in crd["spec"]["versions"] if version.get("storage")), {}
    )
    schema: Mapping[str, Any] = (stored.get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


async def _leader(client: KubeClient, release: str, namespace: str) -> Leader:
    body = await client.get(LEASE, ObjectKey(namespace, f"{release}-controllers"))
    if body is None:
        return Leader("", datetime.min.replace(tzinfo=UTC))
    record = LeaseRecord.parse(body)
    return Leader(record.holder, record.renewed_at + record.duration)


async def _policies(client: KubeClient, release: str) -> frozenset[str]:
    names = {body["metadata"]["name"] for body in await client.list(VALIDATING_ADMISSION_POLICY)}
    bindings = await client.list(VALIDATING_ADMISSION_POLICY_BINDING)
    bound_names = {binding["spec"].get("policyName") for binding in bindings}
    return frozenset(policy for policy in POLICIES if f"{release}-{policy}" in names & bound_names)


async def _certificates(client: KubeClient, release: str, namespace: str) -> Mapping[str, datetime]:
    selector = f"{OURS},{INSTANCE}={release}"
    expiries: dict[str, datetime] = {}
    for body in await client.list(SECRET, namespace=namespace, selector=selector):
        encoded = (body.get("data") or {}).get("tls.crt")
        if encoded and (expiry := _end(encoded)) is not None:
            expiries[body["metadata"]["name"]] = expiry
    return expiries


def _end(encoded: str) -> datetime | None:
    """Return the earliest expiry of the certificates; None if none can be parsed."""
    try:
        chain = x509.load_pem_x509_certificates(base64.b64decode(encoded))
    except (ValueError, binascii.Error):
        return None
    return min(certificate.not_valid_after_utc for certificate in chain)
