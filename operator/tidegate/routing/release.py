"""What a release does to the weights: a pure function of the spec and status.release, the same for gateways and status.

The status is the only memory. One that is absent, or about another release, gives the target no request at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from math import gcd

from tidegate.api.model_access import ModelAccess, Route, Target
from tidegate.api.release import ReleasePhase, ReleaseStatus

_HASH_LENGTH = 16
_ALL = 100


def release_key(access: ModelAccess) -> str:
    """Names the release that the spec asks for, as `what-how`: what is released of whom by which steps, and how it is judged.

    Empty when there is none. Defaults leave no trace in it, so a version of Tidegate with further fields gives the same.
    """
    route = access.spec.released_route
    if access.spec.release is None or route is None:
        return ""
    how = access.spec.release.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    what = {
        "uid": access.metadata.uid,
        "release": {name: how.pop(name) for name in ("route", "target", "steps") if name in how},
        "targets": sorted([target.inference, target.weight] for target in route.targets),
    }
    return f"{_hash(what)}-{_hash(how)}"


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_HASH_LENGTH]


def release_status(access: ModelAccess) -> ReleaseStatus | None:
    """How far the release is that the spec asks for; None before it has begun.

    What is promoted stays so while only the way to judge it is edited: that takes nobody's traffic away.
    """
    status, key = access.status.release, release_key(access)
    if status is None or not key:
        return None
    promoted = status.phase is ReleasePhase.PROMOTED
    same = status.key.partition("-")[0] == key.partition("-")[0] if promoted else status.key == key
    return status if same else None


def share_in_effect(access: ModelAccess) -> int:
    """The percentage that the target of the release takes; what the status calls a weight is not trusted."""
    release, status = access.spec.release, release_status(access)
    if release is None or status is None or status.phase is ReleasePhase.ROLLED_BACK:
        return 0
    if status.phase is ReleasePhase.PROMOTED:
        return _ALL
    return release.steps[min(status.step, len(release.steps)) - 1]


def is_released(access: ModelAccess, route: Route) -> bool:
    """Whether the release is about this route."""
    released = access.spec.released_route
    return released is not None and released.name == route.name


def is_candidate(access: ModelAccess, route: Route, inference: str) -> bool:
    """Whether `inference` is the target that is still being judged on this route."""
    release, status = access.spec.release, release_status(access)
    if release is None or not is_released(access, route) or inference != release.target:
        return False
    return status is None or status.phase is not ReleasePhase.PROMOTED


def in_effect(access: ModelAccess, route: Route, awake: Collection[str] | None = None) -> Route:
    """`route` with the weights that count: as in the spec, but for the route of a release.

    With `awake`, the targets that have pods: whoever has none gives its share to the stable targets that have, and never to the released one.
    When no stable target has a pod they keep theirs, for the fallback, or for nobody.
    """
    release = access.spec.release
    if release is None or not is_released(access, route):
        return route
    share = share_in_effect(access)
    stable = {
        target.inference: target.weight for target in route.targets if target.inference != release.target
    }
    if awake is not None:
        share = share if release.target in awake else 0
        standing = {name: weight if name in awake else 0 for name, weight in stable.items()}
        stable = standing if any(standing.values()) else stable
    others = sum(stable.values())
    weights = [
        share * others if target.inference == release.target else (_ALL - share) * stable[target.inference]
        for target in route.targets
    ]
    unit = gcd(*weights) or 1
    targets = tuple(
        Target.model_construct(inference=target.inference, weight=weight // unit)
        for target, weight in zip(route.targets, weights, strict=True)
    )
    return route.model_copy(update={"targets": targets})
