"""Which object a name on the command line means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.meta import ObjectKey
from tidegate.cli.options import Where
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import COMPUTE_POOL, INFERENCE

_KINDS: Final = {
    **dict.fromkeys(("inference", "inferences", "inf"), OverrideKind.INFERENCE),
    **dict.fromkeys(("computepool", "computepools", "cpool"), OverrideKind.COMPUTE_POOL),
}


@dataclass(frozen=True, slots=True)
class Named:
    """A name as it was typed: of which kind, where that was said, and in which namespace."""

    name: str
    kind: OverrideKind | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a name means. `body` is absent where only the name is known."""

    kind: OverrideKind
    key: ObjectKey
    body: dict[str, object] | None

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def named(text: str) -> Named:
    """Reads `name`, `namespace/name`, `inference/name` or `computepool/name`; a kind's name before the slash is one.

    Raises ValueError when it is none of them.
    """
    key = ObjectKey.parse(text)
    if not key.namespace:
        return Named(key.name)
    if key.namespace in _KINDS:
        return Named(key.name, _KINDS[key.namespace])
    return Named(key.name, OverrideKind.INFERENCE, key.namespace)


async def find(
    client: KubeClient, text: str, where: Where, usual: str, *, only: OverrideKind | None = None
) -> Target:
    """The object. `usual`: namespace of an Inference where nothing else is said; `only`: the kind that it must be.

    Raises PermanentError when there is none, or more than one that it could be.
    """
    asked = named(text)
    kind = asked.kind or only
    if only is not None and kind is not only:
        message = f"'{text}' is no {only}: name one"
        raise PermanentError(message)
    if kind is None and where.namespace is not None:
        kind = OverrideKind.INFERENCE  # pools have no namespace
    found: list[Target] = []
    if kind is not OverrideKind.COMPUTE_POOL:
        found += await _inferences(client, asked, where, usual)
    if kind is not OverrideKind.INFERENCE:
        body = await client.get(COMPUTE_POOL, ObjectKey("", asked.name))
        if body is not None:
            found.append(Target(OverrideKind.COMPUTE_POOL, ObjectKey("", asked.name), dict(body)))
    if len(found) == 1:
        return found[0]
    raise PermanentError(_none(asked, kind, where, usual) if not found else _several(text, found))


async def _inferences(client: KubeClient, asked: Named, where: Where, usual: str) -> list[Target]:
    if where.everywhere and asked.namespace is None:
        bodies = await client.list(INFERENCE, fields=f"metadata.name={asked.name}")
    else:
        key = ObjectKey(_namespace(asked, where, usual), asked.name)
        body = await client.get(INFERENCE, key)
        bodies = [] if body is None else [body]
    return [
        Target(OverrideKind.INFERENCE, ObjectKey(each["metadata"]["namespace"], asked.name), dict(each))
        for each in bodies
    ]


def _namespace(asked: Named, where: Where, usual: str) -> str:
    return asked.namespace or where.namespace or usual


def _none(asked: Named, kind: OverrideKind | None, where: Where, usual: str) -> str:
    place = (
        "in any namespace"
        if where.everywhere and asked.namespace is None
        else f"in namespace {_namespace(asked, where, usual)}"
    )
    if kind is OverrideKind.INFERENCE:
        return f"there is no Inference {asked.name} {place}: kubectl get inferences -A shows those there are"
    if kind is OverrideKind.COMPUTE_POOL:
        return f"there is no ComputePool {asked.name}: kubectl get computepools shows those there are"
    return (
        f"there is no Inference {asked.name} {place} and no ComputePool {asked.name}: "
        "kubectl get inferences,computepools -A shows those there are"
    )


def _several(text: str, found: list[Target]) -> str:
    ways = ", ".join(
        str(each.key) if each.kind is OverrideKind.INFERENCE else f"computepool/{each.key}" for each in found
    )
    return f"'{text}' could be {' or '.join(map(str, found))}: say {ways}"
