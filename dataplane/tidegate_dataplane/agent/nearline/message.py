"""Messages of the stream and results: JSON with tensors in the form of the Open Inference Protocol.

Pure; a message of a mebibyte takes tens of milliseconds, so callers use a thread.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TEXT: Final = "BYTES"
TYPES: Final[Mapping[str, type[np.generic]]] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
MAX_ID_LENGTH: Final = 200
_ID: Final = re.compile(r"[-_=/A-Za-z0-9]+(?:\.[-_=/A-Za-z0-9]+)*")
"""Valid keys of a NATS bucket: subjects, so that no part between two dots is empty."""


class MalformedError(ValueError):
    """The message can never be answered; the error names the problem."""


@dataclass(frozen=True, slots=True)
class InferenceTensor:
    """One input or output."""

    name: str
    datatype: str
    array: Array


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One message; `deadline_s` is in seconds since 1970, None without one."""

    id: str
    deadline_s: float | None
    inputs: tuple[InferenceTensor, ...]


@dataclass(frozen=True, slots=True)
class DeadlineField:
    """Where a message has its deadline: in a header of the broker, in a field of its JSON, or nowhere."""

    header: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class ResultOrigin:
    """Fields that all results of a pod have in common."""

    inference: str
    pod: str
    model: str


def parse_message(
    body: bytes, headers: Mapping[str, str], place: DeadlineField, id_header: str
) -> InferenceRequest:
    """Return the request in a message; the broker's `id_header` is its id if the body has none.

    Raises:
        MalformedError: it has no usable id, deadline or tensors.
    """
    try:
        return _parse_document(body, headers, place, id_header)
    except MalformedError:
        raise
    except Exception as error:  # an unexpected error concerns this message only
        raise MalformedError(f"it cannot be read: {type(error).__name__}") from error


def _parse_document(
    body: bytes, headers: Mapping[str, str], place: DeadlineField, id_header: str
) -> InferenceRequest:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedError("it is no JSON object")
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise MalformedError("it has no inputs")
    return InferenceRequest(
        id=_parse_id(document.get("id") or headers.get(id_header) or "", id_header),
        deadline_s=_parse_deadline(headers.get(place.header) if place.header else document.get(place.field)),
        inputs=tuple(_parse_tensor(tensor) for tensor in inputs),
    )


def render_result(
    request: InferenceRequest,
    outputs: Sequence[InferenceTensor],
    version: str,
    origin: ResultOrigin,
    *,
    made_at: datetime,
) -> bytes:
    """Return the JSON of a result with its time.

    Raises:
        MalformedError: an output has no form in JSON.
    """
    try:
        return _render_document(request, outputs, version, origin, made_at)
    except Exception as error:  # whatever an answer is made of, the other messages go on
        raise MalformedError(f"its result has no form in JSON: {type(error).__name__}") from error


def _render_document(
    request: InferenceRequest,
    outputs: Sequence[InferenceTensor],
    version: str,
    origin: ResultOrigin,
    made_at: datetime,
) -> bytes:
    document = {
        "id": request.id,
        "inference": origin.inference,
        "model": origin.model,
        "version": version,
        "pod": origin.pod,
        "time": made_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "late": request.deadline_s is not None and made_at.timestamp() > request.deadline_s,
        "outputs": [_render_tensor(tensor) for tensor in outputs],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _parse_id(value: object, id_header: str) -> str:
    if not isinstance(value, str) or not value:
        raise MalformedError(f"it has no id: neither the field id nor the header {id_header}")
    if len(value) > MAX_ID_LENGTH or not _ID.fullmatch(value):
        raise MalformedError(
            f"its id {value[:80]!r} must be at most {MAX_ID_LENGTH} letters, digits and - _ = / . (no dot at either end, and no two together)"
        )
    return value


def _parse_deadline(value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                raise ValueError("it has no time zone")
            return moment.timestamp()
        seconds = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError) as error:
        raise MalformedError(f"its deadline {str(value)[:40]!r} cannot be read: {error}") from error
    if not math.isfinite(seconds):
        raise MalformedError(f"its deadline {str(value)[:40]!r} must be RFC 3339 or seconds since 1970")
    return seconds


def _parse_tensor(tensor: object) -> InferenceTensor:
    if not isinstance(tensor, dict):
        raise MalformedError("an input is no JSON object")
    name, datatype, shape, data = (tensor.get(key) for key in ("name", "datatype", "shape", "data"))
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise MalformedError("an input has no name or no datatype")
    if not _is_text(name) or not _is_text(datatype):
        raise MalformedError(f"the name or datatype of input {name!a} is no text in UTF-8")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise MalformedError(f"input {name} has no shape")
    if not isinstance(data, list):
        raise MalformedError(f"input {name} has no data")
    try:
        array = _parse_texts(data) if datatype == TEXT else _parse_numbers(data, datatype)
        return InferenceTensor(name, datatype, array.reshape(shape))
    except (ValueError, TypeError, OverflowError) as error:
        raise MalformedError(f"input {name} is no {datatype} of shape {shape}: {error}") from error


def _parse_numbers(data: list[Any], datatype: str) -> Array:
    dtype = TYPES.get(datatype)
    if dtype is None:
        raise ValueError(f"its type must be one of {', '.join((*TYPES, TEXT))}")
    is_integer = not issubclass(dtype, (np.bool_, np.floating))
    # Before numpy sees them: beside one long text it makes every short one as long.
    if not _element_types(data) <= ({bool} if dtype is np.bool_ else {int} if is_integer else {int, float}):
        raise ValueError("its data are no whole numbers" if is_integer else "its data are of another type")
    raw: Array = np.asarray(data)
    if raw.size == 0:
        return np.zeros(raw.shape, dtype)
    if raw.dtype.kind not in "biuf" or (is_integer and raw.dtype.kind == "f"):
        # What is too large for 64 bits with a sign, numpy makes floats or objects of.
        if not is_integer:
            raise ValueError("its data are outside what 64 bits can say")
        raw = np.asarray(data, dtype=np.object_)
    if is_integer:
        bounds = np.iinfo(dtype)  # type: ignore[type-var]  # of the integers alone
        if int(raw.min()) < bounds.min or int(raw.max()) > bounds.max:
            raise ValueError(f"its data are outside {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):
        return raw.astype(dtype)


def _element_types(data: list[Any]) -> set[type]:
    """Return the types of the elements of a list, nested lists included."""
    all_kinds: set[type] = set()
    waiting = [data]
    while waiting:
        values = waiting.pop()
        kinds = set(map(type, values))
        if list in kinds:
            waiting.extend(inner for inner in values if type(inner) is list)
        all_kinds |= kinds
    return all_kinds - {list}


def _is_text(text: str) -> bool:
    """Return whether the text has a form in UTF-8: JSON can contain half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse_texts(data: list[Any]) -> Array:
    flat: list[bytes] = []
    waiting: list[Any] = list(reversed(data))
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, str):
            flat.append(value.encode(errors="replace"))
        else:
            raise ValueError("its data are no text")
    array = np.empty(len(flat), dtype=np.object_)
    array[:] = flat
    return array


def _render_tensor(tensor: InferenceTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.array.shape),
        "data": [_render_value(value) for value in tensor.array.ravel().tolist()],
    }


def _render_value(value: Any) -> Any:
    """Return the JSON form of a value; NaN and infinities are written as in protobuf's JSON and the sample log."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
