"""Who owns a host name: the older ModelAccess, and of two as old the one whose namespace/name sorts first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.routing.refusals import Refusal

DOMAIN: Final = "tidegate"
FEATURES_DOMAIN: Final = "features.tidegate"

# An object that the API server has not stored yet has no age; it must not win over one that has.
_NEWEST: Final = datetime.max.replace(tzinfo=UTC)


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
    """Every host in the specs and the access that it leads to."""
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
