"""The source for s3: and gs: URIs, with the tenant's credentials and never the node's."""

import asyncio
import json
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING, Any, Literal, assert_never
from urllib.parse import urlsplit

from tidegate_dataplane.agent.artefacts.checked_proxy import CheckedProxy
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.folder_source import MAX_FILES
from tidegate_dataplane.agent.artefacts.source import CHUNK_BYTES, Download, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError, DeniedError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import FailureReason, UriScheme

if TYPE_CHECKING:
    from obstore import BytesStream, GetOptions, ObjectMeta
    from obstore.store import GCSStore, S3Store

# Of one whole object; a stall is noticed by the time without a chunk.
REQUEST_TIMEOUT = "6 hours"
LEAST_BYTES_PER_S = 1 << 20
"""A file that is written more slowly has failed: nothing shows how far it is."""
# Keys of the Secret, or variables that a cloud's webhook sets, and the store's names for them.
S3_KEYS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_DEFAULT_REGION": "default_region",
    "AWS_ROLE_ARN": "role_arn",
    "AWS_ROLE_SESSION_NAME": "role_session_name",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "web_identity_token_file",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container_credentials_full_uri",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container_credentials_relative_uri",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "container_authorization_token_file",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
}
PLATFORM_KEYS = frozenset(
    {
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
    }
)
"""Sources of credentials and files of the pod, which only the platform may set.

A Secret that named the node's metadata service here would read as the node.
"""
FORBIDDEN_ACCOUNT_FIELDS = frozenset({"gcs_base_url", "disable_oauth"})
"""Fields that a service account's JSON must not set: they bypass the check of the endpoint."""
S3_IDENTITIES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)
GCS_KEYS: Mapping[str, str] = {
    "GOOGLE_SERVICE_ACCOUNT_KEY": "service_account_key",
    "GOOGLE_APPLICATION_CREDENTIALS": "application_credentials",
    "GOOGLE_BEARER_TOKEN": "bearer_token",
    "GOOGLE_BASE_URL": "base_url",
}
ECS_CREDENTIALS = "http://169.254.170.2"
"""Base of AWS_CONTAINER_CREDENTIALS_RELATIVE_URI."""
GCS_IDENTITIES = ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_BEARER_TOKEN")


class ObjectSource:
    """Reads `s3://<bucket>/<prefix>/<path>` and `gs://<bucket>/<prefix>/<path>`."""

    def __init__(
        self,
        uri: ArtefactUri,
        credentials: SecretCredentials,
        *,
        allow_loopback: bool = False,
        stall_timeout_s: float = 30.0,
    ) -> None:
        self._uri = uri
        self._credentials = credentials
        # obstore follows redirects and resolves names itself, so the proxy opens all of its connections.
        self._proxy = CheckedProxy(allow_loopback=allow_loopback, unchecked=_platform_targets(credentials))
        weakref.finalize(self, self._proxy.close)
        self._stall_timeout_s = stall_timeout_s
        self._opened_store: S3Store | GCSStore | None = None

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one object, at `resume` if it has not changed."""
        from obstore import get_async
        from obstore.exceptions import PreconditionError

        options: GetOptions | None = None
        if resume is not None:
            options = {"range": {"offset": resume.start}, "if_match": resume.validator}
        try:
            store = self._open_store()
            async with asyncio.timeout(self._stall_timeout_s):
                try:
                    result = await get_async(store, self._object_key(path), options=options)
                except PreconditionError:
                    result = await get_async(store, self._object_key(path))
        except ArtefactError:
            raise
        except Exception as error:
            raise self._translate_error(path, error) from error
        yield Download(
            result.meta["size"],
            self._read_chunks(path, result.stream(min_chunk_size=CHUNK_BYTES)),
            start=result.range[0],
            validator=result.meta["e_tag"],
        )

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the keys below `folder`, relative to it."""
        from obstore import list as list_objects

        prefix = self._object_key(folder)
        keys: list[str] = []
        try:
            store = self._open_store()
            async with asyncio.timeout(self._stall_timeout_s * 4):
                async for page in list_objects(store, prefix=prefix):
                    keys += [meta["path"].removeprefix(prefix).lstrip("/") for meta in page]
                    if len(keys) > MAX_FILES:
                        raise ArtefactError(
                            FailureReason.ARTEFACT_INVALID,
                            f"{self._uri}/{folder} holds more than {MAX_FILES} objects",
                        )
        except ArtefactError:
            raise
        except Exception as error:
            raise self._translate_error(folder, error) from error
        return tuple(sorted(keys))

    async def size(self, path: str) -> int:
        """Return the size of one object in bytes."""
        return int((await self._read_meta(path))["size"])

    async def identify_content(self, path: str) -> str:
        """Return the ETag of one object, or without one its time and size."""
        meta = await self._read_meta(path)
        return meta["e_tag"] or f"{meta['last_modified'].isoformat()}-{meta['size']}"

    async def _read_meta(self, path: str) -> "ObjectMeta":
        from obstore import head_async

        try:
            store = self._open_store()
            async with asyncio.timeout(self._stall_timeout_s):
                return await head_async(store, self._object_key(path))
        except ArtefactError:
            raise
        except Exception as error:
            raise self._translate_error(path, error) from error

    async def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of one object from `start` on."""
        from obstore import get_range_async

        if length == 0:
            return b""
        try:
            store = self._open_store()
            async with asyncio.timeout(self._stall_timeout_s * 4):
                return bytes(await get_range_async(store, self._object_key(path), start=start, length=length))
        except ArtefactError:
            raise
        except Exception as error:
            raise self._translate_error(path, error) from error

    async def create(self, path: str, content: bytes) -> bool:
        """Write one object if its name is free; return False, and change nothing, if it is taken."""
        from obstore.exceptions import AlreadyExistsError

        try:
            await self._write_object(path, content, len(content), mode="create")
        except AlreadyExistsError:
            return False
        return True

    async def put(self, path: str, content: bytes) -> None:
        """Write one object atomically."""
        await self._write_object(path, content, len(content))

    async def put_file(self, path: str, file: IO[bytes]) -> None:
        """Write one object with the content of a file, atomically, in parts if it is large."""
        await self._write_object(path, file, os.fstat(file.fileno()).st_size)

    async def _write_object(
        self,
        path: str,
        content: bytes | IO[bytes],
        size: int,
        *,
        mode: Literal["create", "overwrite"] = "overwrite",
    ) -> None:
        from obstore import put_async
        from obstore.exceptions import AlreadyExistsError

        self._check_may_write(path)
        try:
            store = self._open_store()
            async with asyncio.timeout(self._stall_timeout_s * 4 + size / LEAST_BYTES_PER_S):
                await put_async(store, self._object_key(path), content, mode=mode)
        except (ArtefactError, AlreadyExistsError):
            raise
        except Exception as error:
            raise self._translate_error(path, error, verb="written") from error

    def _object_key(self, path: str) -> str:
        return f"{self._uri.path}/{path}".strip("/")

    def _check_may_write(self, path: str) -> None:
        """Refuse to write to gs: without an identity.

        `skip_signature` works there for reads only: to write, the store would get a token from the node's metadata service, and
        write as the node (apache/arrow-rs-object-store#520).
        """
        match _store_scheme(self._uri):
            case UriScheme.S3:
                return
            case UriScheme.GS:
                if any(_find_credential(key, self._credentials) for key in GCS_IDENTITIES):
                    return
        raise DeniedError(
            f"{self._uri.text.rstrip('/')}/{path} may not be written: Secret {self._credentials.secret} of the "
            "namespace has neither GOOGLE_SERVICE_ACCOUNT_KEY nor GOOGLE_BEARER_TOKEN"
        )

    def _open_store(self) -> "S3Store | GCSStore":
        self._proxy.error = None  # left by an earlier operation
        if self._opened_store is None:
            bucket, credentials, proxy_url = self._uri.authority, self._credentials, self._proxy.url
            match _store_scheme(self._uri):
                case UriScheme.S3:
                    self._opened_store = _s3_store(bucket, credentials, proxy_url)
                case UriScheme.GS:
                    self._opened_store = _gcs_store(bucket, credentials, proxy_url)
        return self._opened_store

    async def _read_chunks(self, path: str, stream: "BytesStream") -> AsyncIterator[bytes]:
        chunks = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(self._stall_timeout_s):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise self._translate_error(path, error) from error
            yield bytes(chunk)

    def _translate_error(self, path: str, error: Exception, *, verb: str = "") -> ArtefactError:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        object_uri = f"{self._uri.text.rstrip('/')}/{path}"
        if self._proxy.error is not None:
            reason, message = self._proxy.error.refusal.reason, self._proxy.error.refusal.message
            return ArtefactError(
                reason,
                f"{object_uri} cannot be {verb or 'fetched'}: {self._credentials.redact_secrets(message)}",
            )
        if isinstance(error, FileNotFoundError):
            return ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, f"there is no {object_uri}")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            return DeniedError(
                f"{object_uri} may not be {verb or 'read'}: {self._credentials.explain_denial()}"
            )
        detail = "no answer in time" if isinstance(error, TimeoutError) else _first_line(error)
        return ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{object_uri} cannot be {verb or 'fetched'}: {self._credentials.redact_secrets(detail)}",
        )


def open_object_store(
    uri: ArtefactUri, settings: AgentSettings, credentials: SecretCredentials
) -> ObjectSource:
    """Open a folder of an object store with the limits of this pod."""
    return ObjectSource(
        uri,
        credentials,
        allow_loopback=settings.allow_loopback,
        stall_timeout_s=settings.stall_timeout_s,
    )


def _store_scheme(uri: ArtefactUri) -> Literal[UriScheme.S3, UriScheme.GS]:
    """Return the scheme if it is one of an object store. Raises ValueError for any other."""
    match uri.scheme:
        case UriScheme.S3 | UriScheme.GS:
            return uri.scheme
        case UriScheme.FILE | UriScheme.PVC | UriScheme.HTTPS | UriScheme.OCI | UriScheme.HF:
            message = f"{uri.text} is in no object store"
            raise ValueError(message)
        case _:
            assert_never(uri.scheme)


def _read_endpoint(names: Sequence[str], credentials: SecretCredentials) -> str:
    """Return the endpoint in the first of these entries; empty for the cloud provider's own.

    Raises:
        ArtefactError: UriNotAllowed if it is no http: or https: URL.
    """
    endpoint = next((value for name in names if (value := credentials.get(name))), "")
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ArtefactError(
            FailureReason.URI_NOT_ALLOWED,
            f"the endpoint in Secret {credentials.secret} is no http: or https: URL",
        )
    return endpoint


def _platform_targets(credentials: SecretCredentials) -> frozenset[str]:
    """Return the platform's credential endpoint for the pod's identity, which EKS and ECS have at a link-local address."""
    if credentials.get("AWS_ACCESS_KEY_ID"):
        return frozenset()
    full = credentials.environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    relative = credentials.environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = full or (f"{ECS_CREDENTIALS}{relative}" if relative else "")
    parts = urlsplit(url)
    return frozenset({f"{parts.hostname}:{parts.port or 443}" if parts.scheme == "https" else url} - {""})


def _client_options(endpoint: str, proxy_url: str) -> dict[str, Any]:
    return {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": "10 seconds",
        "proxy_url": proxy_url,
        "timeout": REQUEST_TIMEOUT,
    }


def _make_config(
    keys: Mapping[str, str], identities: tuple[str, ...], credentials: SecretCredentials
) -> dict[str, Any]:
    config: dict[str, Any] = {
        name: value for key, name in keys.items() if (value := _find_credential(key, credentials)) is not None
    }
    # Without this the store would use the node's metadata service, and read as the node.
    if not any(_find_credential(key, credentials) for key in identities):
        config["skip_signature"] = True
    return config


def _find_credential(key: str, credentials: SecretCredentials) -> str | None:
    if key in PLATFORM_KEYS:
        return credentials.environment.get(key) or None
    value = credentials.get(key)
    return _service_account(value, credentials) if value and key == "GOOGLE_SERVICE_ACCOUNT_KEY" else value


def _service_account(text: str, credentials: SecretCredentials) -> str:
    try:
        account = json.loads(text)
        return json.dumps(
            {name: value for name, value in account.items() if name not in FORBIDDEN_ACCOUNT_FIELDS}
        )
    except (ValueError, AttributeError) as error:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"GOOGLE_SERVICE_ACCOUNT_KEY in Secret {credentials.secret} is not the JSON of a service account",
        ) from error


def _s3_store(bucket: str, credentials: SecretCredentials, proxy_url: str) -> "S3Store":
    # Imported here: a pod that fetches nothing from an object store does not pay 10 MiB for it.
    from obstore.store import S3Store

    endpoint = _read_endpoint(("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), credentials)
    config = _make_config(S3_KEYS, S3_IDENTITIES, credentials)
    if endpoint:
        config["endpoint"] = endpoint
    # The agent's own retries are the ones that are reported.
    retries: Any = {"max_retries": 1}
    options: Any = _client_options(endpoint, proxy_url)
    return S3Store(bucket, config=config, client_options=options, retry_config=retries)  # type: ignore[arg-type]


def _gcs_store(bucket: str, credentials: SecretCredentials, proxy_url: str) -> "GCSStore":
    from obstore.store import GCSStore

    config: Any = _make_config(GCS_KEYS, GCS_IDENTITIES, credentials)
    retries: Any = {"max_retries": 1}
    options: Any = _client_options(_read_endpoint(("GOOGLE_BASE_URL",), credentials), proxy_url)
    return GCSStore(bucket, config=config, client_options=options, retry_config=retries)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
