"""Construction of the source for a URI, with the rules and credentials of this pod."""

from collections.abc import Mapping
from functools import partial

from tidegate_dataplane.agent.artefacts.checked_client import HttpRules
from tidegate_dataplane.agent.artefacts.credentials import read_credentials
from tidegate_dataplane.agent.artefacts.fetch import OpenSource
from tidegate_dataplane.agent.artefacts.files import folder_source
from tidegate_dataplane.agent.artefacts.hf import HfSource
from tidegate_dataplane.agent.artefacts.https import HttpsSource
from tidegate_dataplane.agent.artefacts.node_cache import CachedSource, NodeCache
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.oci import OciSource
from tidegate_dataplane.agent.artefacts.source import Source
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, Scheme
from tidegate_dataplane.agent.settings import Settings
from tidegate_dataplane.contract import DesiredState


def sources(settings: Settings, environment: Mapping[str, str]) -> OpenSource:
    """Return the function that opens the source of a URI; credentials are read at every opening."""

    def open_source(uri: ArtefactUri, order: DesiredState) -> Source:
        if uri.scheme in (Scheme.FILE, Scheme.PVC):
            return folder_source(uri, file_root=settings.file_root, pvc_root=settings.pvc_root)
        credentials = read_credentials(settings.secret_dir, settings.secret_name, environment)
        rules = HttpRules(
            order.allowed_hosts, settings.allow_loopback, settings.ca_file, settings.stall_timeout_s
        )

        def add_cache(source: Source, *, by_digest: bool = False) -> Source:
            if settings.node_cache_dir is None:
                return source
            cache = NodeCache(settings.node_cache_dir, settings.node_cache_bytes)
            return CachedSource(
                source, cache, f"{uri.text} {order.revision} {credentials.endpoints()}", by_digest=by_digest
            )

        match uri.scheme:
            case Scheme.S3 | Scheme.GS:
                source: Source = ObjectSource(
                    uri,
                    credentials,
                    allow_loopback=settings.allow_loopback,
                    stall_timeout_s=settings.stall_timeout_s,
                )
            case Scheme.OCI:
                return OciSource(
                    uri,
                    version=order.version,
                    revision=order.revision,
                    rules=rules,
                    credentials=credentials,
                    through=partial(add_cache, by_digest=True),
                )
            case Scheme.HF:
                source = HfSource(
                    uri,
                    version=order.version,
                    revision=order.revision,
                    rules=rules,
                    credentials=credentials,
                )
            case _:
                source = HttpsSource(uri, rules, credentials)
        return add_cache(source)

    return open_source
