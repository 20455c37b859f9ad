"""The ComputeOverrides in the cache, and calls to those about whom one has changed."""

from collections.abc import Callable
from datetime import datetime

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.kube.parsed import Parsed
from tidegate.planning.overrides import about, in_force

Wake = Callable[[ObjectKey], None]


class Overrides:
    """Who is overridden; there are few overrides, so that each look goes through all of them."""

    def __init__(self, parsed: Parsed[ComputeOverride]) -> None:
        self._parsed = parsed
        self._targets: dict[ObjectKey, tuple[OverrideKind, ObjectKey]] = {}
        self._wakes: list[tuple[OverrideKind, Wake]] = []
        parsed.store.subscribe(self._changed)

    def connect(self, kind: OverrideKind, wake: Wake) -> None:
        """From now on calls `wake` with the targets of that kind whose overrides have changed."""
        self._wakes.append((kind, wake))

    def get(self, key: ObjectKey) -> ComputeOverride | None:
        """One of them."""
        return self._parsed.get(key)

    def all(self) -> tuple[ComputeOverride, ...]:
        """Those that parse."""
        return self._parsed.all()

    def about(self, kind: OverrideKind, key: ObjectKey, now: datetime) -> tuple[ComputeOverride, ...]:
        """Those in force about one object."""
        return about(in_force(self.all(), now), kind, key)

    def of(self, kind: OverrideKind, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """All with this target, in force or not."""
        return tuple(each.key for each in about(self.all(), kind, key))

    def _changed(self, key: ObjectKey) -> None:
        override = self._parsed.get(key)
        before = self._targets.pop(key, None)
        now = None
        if override is not None:
            now = self._targets[key] = (override.spec.target.kind, override.spec.target.key)
        for kind, target in {each for each in (before, now) if each is not None}:
            for wanted, wake in self._wakes:
                if wanted is kind:
                    wake(target)
