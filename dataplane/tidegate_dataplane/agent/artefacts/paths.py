"""Relative paths inside an artefact, checked before anything is opened or written."""

from pathlib import PurePosixPath

from tidegate_dataplane.agent.formats import MODEL_FILES, SERVED_GRAPH
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason, ModelFormat

MAX_PATH_BYTES = 1024
# Names in a version folder that are the model's own, or ours.
RESERVED_NAMES = (MODEL_FILES[ModelFormat.ONNX], SERVED_GRAPH, "__pycache__")

# The version folder is on the module path of Triton's Python backend: weights with such a name would be code.
CODE_SUFFIXES = (".py", ".pyc", ".pyd", ".pyi", ".pth", ".so", ".egg", ".zip")


def check_relative_path(path: str, *, subject: str) -> str:
    """Return the normalised `path`.

    Raises:
        ArtefactError: ArtefactInvalid if the path is absolute, leaves its folder or cannot be a file name.
    """
    bad = (
        not path
        or "\\" in path
        or any(ord(character) < 32 for character in path)
        or len(path.encode(errors="surrogatepass")) > MAX_PATH_BYTES
        or path.startswith("/")
        or ".." in PurePosixPath(path).parts
        or str(PurePosixPath(path)) in ("", ".")
    )
    if bad:
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID,
            f"{subject} {path[:200]!r} is not a relative path inside the version folder; move the file there",
        )
    return str(PurePosixPath(path))


def check_data_file(path: str) -> str:
    """Return the path of an external data file, which must not be importable as code.

    Raises:
        ArtefactError: ArtefactInvalid, as `check_relative_path`, or for a name that Python could import.
    """
    relative = check_relative_path(path, subject="external data file")
    if relative.lower().endswith(CODE_SUFFIXES) or relative.split("/")[0] in RESERVED_NAMES:
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID,
            f"external data file {relative!r} has the name of code or of the model itself; save it as *.data",
        )
    return relative
