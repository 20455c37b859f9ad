"""Builds a FeatureCompute for a test: valid unless told otherwise."""

from __future__ import annotations

from typing import Any

from builders.overlay import overlaid
from tidegate.api.feature_compute import FeatureCompute


def feature_compute_body(
    name: str = "user-features",
    namespace: str = "ads",
    *,
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """The object as the API server would hand it out, without a status; keywords lay over spec.

    By default one entity, one table, and one feature of each operation.
    """
    defaults: dict[str, Any] = {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [
            {"name": "profiles", "entity": "user", "table": {"uri": "file:///models/tables/users.parquet"}}
        ],
        "features": [
            {"name": "age", "lookup": {"field": "profiles.age", "type": "int64"}},
            {"name": "age_bucket", "bucketize": {"field": "profiles.age", "boundaries": [18, 25, 35, 50]}},
            {"name": "city_hash", "hash": {"field": "profiles.city", "buckets": 1000}},
            {
                "name": "user_x_city",
                "cross": {"fields": ["user.user_id", "profiles.city"], "buckets": 100000},
            },
        ],
        "replicas": 1,
    }
    return {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "FeatureCompute",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **(metadata or {}),
        },
        "spec": overlaid(defaults, spec),
    }


def a_feature_compute(
    name: str = "user-features",
    namespace: str = "ads",
    *,
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> FeatureCompute:
    """A parsed FeatureCompute."""
    body = feature_compute_body(name, namespace, metadata=metadata, **spec)
    return FeatureCompute.parse({**body, "status": status or {}})
