"""The effect of a release on weights: a pure function of the spec and status.release.

Gateways and the status of a ModelAccess use the same function. The status is the only memory:
if it is absent, or about another release, the target gets no request at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from math import gcd

from tidegate.api.model_access import ModelAccess, Route, RouteTarget
from tidegate.api.release import ReleaseStatus
from tidegate.api.release_commands import ReleasePhase

_HASH_LENGTH = 16
_ALL = 100


def release_key(access: ModelAccess) -> str:
    """Return the key of the release that the spec asks for, as `<hash>-<hash>`; empty if there is none.

    The first hash is of the object, target, weights and steps; the second is of how the release is judged.
    Defaults are not hashed, so a version of Tidegate with further fields gives the same key.
    """
    route = access.spec.released_route
    if access.spec.release is None or route is None:
        return ""
    criteria = access.spec.release.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    subject = {
        "uid": access.metadata.uid,
        "release": {name: criteria.pop(name) for name in ("route", "target", "steps") if name in criteria},
        "targets": sorted([target.inference, target.weight] for target in route.targets),
    }
    return f"{_hash_json(subject)}-{_hash_json(criteria)}"


def _hash_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_HASH_LENGTH]


def release_status(access: ModelAccess) -> ReleaseStatus | None:
    """Return the status of the release that the spec asks for; None before it has begun.

    A promoted release stays promoted while only its criteria are edited: that takes no traffic away.
    """
    status, key = access.status.release, release_key(access)
    if status is None or not key:
        return None
    promoted = status.phase is ReleasePhase.PROMOTED
    same = status.key.partition("-")[0] == key.partition("-")[0] if promoted else status.key == key
    return status if same else None


def share_in_effect(access: ModelAccess) -> int:
    """Return the percentage of traffic of the released target; the weight in the status is not trusted."""
    release, status = access.spec.release, release_status(access)
    if release is None or status is None or status.phase is ReleasePhase.ROLLED_BACK:
        return 0
    if status.phase is ReleasePhase.PROMOTED:
        return _ALL
    return release.steps[min(status.step, len(release.steps)) - 1]


def is_released(access: ModelAccess, route: Route) -> bool:
    """Return whether the release moves the traffic of this route."""
    released = access.spec.released_route
    return released is not None and released.name == route.name


def is_candidate(access: ModelAccess, route: Route, inference: str) -> bool:
    """Return whether `inference` is the target of this route whose release is not promoted yet."""
    release, status = access.spec.release, release_status(access)
    if release is None or not is_released(access, route) or inference != release.target:
        return False
    return status is None or status.phase is not ReleasePhase.PROMOTED


def route_in_effect(access: ModelAccess, route: Route, with_pods: Collection[str] | None = None) -> Route:
    """Return `route` with its effective weights: those of the spec, except on the route of a release.

    `with_pods` are the targets that have pods. A target without pods gives its share to the stable targets that have some,
    never to the released one.
    If no stable target has a pod, they keep their shares: the fallback answers these requests, or they fail.
    """
    release = access.spec.release
    if release is None or not is_released(access, route):
        return route
    share = share_in_effect(access)
    stable = {
        target.inference: target.weight for target in route.targets if target.inference != release.target
    }
    if with_pods is not None:
        share = share if release.target in with_pods else 0
        available = {name: weight if name in with_pods else 0 for name, weight in stable.items()}
        stable = available if any(available.values()) else stable
    stable_total = sum(stable.values())
    weights = [
        share * stable_total
        if target.inference == release.target
        else (_ALL - share) * stable[target.inference]
        for target in route.targets
    ]
    unit = gcd(*weights) or 1
    targets = tuple(
        RouteTarget.model_construct(inference=target.inference, weight=weight // unit)
        for target, weight in zip(route.targets, weights, strict=True)
    )
    return route.model_copy(update={"targets": targets})
