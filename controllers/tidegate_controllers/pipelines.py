"""Observes what the pipelines of a ModelAccess are planned from: their pods, children and callees."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from tidegate.api.meta import ObjectKey, Resource
from tidegate.api.model_access import ModelAccess
from tidegate.planning.fleet import takes_traffic
from tidegate.planning.pipeline_plan import Callees
from tidegate.planning.pipelines import PipelinePods, PipelinesObserved
from tidegate.resources.names import ACCESS_LABEL, PIPELINE_LABEL, label_value
from tidegate.resources.pipeline import pipeline_name
from tidegate_controllers.known import Known
from tidegate_controllers.serving import Observer
from tidegate_controllers.stores import Stores

ResourceT = TypeVar("ResourceT", bound=Resource)


async def observe_pipelines(
    access: ModelAccess, known: Known, stores: Stores, observer: Observer
) -> PipelinesObserved:
    """Return the pipelines of an access as the caches and the agents have them.

    Agents are asked only if the access has pipelines.
    """
    name, namespace = label_value(access.key.name), access.key.namespace
    children = {
        store.kind.kind: tuple(store.by_label(ACCESS_LABEL, name, namespace=namespace))
        for store in stores.owned()
        if store is not stores.pods
    }
    pods: dict[str, PipelinePods] = {}
    for route in access.spec.routes:
        if route.pipeline is None:
            continue
        key = ObjectKey(namespace, pipeline_name(access, route.name))
        serving = await observer.serving(PIPELINE_LABEL, key)
        pods[route.name] = PipelinePods(
            serving.pods, serving.reports, serving.config_maps, serving.refusal, serving.rooms
        )
    return PipelinesObserved(pods=pods, callees=_callees(access, known), children=children)


def _callees(access: ModelAccess, known: Known) -> Callees:
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
        known.accesses.get, {name for pipeline in pipelines for name in pipeline.accesses}
    )
    inferences = {name for pipeline in pipelines for name in pipeline.inferences}
    inferences |= {name for access in accesses.values() for name in access.spec.inferences}
    return Callees(
        inferences=find_serving(known.inferences.get, inferences),
        features=find_serving(
            known.features.get, {pipeline.features for pipeline in pipelines if pipeline.features}
        ),
        accesses=accesses,
    )
