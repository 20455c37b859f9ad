"""A listing beside somebody else's watch: whole, of some namespaces, or cut short."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import pytest

from builders.inference import inference_body
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import INFERENCE, Kind
from tidegate.kube.store import ObjectStore
from tidegate.runtime.caches import observe_all

Page = Sequence[Mapping[str, Any]]


class Pages:
    """An API server's listings: by namespace its pages, and where there are no more of them for us."""

    def __init__(self, pages: Mapping[str, Sequence[Page]], refused: Mapping[str, int] | None = None) -> None:
        self._pages, self._refused = pages, refused or {}

    async def list_pages(self, kind: Kind, *, namespace: str = "") -> AsyncIterator[tuple[Page, str]]:
        assert kind == INFERENCE
        for number, page in enumerate(self._pages[namespace]):
            if self._refused.get(namespace) == number:
                message = "403 forbidden"
                raise PermanentError(message)
            yield page, "9"


def a_body(name: str, namespace: str = "ads") -> dict[str, Any]:
    body = inference_body(name, namespace)
    return {**body, "metadata": {**body["metadata"], "resourceVersion": "5"}}


async def listed(pages: Pages, *namespaces: str) -> tuple[set[ObjectKey], str, tuple[str, ...], ObjectStore]:
    store = ObjectStore(INFERENCE)
    return *await observe_all(cast("KubeClient", pages), store, namespaces), store


async def test_all_pages_are_observed() -> None:
    present, version, within, store = await listed(Pages({"": [[a_body("a")], [a_body("b")]]}))
    assert present == set(store.keys()) == {ObjectKey("ads", "a"), ObjectKey("ads", "b")}
    assert (version, within) == ("9", ())


async def test_one_that_is_refused_after_its_first_page_is_no_listing() -> None:
    """Else all that was on the other pages would count as gone."""
    with pytest.raises(PermanentError, match="403"):
        await listed(Pages({"": [[a_body("a")], [a_body("b")]]}, refused={"": 1}))


async def test_a_namespace_that_is_refused_is_not_among_those_that_were_listed() -> None:
    pages = Pages(
        {"ads": [[a_body("a")]], "shop": [[a_body("a", "shop")], [a_body("b", "shop")]]}, refused={"shop": 1}
    )
    present, _, within, _ = await listed(pages, "ads", "shop")
    assert within == ("ads",)
    assert ObjectKey("ads", "a") in present
