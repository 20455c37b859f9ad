"""Find the Inference or ComputePool that a name means to the commands that steer or explain compute."""

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
    """Parse a name.

    Raises ValueError when it is no name, and PermanentError when its kind is not `among` these.
    """
    name = asked(text)
    if name.kind is not None and name.kind not in among:
        message = f"'{text}' is no {' or '.join(map(str, among))}: name one"
        raise PermanentError(message)
    return name


async def find(
    client: KubeClient, text: str, where: Where, usual: str, *, among: Sequence[Kind] = EITHER
) -> Target:
    """Find the object that a name means.

    `usual` is the namespace of an Inference when nothing else gives one; `among` are the kinds that it may have.
    Raises PermanentError when there is none, or more than one.
    """
    matches = await find_all(client, named(text, among), where, usual, among)
    targets = [Target(OverrideKind(str(kind)), key) for kind, key in matches]
    if len(targets) > 1:
        ways = (str(key) if kind.namespaced else f"{kind.kind.lower()}/{key}" for kind, key in matches)
        message = f"'{text}' could be {' or '.join(map(str, targets))}: say {', '.join(ways)}"
        raise PermanentError(message)
    return targets[0]
