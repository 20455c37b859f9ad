"""Which object of any of our kinds a name on the command line means."""

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
"""Those whose conditions say how they are, in the order in which a name is looked for."""
_OURS: Final = {kind.kind: kind for kind in (*SERVED, kinds.COMPUTE_OVERRIDE, kinds.ALLOCATION_DECISION)}
_MORE: Final = {"pool": "ComputePool", "override": "ComputeOverride", "decision": "AllocationDecision"}


def _aliases() -> Mapping[str, Kind]:
    found: dict[str, Kind] = {}
    for definition in DEFINITIONS:
        kind = _OURS[definition.resource.KIND]
        for alias in (kind.kind.lower(), kind.plural, definition.short_name):
            found[alias] = kind
    for alias, name in _MORE.items():
        found[alias] = found[f"{alias}s"] = _OURS[name]
    return found


ALIASES: Final = _aliases()
"""Our kinds by each name that kubectl knows, and by shorter ones."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A name as it was typed: of which kind and in which namespace, where that was said."""

    name: str
    kind: Kind | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The object that a name means, and others that it could mean as well."""

    kind: Kind
    key: ObjectKey
    others: Sequence[str] = ()


def asked(text: str) -> Asked:
    """Reads `name`, `namespace/name`, `kind/name` or `kind/namespace/name`. Raises ValueError when it is none of them."""
    first, *rest = text.split("/")
    kind = ALIASES.get(first.lower())
    if kind is not None and len(rest) in ({1, 2} if kind.namespaced else {1}) and all(rest):
        return Asked(rest[-1], kind, rest[0] if len(rest) > 1 else None)
    key = ObjectKey.parse(text)
    return Asked(key.name, None, key.namespace or None)


async def find_object(client: KubeClient, text: str, where: Where, usual: str) -> Found:
    """The object with a state; of several kinds with that name the first of SERVED, and the others are named.

    Raises PermanentError when there is none, or there is one in several namespaces.
    """
    wanted = asked(text)
    if wanted.kind is not None and wanted.kind not in SERVED:
        message = f"a {wanted.kind} has no state of its own: tidegate get {wanted.kind.plural} shows those there are"
        raise PermanentError(message)
    found = await find_all(client, wanted, where, usual, SERVED)
    kind, key = found[0]
    same = [str(other) for of, other in found if of == kind]
    if len(same) > 1:
        message = f"there are {len(same)} of the kind {kind} with that name: say {' or '.join(same)}"
        raise PermanentError(message)
    return Found(kind, key, tuple(f"{of.kind.lower()}/{other}" for of, other in found[1:]))


async def find_all(
    client: KubeClient, wanted: Asked, where: Where, usual: str, among: Sequence[Kind]
) -> Sequence[tuple[Kind, ObjectKey]]:
    """What the name could mean `among` these kinds, at least one. `usual`: the namespace where nothing else is said.

    Where a namespace was said there are no pools, unless by their kind. Raises PermanentError when there is none.
    """
    namespaced = wanted.namespace is not None or where.namespace is not None
    looked_for = [kind for kind in among if kind.namespaced or not namespaced]
    if wanted.kind is not None:
        looked_for = [wanted.kind]
    found: list[tuple[Kind, ObjectKey]] = []
    refused: list[TidegateError] = []
    for kind in looked_for:
        try:
            found += [(kind, key) for key in await _keys(client, kind, wanted, where, usual)]
        except (PermanentError, UnknownKindError) as error:
            # Who may not see one kind may still mean an object of another.
            refused.append(error)
    if not found:
        raise refused[0] if refused else PermanentError(_none(wanted, where, usual, looked_for))
    return found


async def _keys(
    client: KubeClient, kind: Kind, wanted: Asked, where: Where, usual: str
) -> Sequence[ObjectKey]:
    if kind.namespaced and where.everywhere and wanted.namespace is None:
        bodies = await client.list(kind, fields=f"metadata.name={wanted.name}")
        return [ObjectKey(each["metadata"]["namespace"], wanted.name) for each in bodies]
    place = _place(wanted, where, usual) if kind.namespaced else ""
    key = ObjectKey(place, wanted.name)
    return [] if await client.get(kind, key) is None else [key]


def _place(wanted: Asked, where: Where, usual: str) -> str:
    return wanted.namespace or where.namespace or usual


def _none(wanted: Asked, where: Where, usual: str, looked_for: Sequence[Kind]) -> str:
    everywhere = where.everywhere and wanted.namespace is None
    *most, last = map(str, looked_for)
    named = f"{', '.join(most)} or {last}" if most else last
    shows = "…" if most else looked_for[0].plural
    if not any(kind.namespaced for kind in looked_for):
        return f"there is no {named} {wanted.name}: tidegate get {shows} shows those there are"
    place = "in any namespace" if everywhere else f"in namespace {_place(wanted, where, usual)}"
    return f"there is no {named} {wanted.name} {place}: tidegate get {shows} -A shows those there are"
