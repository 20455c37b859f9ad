"""List objects of our kinds as far as the user may read them, and record what was skipped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import list_shared_namespaces, resolve_shared_name
from tidegate.errors import InvalidRequestError, PermanentError, TidegateError, UnknownKindError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import FEATURE_COMPUTE, INFERENCE, MODEL_ACCESS, Kind
from tidegate.kube.port import Manifest
from tidegate.planning.features.shared_features import list_shared_keys
from tidegate.reports.listing import ListReport, sort_rows
from tidegate.reports.orders import ListOrder
from tidegate.reports.rows import ROWS, build_row
from tidegate.services.objects import not_found_error

ResourceT = TypeVar("ResourceT", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class ObjectSelector:
    """Some objects of one of our kinds."""

    kind: Kind
    namespace: str = ""
    """Empty means all."""
    labels: str = ""
    name: str | None = None

    @property
    def field_selector(self) -> str:
        """Return the field selector."""
        return "" if self.name is None else f"metadata.name={self.name}"


async def read_list(client: KubeClient, chosen: ObjectSelector, order: ListOrder) -> ListReport:
    """Return the objects as they are now. Raises TidegateError if they cannot be read, or if there is none of that name."""
    reader = KindLister(client, (chosen.namespace,))
    model, _ = ROWS[chosen.kind.kind]
    resources = await reader.list_parsed(
        chosen.kind, model, selector=chosen.labels, fields=chosen.field_selector
    )
    reader.check_readable()
    if chosen.name is not None and not resources and not reader.skipped:
        raise not_found_error(chosen.kind, ObjectKey(chosen.namespace, chosen.name))
    return ListReport(
        kind=chosen.kind.kind,
        namespace=chosen.namespace or None,
        at=datetime.now(UTC),
        items=sort_rows(map(build_row, resources), order),
        skipped=tuple(reader.skipped),
    )


async def list_sharing_accesses(
    client: KubeClient, inferences: Sequence[Inference], namespace: str
) -> tuple[Sequence[ModelAccess], Sequence[str]]:
    """Return the ModelAccesses of the other namespaces that share `inferences`, and what could not be read there.

    `namespace` is that of the Inferences; empty stands for all, whose ModelAccesses are known then.
    """
    callers = {caller for inference in inferences for caller in list_shared_namespaces(inference)}
    return await _list_elsewhere(client, MODEL_ACCESS, ModelAccess, callers if namespace else ())


async def list_foreign_targets(
    client: KubeClient, accesses: Sequence[ModelAccess]
) -> tuple[Sequence[Inference], Sequence[str]]:
    """Return the Inferences of the other namespaces that `accesses` name, and what could not be read there."""
    namespaces = {
        target.namespace
        for access in accesses
        for name in access.spec.inference_names
        if (target := resolve_shared_name(name, access.key.namespace)).namespace != access.key.namespace
    }
    return await _list_elsewhere(client, INFERENCE, Inference, namespaces)


async def list_foreign_origins(
    client: KubeClient, features: Sequence[FeatureCompute]
) -> tuple[Sequence[FeatureCompute], Sequence[str]]:
    """Return the FeatureComputes of the other namespaces whose features `features` use, and what could not be read there."""
    namespaces = {
        origin.namespace
        for item in features
        for origin in list_shared_keys(item)
        if origin.namespace != item.key.namespace
    }
    return await _list_elsewhere(client, FEATURE_COMPUTE, FeatureCompute, namespaces)


async def _list_elsewhere(
    client: KubeClient, kind: Kind, model: type[ResourceT], namespaces: Iterable[str]
) -> tuple[Sequence[ResourceT], Sequence[str]]:
    """Return the objects of these namespaces, those that may be read, and why not the others."""
    objects: list[ResourceT] = []
    skipped: list[str] = []
    for namespace in sorted(namespaces):
        reader = KindLister(client, (namespace,))
        objects += await reader.list_parsed(kind, model)
        skipped += [f"namespace {namespace}: {reason}" for reason in reader.skipped]
    return objects, skipped


class KindLister:
    """A reader of lists in some namespaces; it records kinds that it may not read or does not know."""

    def __init__(self, client: KubeClient, namespaces: Sequence[str]) -> None:
        """Read from these namespaces; the empty one stands for all."""
        self._client = client
        self._namespaces = namespaces
        self._refusal: TidegateError | None = None
        self._listed = False
        self.skipped: list[str] = []
        self.unread: set[tuple[str, ObjectKey]] = set()
        self.unlisted: set[str] = set()

    async def list_parsed(
        self, kind: Kind, model: type[ResourceT], *, selector: str = "", fields: str = ""
    ) -> tuple[ResourceT, ...]:
        """List and parse the objects of one of our kinds."""
        bodies = await self.list_bodies(kind, selector=selector, fields=fields)
        self._listed = self._listed or kind.kind not in self.unlisted
        parsed: list[ResourceT] = []
        for body in bodies:
            try:
                parsed.append(model.parse(body))
            except PermanentError as error:
                metadata = body["metadata"]
                key = ObjectKey(metadata.get("namespace", ""), metadata["name"])
                self.unread.add((kind.kind, key))
                self.skipped.append(f"{kind} {key} cannot be read by this version: {error}")
        return tuple(parsed)

    async def list_bodies(self, kind: Kind, *, selector: str = "", fields: str = "") -> Sequence[Manifest]:
        """List the objects of any kind, unparsed."""
        bodies: list[Manifest] = []
        try:
            for namespace in self._namespaces if kind.namespaced else ("",):
                bodies += await self._client.list(kind, namespace=namespace, selector=selector, fields=fields)
        except (PermanentError, UnknownKindError) as error:
            if selector and isinstance(error, InvalidRequestError):
                raise  # the selector does not parse: an empty list would look healthy
            self._refusal = self._refusal or error
            self.unlisted.add(kind.kind)
            self.skipped.append(f"{kind.plural}: {error}")
            return []
        return bodies

    def check_readable(self) -> None:
        """Raise the first error if none of our kinds could be listed.

        Otherwise a user without any rights would get an empty and therefore healthy answer.
        """
        if not self._listed and self._refusal is not None:
            raise self._refusal
