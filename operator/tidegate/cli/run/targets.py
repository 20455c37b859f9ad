"""Find the Inference or ComputePool that a name means to the commands that steer or explain compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.cli.options import KubeOptions
from tidegate.cli.run.object_names import ObjectName, find_matches, parse_object_name
from tidegate.errors import PermanentError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind

TARGET_KINDS: Final = (kinds.INFERENCE, kinds.COMPUTE_POOL)


@dataclass(frozen=True, slots=True)
class AllocationTarget:
    """The object that a name means."""

    kind: OverrideKind
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def parse_target_name(text: str, allowed_kinds: Sequence[Kind] = TARGET_KINDS) -> ObjectName:
    """Parse a name.

    Raises ValueError when it is no name, and PermanentError when its kind is not in `allowed_kinds`.
    """
    name = parse_object_name(text)
    if name.kind is not None and name.kind not in allowed_kinds:
        message = f"'{text}' is no {' or '.join(map(str, allowed_kinds))}: name one"
        raise PermanentError(message)
    return name


async def find_target(
    client: KubeClient,
    text: str,
    options: KubeOptions,
    default_namespace: str,
    *,
    allowed_kinds: Sequence[Kind] = TARGET_KINDS,
) -> AllocationTarget:
    """Find the object that a name means.

    `default_namespace` is that of an Inference when nothing else gives one.
    Raises PermanentError when there is none, or more than one.
    """
    matches = await find_matches(
        client, parse_target_name(text, allowed_kinds), options, default_namespace, allowed_kinds
    )
    targets = [AllocationTarget(OverrideKind(str(kind)), key) for kind, key in matches]
    if len(targets) > 1:
        ways = (str(key) if kind.namespaced else f"{kind.kind.lower()}/{key}" for kind, key in matches)
        message = f"'{text}' could be {' or '.join(map(str, targets))}: say {', '.join(ways)}"
        raise PermanentError(message)
    return targets[0]
