"""Builds a FeatureCompute that shares live features, and others that use some of them by name."""

from __future__ import annotations

from typing import Any

from builders.feature_compute import a_feature_compute
from builders.live_features import live_features_spec
from tidegate.api.feature_compute import FeatureCompute

USER = {"name": "user", "key": "user_id", "type": "int64"}
POSITION = {"name": "position", "type": "int64"}


def an_origin(
    name: str = "live", namespace: str = "ads", *, shared_with: str = "feed", **spec: Any
) -> FeatureCompute:
    """Live features that share with namespace feed."""
    metadata = {"annotations": {"tidegate.io/shared-with": shared_with}}
    return a_feature_compute(name, namespace, metadata=metadata, **live_features_spec(**spec))


def shared(name: str, feature: str | None = None, owner: str = "ads/live") -> dict[str, Any]:
    """A feature that another FeatureCompute declares."""
    reference = {"featureCompute": owner} | ({} if feature is None else {"feature": feature})
    return {"name": name, "shared": reference}


def using_spec(*features: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A spec with the inputs of the live features and no sources of its own."""
    return {"entities": [USER], "request": [POSITION], "sources": [], "features": list(features), **spec}


def a_user(*features: dict[str, Any], namespace: str = "feed", **spec: Any) -> FeatureCompute:
    """A FeatureCompute of namespace feed with that spec."""
    return a_feature_compute("home", namespace, **using_spec(*features, **spec))
