"""What a deletion of ours asks of the API server for the objects below the one that is deleted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidegate.api.meta import ObjectKey
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import CONFIG_MAP, JOB, Kind
from tidegate.kube.transport import ApiRequest


class Asked:
    """A transport that keeps what it is asked."""

    def __init__(self) -> None:
        self.requests: list[ApiRequest] = []

    async def request_json(self, request: ApiRequest) -> None:
        self.requests.append(request)


@pytest.mark.parametrize(("kind", "policy"), [(JOB, "Foreground"), (CONFIG_MAP, "Background")])
async def test_a_job_stays_until_its_pods_are_gone(kind: Kind, policy: str) -> None:
    """So that the next one, which waits for it, waits for them."""
    asked = Asked()
    client = KubeClient(cast("Any", asked), ClientSettings(field_manager="test"))
    await client.delete(kind, ObjectKey("ads", "inf-ctr"), uid="u-1", fence=Fence.unlimited(7))
    (request,) = asked.requests
    assert (request.method, request.path) == ("DELETE", kind.url_path("ads", "inf-ctr"))
    assert request.body == {"preconditions": {"uid": "u-1"}, "propagationPolicy": policy}
