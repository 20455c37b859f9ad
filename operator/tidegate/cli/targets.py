"""Which object a name means to the commands that steer compute, or say why it is as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.cli.naming import Asked, asked, find_all
from tidegate.cli.options import Where
from tidegate.errors import PermanentError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind

EITHER: Final = (kinds.INFERENCE, kinds.COMPUTE_POOL)


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a name means."""

    kind: OverrideKind
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def named(text: str, among: Sequence[Kind] = EITHER) -> Asked:
    """Reads a name. Raises ValueError when it is none, PermanentError when it is that of a kind not `among` these."""
    wanted = asked(text)
    if wanted.kind is not None and wanted.kind not in among:
        message = f"'{text}' is no {' or '.join(map(str, among))}: name one"
        raise PermanentError(message)
    return wanted


async def find(
    client: KubeClient, text: str, where: Where, usual: str, *, among: Sequence[Kind] = EITHER
) -> Target:
    """The object. `usual`: namespace of an Inference where nothing else is said; `among`: the kinds that it may be.

    Raises PermanentError when there is none, or more than one that it could be.
    """
    found = await find_all(client, named(text, among), where, usual, among)
    targets = [Target(OverrideKind(str(kind)), key) for kind, key in found]
    if len(targets) > 1:
        ways = (str(key) if kind.namespaced else f"{kind.kind.lower()}/{key}" for kind, key in found)
        message = f"'{text}' could be {' or '.join(map(str, targets))}: say {', '.join(ways)}"
        raise PermanentError(message)
    return targets[0]
