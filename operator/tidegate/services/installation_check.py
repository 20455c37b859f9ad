"""Find problems of an installation: of its kinds, processes, leader, policies and certificates."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from cryptography import x509

from tidegate import __version__
from tidegate.api.crd import KIND_DEFINITIONS, build_crd
from tidegate.api.meta import ObjectKey
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
from tidegate.planning.diagnosis.installation import (
    COMPONENTS,
    POLICIES,
    ComponentDeployment,
    LeaseHolder,
    ObservedInstallation,
    count_checks,
    diff_schemas,
    find_installation_problems,
)
from tidegate.reports.analysis import AnalysisReport, report_findings
from tidegate.services.installation import INSTANCE_LABEL, TIDEGATE_SELECTOR, choose_release

_VERSION: Final = "app.kubernetes.io/version"

AnswerT = TypeVar("AnswerT")


async def check_installation(
    client: KubeClient, namespace: str | None, suppressed_codes: Collection[str]
) -> AnalysisReport:
    """Return the findings about the installation in a namespace, or about the only one for None.

    Raises TidegateError when it cannot be read.
    """
    reader = _OptionalReader(client)
    deployments = await reader.read_optional(
        "deployments",
        lambda: client.list(DEPLOYMENT, namespace=namespace or "", selector=TIDEGATE_SELECTOR),
    )
    release, namespace = choose_release(deployments or (), namespace)
    installation = ObservedInstallation(
        release=release,
        namespace=namespace,
        kubernetes=await client.get_version(),
        command=__version__,
        now=datetime.now(UTC),
        schemas=await reader.read_optional("customresourcedefinitions", lambda: _compare_schemas(client)),
        processes=None if deployments is None else _parse_processes(deployments, release, namespace),
        leader=await reader.read_optional("leases", lambda: _read_leader(client, release, namespace)),
        policies=await reader.read_optional(
            "validatingadmissionpolicies", lambda: _list_policies(client, release)
        ),
        certificates=await reader.read_optional(
            "secrets", lambda: _read_expiries(client, release, namespace)
        ),
        skipped=tuple(reader.skipped),
    )
    return report_findings(
        find_installation_problems(installation),
        count_checks(installation),
        suppressed=suppressed_codes,
        skipped=installation.skipped,
    )


class _OptionalReader:
    """A reader that skips what the user may not read, and records what it skipped."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.skipped: list[str] = []

    async def read_optional(self, resource: str, read: Callable[[], Awaitable[AnswerT]]) -> AnswerT | None:
        try:
            return await read()
        except (PermanentError, UnknownKindError) as error:
            self.skipped.append(f"{resource}: {error}")
            return None


def _parse_processes(
    deployments: Sequence[Manifest], release: str, namespace: str
) -> Mapping[str, ComponentDeployment | None]:
    deployments_by_name = {
        deployment["metadata"]["name"]: deployment
        for deployment in deployments
        if deployment["metadata"]["namespace"] == namespace
    }
    return {
        component: _parse_process(deployments_by_name.get(f"{release}-{component}"))
        for component in COMPONENTS
    }


def _parse_process(body: Manifest | None) -> ComponentDeployment | None:
    if body is None:
        return None
    desired = body["spec"].get("replicas", 1)
    ready = (body.get("status") or {}).get("readyReplicas", 0)
    return ComponentDeployment(desired, ready, body["metadata"]["labels"].get(_VERSION, ""))


async def _compare_schemas(client: KubeClient) -> Mapping[str, Sequence[str] | None]:
    differences: dict[str, Sequence[str] | None] = {}
    for definition in KIND_DEFINITIONS:
        expected = build_crd(definition)
        name = expected["metadata"]["name"]
        installed = await client.get(CUSTOM_RESOURCE_DEFINITION, ObjectKey("", name))
        differences[name] = (
            None if installed is None else diff_schemas(_stored_schema(expected), _stored_schema(installed))
        )
    return differences


def _stored_schema(crd: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the stored version."""
    stored: Mapping[str, Any] = next(
        (version for version in crd["spec"]["versions"] if version.get("storage")), {}
    )
    schema: Mapping[str, Any] = (stored.get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


async def _read_leader(client: KubeClient, release: str, namespace: str) -> LeaseHolder:
    body = await client.get(LEASE, ObjectKey(namespace, f"{release}-controllers"))
    if body is None:
        return LeaseHolder("", datetime.min.replace(tzinfo=UTC))
    record = LeaseRecord.parse(body)
    return LeaseHolder(record.holder, record.renewed_at + record.duration)


async def _list_policies(client: KubeClient, release: str) -> frozenset[str]:
    names = {body["metadata"]["name"] for body in await client.list(VALIDATING_ADMISSION_POLICY)}
    bindings = await client.list(VALIDATING_ADMISSION_POLICY_BINDING)
    bound_names = {binding["spec"].get("policyName") for binding in bindings}
    return frozenset(policy for policy in POLICIES if f"{release}-{policy}" in names & bound_names)


async def _read_expiries(client: KubeClient, release: str, namespace: str) -> Mapping[str, datetime]:
    selector = f"{TIDEGATE_SELECTOR},{INSTANCE_LABEL}={release}"
    expiries: dict[str, datetime] = {}
    for body in await client.list(SECRET, namespace=namespace, selector=selector):
        encoded = (body.get("data") or {}).get("tls.crt")
        if encoded and (expiry := _earliest_expiry(encoded)) is not None:
            expiries[body["metadata"]["name"]] = expiry
    return expiries


def _earliest_expiry(encoded: str) -> datetime | None:
    """Return the earliest expiry of the certificates; None if none can be parsed."""
    try:
        chain = x509.load_pem_x509_certificates(base64.b64decode(encoded))
    except (ValueError, binascii.Error):
        return None
    return min(certificate.not_valid_after_utc for certificate in chain)
