"""Limits the HorizontalPodAutoscalers of Inferences in pools, if they carry our label."""

from typing import Final

import structlog

from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, ConflictError, PermanentError
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import HORIZONTAL_POD_AUTOSCALER
from tidegate.kube.port import ClusterApi
from tidegate.kube.store import ObjectStore
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.inference.autoscalers import (
    AutoscalerView,
    compute_max_replicas,
    explain_unbounded,
    make_bound_patch,
    parse_autoscaler,
)

log: Final = structlog.stdlib.get_logger()


class AutoscalerLimits:
    """Writes maxReplicas if the pool's mode is Auto; below that limit an autoscaler decides by itself."""

    def __init__(self, cluster: ClusterApi, store: ObjectStore) -> None:
        """Read the autoscalers with our label from `store`."""
        self._cluster = cluster
        self._store = store
        self._unbounded: set[ObjectKey] = set()
        store.subscribe(self._check_autoscaler)

    async def limit_autoscalers(self, observed: AllocationObserved, fence: Fence) -> None:
        """Limit the autoscalers of the pool's members without spec.scaling."""
        if observed.effective_mode is not PolicyMode.AUTO or not any(
            node.healthy_slices for node in observed.slices.nodes
        ):
            return
        members = {member.key: member for member in observed.members if not member.is_scaled}
        views = [view for view in self._list_views() if view.inference in members]
        marked = {view.inference for view in views}
        for view in views:
            member = members[view.inference]
            if member.refusal or member.excluded_reason:
                continue
            problem = explain_unbounded(view, member)
            self._warn_once(view, problem)
            if problem:
                continue
            patch = make_bound_patch(view, compute_max_replicas(observed, member, marked))
            if patch is None:
                continue
            try:
                stored = await self._cluster.merge(HORIZONTAL_POD_AUTOSCALER, view.key, patch, fence)
            except (ApiUnavailableError, ConflictError, PermanentError) as error:
                # A concurrent write, or an admission policy: the next reconcile retries, and the decision goes on.
                log.warning("autoscaler_not_bounded", autoscaler=str(view.key), error=str(error))
                continue
            if stored is not None:
                self._store.observe("MODIFIED", stored)
                log.info(
                    "autoscaler_bounded",
                    autoscaler=str(view.key),
                    inference=str(view.inference),
                    pool=observed.name,
                    before=view.max_replicas,
                    after=patch["spec"]["maxReplicas"],
                )

    def _warn_once(self, view: AutoscalerView, problem: str) -> None:
        """Log once for each autoscaler why it has no bound."""
        if not problem:
            self._unbounded.discard(view.key)
        elif view.key not in self._unbounded:
            self._unbounded.add(view.key)
            log.warning("autoscaler_not_bounded", autoscaler=str(view.key), error=problem)

    def _check_autoscaler(self, key: ObjectKey) -> None:
        """Parse an autoscaler: the cache then leaves out a malformed one, and `_list_views` does not meet it.

        The value is not kept, because its resourceVersion must be that of the cache.
        """
        body = self._store.get(key)
        _ = parse_autoscaler(body) if body is not None else None

    def _list_views(self) -> list[AutoscalerView]:
        views = (parse_autoscaler(body) for body in self._store)
        return sorted((view for view in views if view is not None), key=lambda view: view.key)
