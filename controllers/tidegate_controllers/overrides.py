"""Caches ComputeOverrides, and notifies the targets of those that change."""

from collections.abc import Callable
from datetime import datetime

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.overrides import select_active, select_for_target

Wake = Callable[[ObjectKey], None]


class OverrideIndex:
    """Finds overrides by target; there are few, so that each call goes through all of them."""

    def __init__(self, parsed: TypedCache[ComputeOverride]) -> None:
        self._parsed = parsed
        self._targets: dict[ObjectKey, tuple[OverrideKind, ObjectKey]] = {}
        self._wakes: list[tuple[OverrideKind, Wake]] = []
        parsed.store.subscribe(self._override_changed)

    def subscribe_targets(self, kind: OverrideKind, wake: Wake) -> None:
        """Call `wake` with each target of that kind whose overrides change."""
        self._wakes.append((kind, wake))

    def get(self, key: ObjectKey) -> ComputeOverride | None:
        """Return an override; None if it does not exist or does not parse."""
        return self._parsed.get(key)

    def list_all(self) -> tuple[ComputeOverride, ...]:
        """Return all overrides that parse."""
        return self._parsed.list_all()

    def find_active(self, kind: OverrideKind, key: ObjectKey, now: datetime) -> tuple[ComputeOverride, ...]:
        """Return the overrides of one object that are in force."""
        return select_for_target(select_active(self.list_all(), now), kind, key)

    def find_keys(self, kind: OverrideKind, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the keys of all overrides with this target, in force or not."""
        return tuple(override.key for override in select_for_target(self.list_all(), kind, key))

    def _override_changed(self, key: ObjectKey) -> None:
        override = self._parsed.get(key)
        before = self._targets.pop(key, None)
        now = None
        if override is not None:
            now = self._targets[key] = (override.spec.target.kind, override.spec.target.key)
        for kind, target in {item for item in (before, now) if item is not None}:
            for connected_kind, wake in self._wakes:
                if connected_kind is kind:
                    wake(target)
