"""The controllers' caches: our kinds, fed by kopf, and the objects that we own, fed by our own watches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, Transform
from tidegate.kube.transforms import drop_managed_fields, trim_deployment, trim_pod
from tidegate.kube.typed_cache import ViewCache
from tidegate.planning.batch.jobs import JobView, parse_job
from tidegate.planning.inference.deployments import DeploymentView, parse_deployment
from tidegate.planning.pods import PodView, parse_pod
from tidegate.resources.names import (
    ACCESS_LABEL,
    BACKFILL_LABEL,
    FEATURE_COMPUTE_LABEL,
    INFERENCE_LABEL,
    PIPELINE_LABEL,
    POOL_LABEL,
    to_label_value,
)


def _make_child_store(kind: Kind, transform: Transform = drop_managed_fields) -> Callable[[], ObjectStore]:
    labels = (
        INFERENCE_LABEL,
        FEATURE_COMPUTE_LABEL,
        BACKFILL_LABEL,
        ACCESS_LABEL,
        PIPELINE_LABEL,
        POOL_LABEL,
    )
    return lambda: ObjectStore(kind, labels=labels, transform=transform)


@dataclass(frozen=True, slots=True)
class Stores:
    """One cache per kind."""

    inferences: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.INFERENCE))
    accesses: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.MODEL_ACCESS))
    features: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.FEATURE_COMPUTE))
    pools: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.COMPUTE_POOL))
    overrides: ObjectStore = field(default_factory=lambda: ObjectStore(kinds.COMPUTE_OVERRIDE))
    decisions: ObjectStore = field(
        default_factory=lambda: ObjectStore(kinds.ALLOCATION_DECISION, labels=(POOL_LABEL,))
    )
    pods: ObjectStore = field(default_factory=_make_child_store(kinds.POD, trim_pod))
    deployments: ObjectStore = field(default_factory=_make_child_store(kinds.DEPLOYMENT, trim_deployment))
    jobs: ObjectStore = field(default_factory=_make_child_store(kinds.JOB))
    config_maps: ObjectStore = field(default_factory=_make_child_store(kinds.CONFIG_MAP))
    budgets: ObjectStore = field(default_factory=_make_child_store(kinds.POD_DISRUPTION_BUDGET))
    pod_views: ViewCache[PodView] = field(init=False)
    deployment_views: ViewCache[DeploymentView] = field(init=False)
    job_views: ViewCache[JobView] = field(init=False)

    def __post_init__(self) -> None:
        """Create the views first: their subscriptions must precede all others."""
        object.__setattr__(self, "pod_views", ViewCache(self.pods, parse_pod))
        object.__setattr__(self, "deployment_views", ViewCache(self.deployments, parse_deployment))
        object.__setattr__(self, "job_views", ViewCache(self.jobs, parse_job))

    def custom_stores(self) -> tuple[ObjectStore, ...]:
        """Return the caches of our kinds, which kopf watches."""
        return (
            self.inferences,
            self.accesses,
            self.features,
            self.pools,
            self.overrides,
            self.decisions,
        )

    def owned_stores(self) -> tuple[ObjectStore, ...]:
        """Return the caches of children, which our own watches fill by label."""
        return (
            self.pods,
            self.deployments,
            self.jobs,
            self.config_maps,
            self.budgets,
        )

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter((*self.custom_stores(), *self.owned_stores()))

    def has_workload(self, label: str, key: ObjectKey) -> bool:
        """Return whether a Deployment or a Job exists for the object `key`, whose children carry `label`."""
        name = to_label_value(key.name)
        return any(
            store.by_label(label, name, namespace=key.namespace) for store in (self.deployments, self.jobs)
        )

    def is_starting(self, kind: Kind, key: ObjectKey) -> bool:
        """Return whether a child is a pod that is not ready or a Deployment that rolls out, so that more changes follow."""
        if kind == kinds.POD:
            pod = self.pod_views.get(key)
            return pod is not None and not pod.ready and not pod.terminating
        deployment = self.deployment_views.get(key) if kind == kinds.DEPLOYMENT else None
        return deployment is not None and not deployment.complete

    def get_store(self, kind: Kind) -> ObjectStore:
        """Return the cache of one kind. Raises KeyError for a kind that is not cached."""
        return {store.kind: store for store in self}[kind]


class OwnerIndex:
    """Maps children to their owners, and remembers the owner of a deleted child until it has been notified."""

    def __init__(
        self,
        store: ObjectStore,
        label: str,
        wake: Callable[[ObjectKey], None],
        *,
        is_transient: Callable[[ObjectKey], bool] = lambda _: False,
        wake_soon: Callable[[ObjectKey], None] = lambda _: None,
    ) -> None:
        """Call `wake` with the owner's key for every change of an object in `store` that carries `label`.

        Call `wake_soon` instead if `is_transient` returns True for the child: it is starting, and will change again.
        """
        self._store = store
        self._label = label
        self._wake = wake
        self._passing = is_transient
        self._wake_soon = wake_soon
        self._owner_of: dict[ObjectKey, ObjectKey] = {}
        store.subscribe(self._child_changed)

    def _child_changed(self, key: ObjectKey) -> None:
        body = self._store.get(key)
        owner = self._owner_of.pop(key, None) if body is None else self._remember_owner(key, body)
        if owner is not None:
            (self._wake_soon if self._passing(key) else self._wake)(owner)

    def _remember_owner(self, key: ObjectKey, body: Manifest) -> ObjectKey | None:
        name = (body["metadata"].get("labels") or {}).get(self._label)
        if name is None:
            return self._owner_of.pop(key, None)  # the label was removed
        # Labels hash names that are too long for a label, which the names of our kinds, DNS labels, never are.
        owner = ObjectKey(key.namespace, name)
        self._owner_of[key] = owner
        return owner
