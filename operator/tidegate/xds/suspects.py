"""Which resource of a refused response is to blame: a proxy refuses a response as a whole, and does not always say for what in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.routing.snapshot import Resource, Resources

Change = dict[str, Resource | None]
"""Resources by name; None for one that is deleted."""


@dataclass(slots=True)
class Suspects:
    """Everything from refused responses that was not accepted since.

    It is sent again in ever smaller portions, each half as large as the last that was refused and twice as large as the last that was accepted.
    What was refused by itself is in `condemned`, with the proxy's words, and waits until there is something else under its name.
    """

    refused: Change = field(default_factory=Change)
    condemned: dict[str, str] = field(default_factory=dict[str, str])
    _portion: int = 1

    def refuse(self, change: Change, words: str) -> None:
        """The proxy refused `change`; of one resource it is clear which."""
        self.refused |= change
        for name in change:
            self.condemned.pop(name, None)
        if len(change) == 1:
            self.condemned |= dict.fromkeys(change, words)
        self._portion = max(1, len(change) // 2)

    def accept(self, names: Iterable[str]) -> None:
        """The proxy accepted what it was sent under `names`: that much is not to blame."""
        if self.refused:
            self._portion *= 2
            self.forget(names)

    def forget(self, names: Iterable[str]) -> None:
        """Nothing is held against `names` any more."""
        for name in names:
            self.refused.pop(name, None)
            self.condemned.pop(name, None)

    def portion_of(self, change: Change) -> Change:
        """As much of `change` as is to be sent next: what was never refused, else some suspects; nothing when only the condemned are left."""
        if not self.refused:
            return change
        fresh = {name: one for name, one in change.items() if not self.are_of(name, one)}
        if fresh:
            return fresh
        names = sorted(change.keys() - self.condemned.keys())
        return {name: change[name] for name in names[: self._portion]}

    def are_of(self, name: str, resource: Resource | None) -> bool:
        """Whether just this was in a refused response (None: its deletion)."""
        if name not in self.refused:
            return False
        refused = self.refused[name]
        return (refused and refused.version) == (resource and resource.version)

    def given_up(self, resources: Resources) -> Mapping[str, str]:
        """The names under which just what is in `resources` was refused by itself, and the proxy's words: there is no use in waiting."""
        return {
            name: words for name, words in self.condemned.items() if self.are_of(name, resources.get(name))
        }
