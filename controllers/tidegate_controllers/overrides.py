"""Caches ComputeOverrides, and notifies the targets of those that change."""

from collections.abc import Callable
from datetime import datetime

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.kube.parsed import Parsed
from tidegate.planning.overrides import about, in_force

Wake = Callable[[ObjectKey], None]


class Overrides:
    """Finds overrides by target; there are few, so that each call goes through all of them."""

    def __init__(self, parsed: Parsed[ComputeOverride]) -> None:
        self._parsed = parsed
        self._targets: dict[ObjectKey, tuple[OverrideKind, ObjectKey]] = {}
        self._wakes: list[tuple[OverrideKind, Wake]] = []
        parsed.store.subscribe(self._changed)

    def connect(self, kind: OverrideKind, wake: Wake) -> None:
        """Call `wake` with each target of that kind whose overrides change."""
        self._wakes.append((kind, wake))

    def get(self, key: ObjectKey) -> ComputeOverride | None:
        """Return an override; None if it does not exist or does not parse."""
        return self._parsed.get(key)

    def all(self) -> tuple[ComputeOverride, ...]:
        """Return all overrides that parse."""
        return self._parsed.all()

    def about(self, kind: OverrideKind, key: ObjectKey, now: datetime) -> tuple[ComputeOverride, ...]:
        """Return the overrides of one object that are in force."""
        return about(in_force(self.all(), now), kind, key)

    def of(self, kind: OverrideKind, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the keys of all overrides with this target, in force or not."""
        return tuple(override.key for override in about(self.all(), kind, key))

    def _changed(self, key: ObjectKey) -> None:
        override = self._parsed.get(key)
        before = self._targets.pop(key, None)
        now = None
        if override is not None:
            now = self._targets[key] = (override.spec.target.kind, override.spec.target.key)
        for kind, target in {item for item in (before, now) if item is not None}:
            for connected_kind, wake in self._wakes:
                if connected_kind is kind:
                    wake(target)
