"""One Lease object as a typed value, and the calls on it that an election needs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import LEASE
from tidegate.kube.port import Manifest

_MICRO_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The holder of a Lease, its number of transitions (the epoch), and its times."""

    holder: str
    duration: timedelta
    transitions: int
    acquired_at: datetime
    renewed_at: datetime
    resource_version: str = ""

    @classmethod
    def parse(cls, body: Manifest) -> LeaseRecord:
        """Parse a Lease; a missing field or a malformed time counts as not held."""
        spec = body.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            duration=timedelta(seconds=spec.get("leaseDurationSeconds") or 1),
            transitions=spec.get("leaseTransitions") or 0,
            acquired_at=_parse_time(spec.get("acquireTime")),
            renewed_at=_parse_time(spec.get("renewTime")),
            resource_version=body["metadata"].get("resourceVersion") or "",
        )

    def render(self, key: ObjectKey) -> dict[str, Any]:
        """Return the manifest of the Lease with this record."""
        metadata = {"name": key.name, "namespace": key.namespace}
        if self.resource_version:
            metadata["resourceVersion"] = self.resource_version
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": max(1, int(self.duration.total_seconds())),
                "leaseTransitions": self.transitions,
                "acquireTime": self.acquired_at.astimezone(UTC).strftime(_MICRO_TIME),
                "renewTime": self.renewed_at.astimezone(UTC).strftime(_MICRO_TIME),
            },
        }


class LeaseClient:
    """Reads and writes one Lease; a write names the resourceVersion that it read, so that one of two writers wins."""

    def __init__(self, client: KubeClient, key: ObjectKey) -> None:
        self.key: Final = key
        self._client = client

    async def read(self) -> LeaseRecord | None:
        """Return the record; None if the Lease does not exist."""
        body = await self._client.get(LEASE, self.key)
        return None if body is None else LeaseRecord.parse(body)

    async def write(self, record: LeaseRecord, *, within: timedelta) -> LeaseRecord:
        """Create the Lease, or replace the version that was read.

        Raises ConflictError if another writer was first, ApiUnavailableError if there is no answer `within` the time.
        """
        manifest = record.render(self.key)
        write = self._client.replace if record.resource_version else self._client.create
        return LeaseRecord.parse(await write(LEASE, manifest, within=within))


def _parse_time(text: str | None) -> datetime:
    try:
        return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
