"""Autoscalers of Inferences in pools: those that are marked are told how far they may go."""

from typing import Final

import structlog

from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, ConflictError, PermanentError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import HORIZONTAL_POD_AUTOSCALER
from tidegate.kube.port import Cluster
from tidegate.kube.store import ObjectStore
from tidegate.planning.allocation_view import AllocationObserved
from tidegate.planning.autoscalers import AutoscalerView, autoscaler_view, bound, most_replicas
from tidegate.resources.names import MOST_REPLICAS_LABEL

log: Final = structlog.stdlib.get_logger()


class Autoscalers:
    """Writes maxReplicas where the pool's mode is Auto; what an autoscaler does below that is its own."""

    def __init__(self, cluster: Cluster, store: ObjectStore) -> None:
        """`store` has the marked ones alone."""
        self._cluster = cluster
        self._store = store
        self._unread: set[ObjectKey] = set()

    async def bound(self, observed: AllocationObserved, fence: Fence) -> None:
        """Those of the pool's members with a number of their own, after a look at the pool."""
        if observed.mode is not PolicyMode.AUTO or not any(node.healthy for node in observed.slices.nodes):
            return
        members = {member.key: member for member in observed.members if not member.scaled}
        views = [view for view in self._views() if view.inference in members]
        marked = {view.inference for view in views}
        for view in views:
            member = members[view.inference]
            if member.refused or member.apart:
                continue
            self._complain(view)
            patch = bound(view, most_replicas(observed, member, marked))
            if patch is None:
                continue
            try:
                stored = await self._cluster.merge(HORIZONTAL_POD_AUTOSCALER, view.key, patch, fence)
            except (ApiUnavailableError, ConflictError, PermanentError) as error:
                # Another was faster, or somebody's admission refuses it: the next look tries again, and the pool is decided about.
                log.warning("autoscaler_not_bounded", autoscaler=str(view.key), error=str(error))
                continue
            if stored is not None:
                self._store.observe("MODIFIED", stored)
                log.info(
                    "autoscaler_bounded",
                    autoscaler=str(view.key),
                    inference=str(view.inference),
                    pool=observed.name,
                    before=view.most,
                    after=patch["spec"]["maxReplicas"],
                )

    def _complain(self, view: AutoscalerView) -> None:
        """Once for each autoscaler whose mark says no number."""
        if view.own_most is not None:
            self._unread.discard(view.key)
        elif view.key not in self._unread:
            self._unread.add(view.key)
            log.warning(
                "autoscaler_not_bounded",
                autoscaler=str(view.key),
                error=f"the label {MOST_REPLICAS_LABEL} is no whole number above 0: write the maximum that you want",
            )

    def _views(self) -> list[AutoscalerView]:
        found = (autoscaler_view(body) for body in self._store)
        return sorted((each for each in found if each is not None), key=lambda each: each.key)
