"""What the page of a FeatureCompute shows of each feature: how it is made, and which models and Jobs use it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import CustomResource
from tidegate.planning.access.callees import CalleeLookup
from tidegate.planning.access.feature_uses import find_pipeline_uses
from tidegate.planning.features.feature_jobs import find_feature_jobs
from tidegate.planning.features.lineage import find_shared_uses
from tidegate.reports.feature_list import FeatureListReport, report_feature_list
from tidegate.reports.feature_usage import FeatureUsage
from tidegate.web.access.rights import Action
from tidegate.web.listing import Plural
from tidegate.web.request_context import RequestContext

ResourceT = TypeVar("ResourceT", bound=CustomResource)


async def list_used_features(context: RequestContext, features: FeatureCompute) -> FeatureListReport:
    """Return the features with their users; those are unknown if the user may not list ModelAccesses and Inferences."""
    namespace = features.key.namespace
    usage = FeatureUsage(jobs=find_feature_jobs((features,), ()), is_known=False, namespace=namespace)
    if await _may_list_users(context, namespace):
        fleet = context.app.fleet
        accesses = _select_namespace(fleet.accesses.list_all(), namespace)
        lookup = CalleeLookup(fleet.inferences.get, fleet.features.get, fleet.accesses.get)
        inferences = _select_namespace(fleet.inferences.list_all(), namespace)
        jobs = find_feature_jobs((features,), inferences)
        usage = FeatureUsage(find_pipeline_uses(accesses, lookup), jobs, namespace=namespace)
    if await context.is_allowed(Action("list", Plural.FEATURES, namespace)):
        siblings = _select_namespace(context.app.fleet.features.list_all(), namespace)
        usage = replace(usage, shared=find_shared_uses(siblings))
    return report_feature_list([features], usage, context.app.fleet.features.get, namespace=namespace)


async def _may_list_users(context: RequestContext, namespace: str) -> bool:
    return await context.is_allowed(Action("list", Plural.ACCESSES, namespace)) and await context.is_allowed(
        Action("list", Plural.INFERENCES, namespace)
    )


def _select_namespace(objects: Iterable[ResourceT], namespace: str) -> tuple[ResourceT, ...]:
    return tuple(item for item in objects if item.key.namespace == namespace)
