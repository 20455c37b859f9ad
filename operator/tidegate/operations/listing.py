"""Lists of our kinds as far as somebody may read them: what is left out is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tidegate.api.meta import ObjectKey, Resource
from tidegate.errors import PermanentError, TidegateError, UnknownKindError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest

ResourceT = TypeVar("ResourceT", bound=Resource)


class Lister:
    """Lists of our kinds in some namespaces; what may not be read, or is not known, is left out and said."""

    def __init__(self, client: KubeClient, namespaces: Sequence[str]) -> None:
        """`namespaces`: the empty one stands for all."""
        self._client = client
        self._namespaces = namespaces
        self._refusal: TidegateError | None = None
        self._listed = False
        self.skipped: list[str] = []
        self.unread: set[tuple[str, ObjectKey]] = set()
        self.unlisted: set[str] = set()

    async def read(
        self, kind: Kind, model: type[ResourceT], *, selector: str = "", fields: str = ""
    ) -> tuple[ResourceT, ...]:
        """Those of one of our kinds."""
        bodies = await self.bodies(kind, selector=selector, fields=fields)
        self._listed = self._listed or kind.kind not in self.unlisted
        parsed: list[ResourceT] = []
        for body in bodies:
            try:
                parsed.append(model.parse(body))
            except PermanentError as error:
                metadata = body["metadata"]
                key = ObjectKey(metadata.get("namespace", ""), metadata["name"])
                self.unread.add((kind.kind, key))
                self.skipped.append(f"{kind} {key}, which this version cannot read: {error}")
        return tuple(parsed)

    async def bodies(self, kind: Kind, *, selector: str = "", fields: str = "") -> Sequence[Manifest]:
        """Those of any kind, as they are."""
        bodies: list[Manifest] = []
        try:
            for namespace in self._namespaces if kind.namespaced else ("",):
                bodies += await self._client.list(kind, namespace=namespace, selector=selector, fields=fields)
        except (PermanentError, UnknownKindError) as error:
            self._refusal = self._refusal or error
            self.unlisted.add(kind.kind)
            self.skipped.append(f"{kind.plural}: {error}")
            return []
        return bodies

    def check(self) -> None:
        """Raises the first refusal where none of our kinds could be listed: who may see nothing is not told that all is well."""
        if not self._listed and self._refusal is not None:
            raise self._refusal
