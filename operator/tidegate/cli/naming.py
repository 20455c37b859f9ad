"""Find the object that a name on the command line means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.crd import DEFINITIONS
from tidegate.api.meta import ObjectKey
from tidegate.cli.options import Where
from tidegate.errors import PermanentError, TidegateError, UnknownKindError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind

SERVED: Final = (kinds.INFERENCE, kinds.MODEL_ACCESS, kinds.FEATURE_COMPUTE, kinds.COMPUTE_POOL)
"""The kinds that have a state, in the order of precedence for names."""
_OURS: Final = {kind.kind: kind for kind in (*SERVED, kinds.COMPUTE_OVERRIDE, kinds.ALLOCATION_DECISION)}
_MORE: Final = {"pool": "ComputePool", "override": "ComputeOverride", "decision": "AllocationDecision"}


def _aliases() -> Mapping[str, Kind]:
    aliases: dict[str, Kind] = {}
    for definition in DEFINITIONS:
        kind = _OURS[definition.resource.KIND]
        for alias in (kind.kind.lower(), kind.plural, definition.short_name):
            aliases[alias] = kind
    for alias, name in _MORE.items():
        aliases[alias] = aliases[f"{alias}s"] = _OURS[name]
    return aliases


ALIASES: Final = _aliases()
"""Our kinds by each name that kubectl knows, and by shorter ones of our own."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A name as typed: with the kind and the namespace if the user gave them."""

    name: str
    kind: Kind | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The object that a name means, and others that it could also mean."""

    kind: Kind
    key: ObjectKey
    others: Sequence[str] = ()


def asked(text: str) -> Asked:
    """Parse `name`, `namespace/name`, `kind/name` or `kind/namespace/name`. Raises ValueError for anything else."""
    first, *rest = text.split("/")
    kind = ALIASES.get(first.lower())
    if kind is not None and len(rest) in ({1, 2} if kind.namespaced else {1}) and all(rest):
        return Asked(rest[-1], kind, rest[0] if len(rest) > 1 else None)
    key = ObjectKey.parse(text)
    return Asked(key.name, None, key.namespace or None)


async def find_object(client: KubeClient, text: str, where: Where, usual: str) -> Found:
    """Find the object with a state that a name means.

    If several kinds have an object of that name, the first kind in SERVED wins, and the result names the others.
    Raises PermanentError when there is none, or when several namespaces have one.
    """
    name = asked(text)
    if name.kind is not None and name.kind not in SERVED:
        message = (
            f"a {name.kind} has no state of its own: tidegate get {name.kind.plural} shows those there are"
        )
        raise PermanentError(message)
    matches = await find_all(client, name, where, usual, SERVED)
    kind, key = matches[0]
    candidates = [str(match_key) for match_kind, match_key in matches if match_kind == kind]
    if len(candidates) > 1:
        message = (
            f"there are {len(candidates)} of the kind {kind} with that name: say {' or '.join(candidates)}"
        )
        raise PermanentError(message)
    return Found(
        kind, key, tuple(f"{match_kind.kind.lower()}/{match_key}" for match_kind, match_key in matches[1:])
    )


async def find_all(
    client: KubeClient, wanted: Asked, where: Where, usual: str, among: Sequence[Kind]
) -> Sequence[tuple[Kind, ObjectKey]]:
    """Find all objects `among` these kinds that a name could mean; at least one.

    `usual` is the namespace when neither the name nor an option gives one. A name with a namespace never means a pool,
    unless it gives the kind. Raises PermanentError when there is none.
    """
    namespaced = wanted.namespace is not None or where.namespace is not None
    searched = [kind for kind in among if kind.namespaced or not namespaced]
    if wanted.kind is not None:
        searched = [wanted.kind]
    matches: list[tuple[Kind, ObjectKey]] = []
    errors: list[TidegateError] = []
    for kind in searched:
        try:
            matches += [(kind, key) for key in await _keys(client, kind, wanted, where, usual)]
        except (PermanentError, UnknownKindError) as error:
            # A user who may not read one kind may still mean an object of another.
            errors.append(error)
    if not matches:
        raise errors[0] if errors else PermanentError(_none(wanted, where, usual, searched))
    return matches


async def _keys(
    client: KubeClient, kind: Kind, wanted: Asked, where: Where, usual: str
) -> Sequence[ObjectKey]:
    if kind.namespaced and where.everywhere and wanted.namespace is None:
        bodies = await client.list(kind, fields=f"metadata.name={wanted.name}")
        return [ObjectKey(body["metadata"]["namespace"], wanted.name) for body in bodies]
    namespace = _place(wanted, where, usual) if kind.namespaced else ""
    key = ObjectKey(namespace, wanted.name)
    return [] if await client.get(kind, key) is None else [key]


def _place(wanted: Asked, where: Where, usual: str) -> str:
    return wanted.namespace or where.namespace or usual


def _none(wanted: Asked, where: Where, usual: str, looked_for: Sequence[Kind]) -> str:
    everywhere = where.everywhere and wanted.namespace is None
    *first_kinds, last_kind = map(str, looked_for)
    kinds_text = f"{', '.join(first_kinds)} or {last_kind}" if first_kinds else last_kind
    plural = "…" if first_kinds else looked_for[0].plural
    if not any(kind.namespaced for kind in looked_for):
        return f"there is no {kinds_text} {wanted.name}: tidegate get {plural} shows those there are"
    location = "in any namespace" if everywhere else f"in namespace {_place(wanted, where, usual)}"
    return (
        f"there is no {kinds_text} {wanted.name} {location}: tidegate get {plural} -A shows those there are"
    )
