"""Construction of the source for a URI, with the rules and credentials of this pod."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

from tidegate_dataplane.agent.artefacts.checked_client import HttpRules
from tidegate_dataplane.agent.artefacts.credentials import read_credentials
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.hf import HfSource
from tidegate_dataplane.agent.artefacts.https import HttpsSource
from tidegate_dataplane.agent.artefacts.node_cache import CachedSource, NodeCache
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource, open_object_store
from tidegate_dataplane.agent.artefacts.oci import OciSource
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, OpenSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import DesiredState, UriScheme


def make_source_opener(settings: AgentSettings, environment: Mapping[str, str]) -> OpenSource:
    """Return the function that opens the source of a URI; credentials are read at every opening."""

    def open_source(uri: ArtefactUri, order: DesiredState) -> ArtefactSource:
        if uri.scheme is UriScheme.FILE or uri.scheme is UriScheme.PVC:
            return folder_source(uri, file_root=settings.file_root, pvc_root=settings.pvc_root)
        credentials = read_credentials(settings.secret_dir, settings.secret_name, environment)
        rules = HttpRules(
            order.allowed_hosts, settings.allow_loopback, settings.ca_file, settings.stall_timeout_s
        )

        def add_cache(source: ArtefactSource, *, by_digest: bool = False) -> ArtefactSource:
            if settings.node_cache_dir is None:
                return source
            cache = NodeCache(settings.node_cache_dir, settings.node_cache_bytes)
            return CachedSource(
                source,
                cache,
                f"{uri.text} {order.revision} {credentials.endpoint_key()}",
                by_digest=by_digest,
            )

        match uri.scheme:
            case UriScheme.S3 | UriScheme.GS:
                source: ArtefactSource = open_object_store(uri, settings, credentials)
            case UriScheme.OCI:
                return OciSource(
                    uri,
                    version=order.version,
                    revision=order.revision,
                    rules=rules,
                    credentials=credentials,
                    wrap_source=partial(add_cache, by_digest=True),
                )
            case UriScheme.HF:
                source = HfSource(
                    uri,
                    version=order.version,
                    revision=order.revision,
                    rules=rules,
                    credentials=credentials,
                )
            case UriScheme.HTTPS:
                source = HttpsSource(uri, rules, credentials)
            case _:
                assert_never(uri.scheme)
        return add_cache(source)

    return open_source


def make_store_opener(
    settings: AgentSettings, environment: Mapping[str, str]
) -> Callable[[ArtefactUri], ObjectSource]:
    """Return the function that opens an object store for files of the pod's own; credentials are read at every opening."""
    return lambda uri: open_object_store(
        uri, settings, read_credentials(settings.secret_dir, settings.secret_name, environment)
    )
