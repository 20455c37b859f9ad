"""Reads what `tidegate doctor` looks at, and has it reported."""

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
    """What is wrong with the installation in a namespace, or the only one. Raises TidegateError when it cannot be read."""
    async with connected(where) as (client, _):
        look = _Look(client)
        deployments = await look.at(
            "deployments", lambda: client.list(DEPLOYMENT, namespace=where.namespace or "", selector=OURS)
        )
        release, namespace = release_among(deployments or (), where.namespace)
        seen = Installation(
            release=release,
            namespace=namespace,
            kubernetes=await client.version(),
            command=__version__,
            now=datetime.now(UTC),
            schemas=await look.at("customresourcedefinitions", lambda: _schemas(client)),
            processes=None if deployments is None else _processes(deployments, release, namespace),
            leader=await look.at("leases", lambda: _leader(client, release, namespace)),
            policies=await look.at("validatingadmissionpolicies", lambda: _policies(client, release)),
            certificates=await look.at("secrets", lambda: _certificates(client, release, namespace)),
            skipped=tuple(look.skipped),
        )
    return analysis(examine(seen), looked_at(seen), suppressed=suppressed, skipped=seen.skipped)


class _Look:
    """What may not be read is left out, and said."""

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
    there = {
        each["metadata"]["name"]: each for each in deployments if each["metadata"]["namespace"] == namespace
    }
    return {component: _process(there.get(f"{release}-{component}")) for component in COMPONENTS}


def _process(body: Manifest | None) -> Process | None:
    if body is None:
        return None
    wanted = body["spec"].get("replicas", 1)
    ready = (body.get("status") or {}).get("readyReplicas", 0)
    return Process(wanted, ready, body["metadata"]["labels"].get(_VERSION, ""))


async def _schemas(client: KubeClient) -> Mapping[str, Sequence[str] | None]:
    found: dict[str, Sequence[str] | None] = {}
    for definition in DEFINITIONS:
        ours = custom_resource_definition(definition)
        name = ours["metadata"]["name"]
        theirs = await client.get(CUSTOM_RESOURCE_DEFINITION, ObjectKey("", name))
        found[name] = None if theirs is None else unlike(_schema(ours), _schema(theirs))
    return found


def _schema(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the version that is stored."""
    stored: Mapping[str, Any] = next((each for each in crd["spec"]["versions"] if each.get("storage")), {})
    schema: Mapping[str, Any] = (stored.get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


async def _leader(client: KubeClient, release: str, namespace: str) -> Leader:
    body = await client.get(LEASE, ObjectKey(namespace, f"{release}-controllers"))
    if body is None:
        return Leader("", datetime.min.replace(tzinfo=UTC))
    record = LeaseRecord.parse(body)
    return Leader(record.holder, record.renewed_at + record.duration)


async def _policies(client: KubeClient, release: str) -> frozenset[str]:
    there = {each["metadata"]["name"] for each in await client.list(VALIDATING_ADMISSION_POLICY)}
    bindings = await client.list(VALIDATING_ADMISSION_POLICY_BINDING)
    bound = {each["spec"].get("policyName") for each in bindings}
    return frozenset(policy for policy in POLICIES if f"{release}-{policy}" in there & bound)


async def _certificates(client: KubeClient, release: str, namespace: str) -> Mapping[str, datetime]:
    selector = f"{OURS},{INSTANCE}={release}"
    ends: dict[str, datetime] = {}
    for body in await client.list(SECRET, namespace=namespace, selector=selector):
        encoded = (body.get("data") or {}).get("tls.crt")
        if encoded and (at := _end(encoded)) is not None:
            ends[body["metadata"]["name"]] = at
    return ends


def _end(encoded: str) -> datetime | None:
    """When the first of the certificates ends; None where there is none that can be read."""
    try:
        chain = x509.load_pem_x509_certificates(base64.b64decode(encoded))
    except (ValueError, binascii.Error):
        return None
    return min(one.not_valid_after_utc for one in chain)
