"""Lists with a selector for users who may not read all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidRequestError, NotAllowedError, PermanentError, TidegateError
from tidegate.kube import kinds
from tidegate.kube.client import KubeClient
from tidegate.services.listing import KindLister
from tidegate.services.objects import list_inference_keys


class RefusingClient:
    """Lists one Inference of the namespace `ads`, and answers other lists with an error."""

    def __init__(self, error: TidegateError) -> None:
        self.error = error

    async def list(
        self, _: object, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> Sequence[Any]:
        if namespace != "ads":
            raise self.error
        return [{"metadata": {"namespace": "ads", "name": f"{selector}{fields}"}}]

    def as_client(self) -> KubeClient:
        return cast("KubeClient", self)


async def test_the_history_of_labels_falls_back_to_the_namespace_that_a_user_may_list() -> None:
    client = RefusingClient(NotAllowedError("no list of all namespaces")).as_client()
    keys, listed = await list_inference_keys(client, None, "ads", "team=a")
    assert (keys, listed) == ([ObjectKey("ads", "team=a")], "ads")
    # A namespace that was named, and an error that is no refusal, are errors.
    with pytest.raises(NotAllowedError):
        await list_inference_keys(client, "search", "ads", "team=a")
    broken = RefusingClient(InvalidRequestError("unable to parse")).as_client()
    with pytest.raises(InvalidRequestError):
        await list_inference_keys(broken, None, "ads", "a=(")


async def test_only_a_selector_that_does_not_parse_ends_a_list() -> None:
    for error in (PermanentError("422"), NotAllowedError("403")):
        reader = KindLister(RefusingClient(error).as_client(), ("",))
        assert await reader.list_parsed(kinds.INFERENCE, Inference, selector="team=a") == ()
        assert reader.skipped == [f"inferences: {error}"]
    reader = KindLister(RefusingClient(InvalidRequestError("400")).as_client(), ("",))
    with pytest.raises(InvalidRequestError):
        await reader.list_parsed(kinds.INFERENCE, Inference, selector="team=(")
