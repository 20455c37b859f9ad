"""Whose series rules are about: matchers that let everything in, in whose place the chart puts those of its own release.

A release has the pods of its processes, and the objects of the namespaces that it serves; no two serve the same.
Without spaces, since YAML breaks lines at them.
"""

from __future__ import annotations

from typing import Final

OWN_PODS: Final = 'namespace=~".*",pod=~".*"'
"""Of what our own processes and the gateways show of themselves. The chart looks for these texts, this one first."""
OWN_NAMESPACES: Final = 'namespace=~".*"'
"""Of what is shown about objects and models."""
OWN_CLUSTERS: Final = "(inference|release)/.*"
"""The gateways' Envoy clusters of those objects."""
OWN_ROUTES: Final = "(access|features)/.*"
"""The gateways' routes of those objects."""


def of_own_pods(metric: str, matchers: str = "") -> str:
    """A series of the release's own processes."""
    return f"{metric}{{{OWN_PODS}{_rest(matchers)}}}"


def of_own_models(metric: str, matchers: str = "") -> str:
    """A series of models' pods, or a recorded one, in the namespaces that the release serves."""
    return f"{metric}{{{OWN_NAMESPACES}{_rest(matchers)}}}"


def of_object(metric: str, matchers: str = "", *, namespace: str = OWN_NAMESPACES) -> str:
    """A metric of the controllers about objects in the namespaces that the matcher `namespace` lets in, with the objects' own as a label.

    A Prometheus that labels its targets with their namespace keeps ours as `exported_namespace`, unless it honours labels.
    """
    rest = _rest(matchers)
    either = f'{metric}{{exported_namespace="", {namespace}{rest}}} or {metric}{{exported_{namespace}{rest}}}'
    return f'label_replace({either}, "namespace", "$1", "exported_namespace", "(.+)")'


def _rest(matchers: str) -> str:
    return f", {matchers}" if matchers else ""
