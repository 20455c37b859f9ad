"""ModelAccess: says what the gateways make of it; the xDS servers do the rest from the same objects."""

from dataclasses import dataclass
from datetime import timedelta

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import MODEL_ACCESS
from tidegate.kube.parsed import Parsed
from tidegate.planning.fleet import inference_backend, takes_traffic
from tidegate.planning.model_access import AccessObserved, plan_model_access
from tidegate.planning.pods import pod_view
from tidegate.resources.names import INFERENCE_LABEL, label_value
from tidegate.routing.access_rules import plan_access
from tidegate.routing.fleet import Backend
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.runtime.clock import Clock
from tidegate_controllers.accesses import Accesses
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.proxies import Proxies


@dataclass(frozen=True, slots=True)
class Known:
    """What outlives a term: the caches that this kind reads, parsed and indexed."""

    inferences: Parsed[Inference]
    accesses: Accesses


class ModelAccessReconciler:
    """Observe, plan, apply: one pass over one ModelAccess."""

    def __init__(self, writer: Writer, known: Known, proxies: Proxies, gateway: str, clock: Clock) -> None:
        """`gateway` is where clients inside the cluster reach the gateways, `host:port`."""
        self._writer = writer
        self._known = known
        self._proxies = proxies
        self._gateway = gateway
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Brings the status of one ModelAccess up to date; returns when to look again."""
        body = self._writer.stores.accesses.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        try:
            access = ModelAccess.parse(body)
        except InvalidSpecError as error:
            await self._writer.refuse(MODEL_ACCESS, body, str(error), self._clock.now())
            return None
        plan = plan_model_access(self._observe(access))
        await self._writer.status(MODEL_ACCESS, body, plan)
        return plan.requeue_after

    def _observe(self, access: ModelAccess) -> AccessObserved:
        names = sorted(access.spec.inferences)
        found = (self._known.inferences.get(ObjectKey(access.key.namespace, name)) for name in names)
        backends = [self._backend(inference) for inference in found if inference is not None]
        return AccessObserved(
            access=access,
            now=self._clock.now(),
            routing=plan_access(
                access,
                {one.key: one for one in backends if one is not None},
                self._known.accesses.owners(access),
            ),
            proxies=self._proxies.view(HostKey(HostKind.ACCESS, access.key), access.metadata.uid),
            gateway=self._gateway,
        )

    def _backend(self, inference: Inference) -> Backend | None:
        if not takes_traffic(inference):
            return None
        key = inference.key
        pods = self._writer.stores.pods.by_label(
            INFERENCE_LABEL, label_value(key.name), namespace=key.namespace
        )
        return inference_backend(inference, map(pod_view, pods))
