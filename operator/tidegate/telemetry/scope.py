"""Matchers that restrict rules to the series of one release: here they match everything, and the chart replaces them.

A release has the pods of its processes, and the objects of the namespaces that it serves; no two releases serve the same
namespace. The matchers contain no spaces, because YAML breaks lines at spaces.
"""

from __future__ import annotations

from typing import Final

OWN_PODS: Final = 'namespace=~".*",pod=~".*"'
"""Matchers of series of our own processes and of the gateways.

The chart replaces these texts by those of its release, this one first, because OWN_NAMESPACES is a part of it.
"""
OWN_NAMESPACES: Final = 'namespace=~".*"'
"""Matcher of series about objects and models."""
OWN_CLUSTERS: Final = "(inference|release)/.*"
"""Pattern of the Envoy clusters of those objects."""
INFERENCE_PODS: Final = "inf-(.+)-([^-]{10,15}|[^-]+-[^-]{1,9})"
"""Pattern of the pods of an Inference's Deployment, with the Deployment's name after `inf-`.

That is the Inference's name, unless the name is long or has dots: resources.names.make_child_name. Kubernetes cuts the names
of a ReplicaSet's pods to 63 characters, so that the last dash of a long one is missing.
"""
OWN_ROUTES: Final = "(access|features)/.*"
"""Pattern of the gateways' routes of those objects."""


def own_pod_series(metric: str, matchers: str = "") -> str:
    """Return the selector of a series of the release's own processes."""
    return f"{metric}{{{OWN_PODS}{_append_matchers(matchers)}}}"


def own_model_series(metric: str, matchers: str = "") -> str:
    """Return the selector of a series of serving pods, or a recorded one, in the namespaces that the release serves."""
    return f"{metric}{{{OWN_NAMESPACES}{_append_matchers(matchers)}}}"


def object_series(metric: str, matchers: str = "", *, namespace_matcher: str = OWN_NAMESPACES) -> str:
    """Return the series of a controllers' metric about objects, in the namespaces that `namespace_matcher` accepts.

    The label `namespace` of the result is the object's: a Prometheus that labels targets with their own namespace renames
    ours to `exported_namespace`, unless it honours labels.
    """
    rest = _append_matchers(matchers)
    either = f'{metric}{{exported_namespace="", {namespace_matcher}{rest}}} or {metric}{{exported_{namespace_matcher}{rest}}}'
    return f'label_replace({either}, "namespace", "$1", "exported_namespace", "(.+)")'


def _append_matchers(matchers: str) -> str:
    return f", {matchers}" if matchers else ""
