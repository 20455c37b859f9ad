"""Find the object that a name on the command line means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import typer

from tidegate.api.compute_override import OverrideKind
from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.api.meta import ObjectKey
from tidegate.cli.options import KubeOptions
from tidegate.errors import PermanentError, TidegateError, UnknownKindError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind

STATEFUL_KINDS: Final = (kinds.INFERENCE, kinds.MODEL_ACCESS, kinds.FEATURE_COMPUTE, kinds.COMPUTE_POOL)
"""The kinds that have a state, in the order of precedence for names."""
TARGET_KINDS: Final = (kinds.INFERENCE, kinds.COMPUTE_POOL)
"""The kinds that the allocator decides about."""
_KINDS: Final = {
    kind.kind: kind for kind in (*STATEFUL_KINDS, kinds.COMPUTE_OVERRIDE, kinds.ALLOCATION_DECISION)
}
_SHORT_NAMES: Final = {
    "access": "ModelAccess",
    "accesses": "ModelAccess",
    "pool": "ComputePool",
    "pools": "ComputePool",
    "override": "ComputeOverride",
    "overrides": "ComputeOverride",
    "decision": "AllocationDecision",
    "decisions": "AllocationDecision",
}


def _build_aliases() -> Mapping[str, Kind]:
    aliases: dict[str, Kind] = {}
    for definition in KIND_DEFINITIONS:
        kind = _KINDS[definition.resource.KIND]
        for alias in (kind.kind.lower(), kind.plural, definition.short_name):
            aliases[alias] = kind
    for alias, name in _SHORT_NAMES.items():
        aliases[alias] = _KINDS[name]
    return aliases


ALIASES: Final = _build_aliases()
"""Our kinds by each name that kubectl knows, and by shorter ones of our own."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A name as typed: with the kind and the namespace if the user gave them."""

    name: str
    kind: Kind | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectMatch:
    """The object that a name means, and others that it could also mean."""

    kind: Kind
    key: ObjectKey
    alternatives: Sequence[str] = ()


def join_kind(kind: str, name: str | None) -> str:
    """Return `kind/name` for a kind and a name that are two arguments, and the only argument otherwise.

    Raises BadParameter if the first argument is not a kind.
    """
    if name is None:
        return kind
    if kind.lower() not in ALIASES:
        message = f'unknown kind "{kind}"; expected one of: {", ".join(sorted(_KINDS))}'
        raise typer.BadParameter(message)
    return f"{kind}/{name}"


def parse_object_name(text: str) -> ObjectName:
    """Parse `name`, `namespace/name`, `kind/name` or `kind/namespace/name`. Raises ValueError for anything else."""
    first, *rest = text.split("/")
    kind = ALIASES.get(first.lower())
    if kind is not None and len(rest) in ({1, 2} if kind.namespaced else {1}) and all(rest):
        return ObjectName(rest[-1], kind, rest[0] if len(rest) > 1 else None)
    key = ObjectKey.parse(text)
    return ObjectName(key.name, None, key.namespace or None)


async def find_object(client: KubeClient, text: str, options: KubeOptions, namespace: str) -> ObjectMatch:
    """Find the object with a state that a name means.

    If several kinds have an object of that name, the first kind in STATEFUL_KINDS wins, and the result names the others.
    Raises PermanentError when there is none, or when several namespaces have one.
    """
    name = parse_object_name(text)
    if name.kind is not None and name.kind not in STATEFUL_KINDS:
        message = f'a {name.kind} has no state of its own; list them with "tidegate get {name.kind.plural}"'
        raise PermanentError(message)
    matches = await find_matches(client, name, options, namespace, STATEFUL_KINDS)
    kind, key = matches[0]
    candidates = [str(match_key) for match_kind, match_key in matches if match_kind == kind]
    if len(candidates) > 1:
        message = (
            f"there are {len(candidates)} of the kind {kind} with that name: say {' or '.join(candidates)}"
        )
        raise PermanentError(message)
    return ObjectMatch(
        kind, key, tuple(f"{match_kind.kind.lower()}/{match_key}" for match_kind, match_key in matches[1:])
    )


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
    namespace: str,
    *,
    allowed_kinds: Sequence[Kind] = TARGET_KINDS,
) -> AllocationTarget:
    """Find the object that a name means.

    `namespace` is that of an Inference whose name gives none.
    Raises PermanentError when there is none, or more than one.
    """
    matches = await find_matches(
        client, parse_target_name(text, allowed_kinds), options, namespace, allowed_kinds
    )
    targets = [AllocationTarget(OverrideKind(str(kind)), key) for kind, key in matches]
    if len(targets) > 1:
        ways = (str(key) if kind.namespaced else f"{kind.kind.lower()}/{key}" for kind, key in matches)
        message = f"'{text}' could be {' or '.join(map(str, targets))}: say {', '.join(ways)}"
        raise PermanentError(message)
    return targets[0]


async def find_key(
    client: KubeClient, text: str, options: KubeOptions, namespace: str, kind: Kind
) -> ObjectKey:
    """Find the object of a kind that a name means. Raises as `find_target`."""
    name = parse_target_name(text, (kind,))
    keys = [str(key) for _, key in await find_matches(client, name, options, namespace, (kind,))]
    if len(keys) > 1:
        message = f"there are {len(keys)} of the kind {kind} with that name: say {' or '.join(keys)}"
        raise PermanentError(message)
    return ObjectKey.parse(keys[0])


async def find_matches(
    client: KubeClient,
    name: ObjectName,
    options: KubeOptions,
    namespace: str,
    allowed_kinds: Sequence[Kind],
) -> Sequence[tuple[Kind, ObjectKey]]:
    """Find all objects of `allowed_kinds` that a name could mean; at least one.

    `namespace` counts when the name gives none. A name with a namespace never means a pool,
    unless it gives the kind. Raises PermanentError when there is none.
    """
    namespaced = name.namespace is not None or options.namespace is not None
    searched = [kind for kind in allowed_kinds if kind.namespaced or not namespaced]
    if name.kind is not None:
        searched = [name.kind]
    matches: list[tuple[Kind, ObjectKey]] = []
    errors: list[TidegateError] = []
    for kind in searched:
        try:
            matches += [(kind, key) for key in await _find_keys(client, kind, name, options, namespace)]
        except (PermanentError, UnknownKindError) as error:
            # A user who may not read one kind may still mean an object of another.
            errors.append(error)
    if not matches:
        raise (
            errors[0] if errors else PermanentError(_not_found_message(name, options, namespace, searched))
        )
    return matches


async def _find_keys(
    client: KubeClient, kind: Kind, name: ObjectName, options: KubeOptions, namespace: str
) -> Sequence[ObjectKey]:
    if kind.namespaced and options.everywhere and name.namespace is None:
        bodies = await client.list(kind, fields=f"metadata.name={name.name}")
        return [ObjectKey(body["metadata"]["namespace"], name.name) for body in bodies]
    key = ObjectKey((name.namespace or namespace) if kind.namespaced else "", name.name)
    return [] if await client.get(kind, key) is None else [key]


def _not_found_message(
    name: ObjectName, options: KubeOptions, namespace: str, searched: Sequence[Kind]
) -> str:
    everywhere = options.everywhere and name.namespace is None
    *first_kinds, last_kind = map(str, searched)
    kinds_text = f"{', '.join(first_kinds)} or {last_kind}" if first_kinds else last_kind
    plural = "…" if first_kinds else searched[0].plural
    if not any(kind.namespaced for kind in searched):
        return f'{kinds_text} "{name.name}" not found; list them with "tidegate get {plural}"'
    location = "in any namespace" if everywhere else f'in namespace "{name.namespace or namespace}"'
    return f'{kinds_text} "{name.name}" not found {location}; list them with "tidegate get {plural} -A"'


def parse_pool_name(text: str) -> str:
    """Return the name of a pool. Raises BadParameter if the text names something else."""
    try:
        parsed = parse_object_name(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if parsed.kind not in {None, kinds.COMPUTE_POOL} or parsed.namespace is not None:
        message = f"'{text}' is no ComputePool"
        raise typer.BadParameter(message)
    return parsed.name
