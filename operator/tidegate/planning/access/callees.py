"""Find the objects that the pipelines of a ModelAccess call, in whatever has the objects."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import is_shared_with, resolve_shared_name
from tidegate.planning.access.backends import takes_traffic
from tidegate.planning.access.pipeline_plan import Callees
from tidegate.planning.features.last_definitions import resolve_if_usable

ResourceT = TypeVar("ResourceT", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class CalleeLookup:
    """Functions that return an object by its key, None if there is none."""

    get_inference: Callable[[ObjectKey], Inference | None]
    get_features: Callable[[ObjectKey], FeatureCompute | None]
    get_access: Callable[[ObjectKey], ModelAccess | None]


def find_callees(access: ModelAccess, lookup: CalleeLookup) -> Callees:
    """Return the objects that the pipelines of `access` name, and the targets of the ModelAccesses among them.

    Objects that do not exist, are being deleted or are not shared with its namespace are left out. FeatureComputes have the
    features that others share with them, as far as these can be used.
    """
    namespace = access.key.namespace
    pipelines = [route.pipeline for route in access.spec.routes if route.pipeline is not None]
    if not pipelines:
        return Callees()

    def find_serving(
        get: Callable[[ObjectKey], ResourceT | None], names: Iterable[str]
    ) -> dict[str, ResourceT]:
        objects = ((name, get(resolve_shared_name(name, namespace))) for name in names)
        return {name: item for name, item in objects if item is not None and takes_traffic(item)}

    def select_shared(objects: Mapping[str, ResourceT]) -> dict[str, ResourceT]:
        return {name: item for name, item in objects.items() if is_shared_with(item, namespace)}

    accesses = find_serving(
        lookup.get_access, {name for pipeline in pipelines for name in pipeline.access_names}
    )
    inferences = {name for pipeline in pipelines for name in pipeline.inference_names}
    inferences |= {name for callee in accesses.values() for name in callee.spec.inference_names}
    features = find_serving(
        lookup.get_features, {pipeline.features for pipeline in pipelines if pipeline.features}
    )
    shared = {
        name: resolve_if_usable(item, lookup.get_features) for name, item in select_shared(features).items()
    }
    return Callees(
        inferences=select_shared(find_serving(lookup.get_inference, inferences)),
        features=shared,
        accesses=accesses,
        withheld=frozenset(features.keys() - shared.keys()),
    )
