"""The names of virtual hosts, how requests give them, and the owner of a host that several ModelAccesses claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.refusals import RoutingRefusal

ACCESS_HEADER: Final = "x-tidegate-access"
FEATURES_HEADER: Final = "x-tidegate-features"
"""The headers in which a request names the ModelAccess or FeatureCompute that it is for."""

DOMAIN: Final = "tidegate"
FEATURES_DOMAIN: Final = "features.tidegate"

# An object that the API server has not stored yet has no age; it must not win over one that has.
_NEWEST: Final = datetime.max.replace(tzinfo=UTC)


class HostKind(StrEnum):
    """The kinds of objects that have a virtual host."""

    ACCESS = "access"
    FEATURES = "features"
    PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True, order=True)
class HostKey:
    """The key of the virtual host of one object."""

    kind: HostKind
    object: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.object}"

    def __hash__(self) -> int:
        # Without the kind, as with fleet.BackendKey.
        return hash(self.object)

    @classmethod
    def parse(cls, text: str) -> HostKey:
        """Parse `access/<namespace>/<name>`, the inverse of str(). Raises ValueError for anything else."""
        kind, _, key = text.partition("/")
        return cls(HostKind(kind), ObjectKey.parse(key))


def access_hostname(key: ObjectKey) -> str:
    """Return the host that every ModelAccess has without configuration.

    No access can claim it, since the API rejects hosts under .tidegate.
    """
    return f"{key.name}.{key.namespace}.{DOMAIN}"


def features_hostname(key: ObjectKey) -> str:
    """Return the host of a FeatureCompute.

    It has four labels, so that it never equals that of an access in a namespace called `features`.
    """
    return f"{key.name}.{key.namespace}.{FEATURES_DOMAIN}"


def sort_by_age(accesses: Iterable[ModelAccess]) -> list[ModelAccess]:
    """Sort accesses by age, the oldest first."""
    return sorted(
        accesses, key=lambda access: (access.metadata.creation_timestamp or _NEWEST, str(access.key))
    )


def find_host_owners(accesses: Iterable[ModelAccess]) -> Mapping[str, ObjectKey]:
    """Return the owner of every host in the specs: the oldest access that claims it.

    Of two with the same age, the one whose namespace/name sorts first owns it.
    """
    owners: dict[str, ObjectKey] = {}
    for access in sort_by_age(accesses):
        for host in access.spec.hosts:
            owners.setdefault(host, access.key)
    return owners


def find_host_conflicts(access: ModelAccess, owners: Mapping[str, ObjectKey]) -> tuple[RoutingRefusal, ...]:
    """Return one refusal for each host of `access` that another access owns."""
    return tuple(
        RoutingRefusal(
            access=access.key,
            reason=Reason.HOST_CONFLICT,
            part=f"spec.hosts: {host}",
            message=(
                f"host {host} belongs to the older ModelAccess {owners[host]}: choose another host, or delete that object; "
                f"{access_hostname(access.key)} works meanwhile"
            ),
        )
        for host in access.spec.hosts
        if owners[host] != access.key
    )
