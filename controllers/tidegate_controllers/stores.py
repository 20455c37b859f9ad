"""The controllers' caches: our kinds as kopf sees them, and the objects we own as our own watches see them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidegate.api.meta import ObjectKey
from tidegate.kube import kinds
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.views import Views
from tidegate.planning.deployments import DeploymentView, deployment_view
from tidegate.planning.jobs import JobView, job_view
from tidegate.planning.pods import PodView, pod_view
from tidegate.resources.names import (
    ACCESS_LABEL,
    FEATURE_COMPUTE_LABEL,
    INFERENCE_LABEL,
    PIPELINE_LABEL,
    POOL_LABEL,
    label_value,
)


def _owned(kind: Kind) -> Callable[[], ObjectStore]:
    labels = (INFERENCE_LABEL, FEATURE_COMPUTE_LABEL, ACCESS_LABEL, PIPELINE_LABEL, POOL_LABEL)
    return lambda: ObjectStore(kind, labels=labels)


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
    pods: ObjectStore = field(default_factory=_owned(kinds.POD))
    deployments: ObjectStore = field(default_factory=_owned(kinds.DEPLOYMENT))
    jobs: ObjectStore = field(default_factory=_owned(kinds.JOB))
    config_maps: ObjectStore = field(default_factory=_owned(kinds.CONFIG_MAP))
    services: ObjectStore = field(default_factory=_owned(kinds.SERVICE))
    service_accounts: ObjectStore = field(default_factory=_owned(kinds.SERVICE_ACCOUNT))
    budgets: ObjectStore = field(default_factory=_owned(kinds.POD_DISRUPTION_BUDGET))
    pod_views: Views[PodView] = field(init=False)
    deployment_views: Views[DeploymentView] = field(init=False)
    job_views: Views[JobView] = field(init=False)

    def __post_init__(self) -> None:
        """The views come first of all who are told of a change."""
        object.__setattr__(self, "pod_views", Views(self.pods, pod_view))
        object.__setattr__(self, "deployment_views", Views(self.deployments, deployment_view))
        object.__setattr__(self, "job_views", Views(self.jobs, job_view))

    def custom(self) -> tuple[ObjectStore, ...]:
        """Our kinds, which kopf watches."""
        return (
            self.inferences,
            self.accesses,
            self.features,
            self.pools,
            self.overrides,
            self.decisions,
        )

    def owned(self) -> tuple[ObjectStore, ...]:
        """What belongs to objects of our kinds, which our own watches follow by label."""
        return (
            self.pods,
            self.deployments,
            self.jobs,
            self.config_maps,
            self.services,
            self.service_accounts,
            self.budgets,
        )

    def __iter__(self) -> Iterator[ObjectStore]:
        return iter((*self.custom(), *self.owned()))

    def has_pods_to_be(self, label: str, key: ObjectKey) -> bool:
        """Whether there is a Deployment or a Job for the object `key`, whose children carry `label`."""
        name = label_value(key.name)
        return any(
            store.by_label(label, name, namespace=key.namespace) for store in (self.deployments, self.jobs)
        )

    def of(self, kind: Kind) -> ObjectStore:
        """The cache of one kind. Raises KeyError for a kind that is not cached."""
        return {store.kind: store for store in self}[kind]


class Owners:
    """Whose a child was: remembered while it lives, so that its end can still be told to its owner."""

    def __init__(self, store: ObjectStore, label: str, wake: Callable[[ObjectKey], None]) -> None:
        """Calls `wake` with the owner's key for every change of an object in `store` that carries `label`."""
        self._store = store
        self._label = label
        self._wake = wake
        self._owner: dict[ObjectKey, ObjectKey] = {}
        store.subscribe(self._changed)

    def _changed(self, key: ObjectKey) -> None:
        body = self._store.get(key)
        owner = self._owner.pop(key, None) if body is None else self._remember(key, body)
        if owner is not None:
            self._wake(owner)

    def _remember(self, key: ObjectKey, body: Manifest) -> ObjectKey | None:
        name = (body["metadata"].get("labels") or {}).get(self._label)
        if name is None:
            return self._owner.pop(key, None)  # somebody took the label away
        # The label of an object whose name is longer than a label is a hash; our kinds' names are DNS labels.
        owner = ObjectKey(key.namespace, name)
        self._owner[key] = owner
        return owner
