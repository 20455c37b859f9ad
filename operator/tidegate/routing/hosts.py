"""Who answers to which name: what the virtual hosts of our objects are called, and who owns a host that two want."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.refusals import Refusal

DOMAIN: Final = "tidegate"
FEATURES_DOMAIN: Final = "features.tidegate"

# An object that the API server has not stored yet has no age; it must not win over one that has.
_NEWEST: Final = datetime.max.replace(tzinfo=UTC)


class HostKind(StrEnum):
    """The kinds that have a virtual host of their own."""

    ACCESS = "access"
    FEATURES = "features"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True, order=True)
class HostKey:
    """Names the virtual host of one object."""

    kind: HostKind
    object: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.object}"

    def __hash__(self) -> int:
        # Without the kind, as with fleet.BackendKey.
        return hash(self.object)

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """The inverse of str(): `access/<namespace>/<name>`. Raises ValueError for anything else."""
        kind, _, key = text.partition("/")
        return cls(HostKind(kind), ObjectKey.parse(key))


def access_host(key: ObjectKey) -> str:
    """The host that every ModelAccess has by itself; nobody can claim it, since the API refuses hosts under .tidegate."""
    return f"{key.name}.{key.namespace}.{DOMAIN}"


def features_host(key: ObjectKey) -> str:
    """The host of a FeatureCompute. Four labels, so that it never meets an access in a namespace called `features`."""
    return f"{key.name}.{key.namespace}.{FEATURES_DOMAIN}"


def by_age(accesses: Iterable[ModelAccess]) -> list[ModelAccess]:
    """Oldest first."""
    return sorted(
        accesses, key=lambda access: (access.metadata.creation_timestamp or _NEWEST, str(access.key))
    )


def claim(accesses: Iterable[ModelAccess]) -> Mapping[str, ObjectKey]:
    """Every host in the specs and the access that it leads to: the oldest, and of two as old the one whose namespace/name sorts first."""
    owners: dict[str, ObjectKey] = {}
    for access in by_age(accesses):
        for host in access.spec.hosts:
            owners.setdefault(host, access.key)
    return owners


def refuse(access: ModelAccess, owners: Mapping[str, ObjectKey]) -> tuple[Refusal, ...]:
    """One refusal for each host of `access` that leads to another one."""
    return tuple(
        Refusal(
            access=access.key,
            reason=Reason.HOST_CONFLICT,
            part=f"spec.hosts: {host}",
            message=(
                f"host {host} belongs to the older ModelAccess {owners[host]}: choose another host, or delete that object; "
                f"{access_host(access.key)} works meanwhile"
            ),
        )
        for host in access.spec.hosts
        if owners[host] != access.key
    )
