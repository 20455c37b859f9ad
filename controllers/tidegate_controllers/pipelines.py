"""Observes what the pipelines of a ModelAccess are planned from: their pods, children and callees."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.planning.access.backends import takes_traffic
from tidegate.planning.access.pipeline_plan import Callees
from tidegate.planning.access.pipelines import PipelinePods, PipelinesObserved
from tidegate.resources.names import ACCESS_LABEL, PIPELINE_LABEL, to_label_value
from tidegate.resources.pipeline import make_pipeline_name
from tidegate_controllers.serving import ServingObserver
from tidegate_controllers.stores import Stores
from tidegate_controllers.typed_caches import TypedCaches

ResourceT = TypeVar("ResourceT", bound=CustomResource)


async def observe_pipelines(
    access: ModelAccess, caches: TypedCaches, stores: Stores, observer: ServingObserver
) -> PipelinesObserved:
    """Return the pipelines of an access as the caches and the agents have them.

    Agents are asked only if the access has pipelines.
    """
    name, namespace = to_label_value(access.key.name), access.key.namespace
    children = {
        store.kind.kind: tuple(store.by_label(ACCESS_LABEL, name, namespace=namespace))
        for store in stores.owned_stores()
        if store is not stores.pods
    }
    pods: dict[str, PipelinePods] = {}
    for route in access.spec.routes:
        if route.pipeline is None:
            continue
        key = ObjectKey(namespace, make_pipeline_name(access, route.name))
        serving = await observer.observe_serving(PIPELINE_LABEL, key)
        pods[route.name] = PipelinePods(
            serving.pods, serving.reports, serving.config_maps, serving.refusal, serving.rooms
        )
    return PipelinesObserved(pods=pods, callees=_find_callees(access, caches), children=children)


def _find_callees(access: ModelAccess, caches: TypedCaches) -> Callees:
    namespace = access.key.namespace
    pipelines = [route.pipeline for route in access.spec.routes if route.pipeline is not None]
    if not pipelines:
        return Callees()

    def find_serving(
        get: Callable[[ObjectKey], ResourceT | None], names: Iterable[str]
    ) -> dict[str, ResourceT]:
        objects = ((name, get(ObjectKey(namespace, name))) for name in names)
        return {name: item for name, item in objects if item is not None and takes_traffic(item)}

    accesses = find_serving(
        caches.accesses.get, {name for pipeline in pipelines for name in pipeline.access_names}
    )
    inferences = {name for pipeline in pipelines for name in pipeline.inference_names}
    inferences |= {name for access in accesses.values() for name in access.spec.inference_names}
    return Callees(
        inferences=find_serving(caches.inferences.get, inferences),
        features=find_serving(
            caches.features.get, {pipeline.features for pipeline in pipelines if pipeline.features}
        ),
        accesses=accesses,
    )
