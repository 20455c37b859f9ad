"""References to objects of other namespaces: the target consents by an annotation that lists namespaces."""

from collections.abc import Mapping
from typing import Final

from tidegate.api.meta import CustomResource, ObjectKey

SHARED_WITH_ANNOTATION: Final = "tidegate.io/shared-with"
"""On an Inference or FeatureCompute: the other namespaces whose objects may refer to it, separated by commas."""


def resolve_shared_name(name: str, namespace: str) -> ObjectKey:
    """Return the key that a SharedName means in an object of `namespace`."""
    owner, _, rest = name.rpartition("/")
    return ObjectKey(owner or namespace, rest)


def format_shared_name(key: ObjectKey, namespace: str) -> str:
    """Return the shortest SharedName of `key` in an object of `namespace`; resolve_shared_name is the inverse."""
    return key.name if key.namespace == namespace else str(key)


def is_shared_with(target: CustomResource, namespace: str) -> bool:
    """Return whether objects of `namespace` may refer to `target`: those of its own, and those that its annotation lists."""
    return namespace == target.key.namespace or namespace in list_shared_namespaces(target)


def list_shared_namespaces(target: CustomResource) -> tuple[str, ...]:
    """Return the other namespaces whose objects may refer to `target`."""
    return parse_shared_namespaces(target.metadata.annotations, target.key.namespace)


def parse_shared_namespaces(annotations: Mapping[str, str], namespace: str) -> tuple[str, ...]:
    """Return the other namespaces whose objects may refer to an object of `namespace` with these annotations."""
    if SHARED_WITH_ANNOTATION not in annotations:
        return ()
    names = {item.strip() for item in annotations[SHARED_WITH_ANNOTATION].split(",")} - {"", namespace}
    return tuple(sorted(names))


def describe_absence(target: type[CustomResource], name: str, namespace: str) -> str:
    """Return why objects of `namespace` cannot refer to `name`, a SharedName, and the way out.

    The text about another namespace does not show whether the object exists.
    """
    key = resolve_shared_name(name, namespace)
    if key.namespace == namespace:
        return f"{target.KIND} {key.name} does not exist in namespace {namespace}: create it, or correct the name"
    return (
        f"{target.KIND} {key} does not exist, or does not share with namespace {namespace}: its owner can add {namespace} "
        f"to its annotation, with kubectl annotate {target.KIND.lower()} {key.name} -n {key.namespace} "
        f"{SHARED_WITH_ANNOTATION}={namespace}"
    )
