"""Checks of a compiled model that need none of the compiler's libraries: it is complete, and of its format."""

import zipfile
from pathlib import Path

from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason, ModelFormat

# Where PyTorch's archives keep the code that Triton runs; a bare torch.export has a graph and no code.
COMPILED_CODE = "data/aotinductor/"


def check_compiled(path: Path, model_format: ModelFormat) -> None:
    """Raise if the file at `path` cannot be a model of the format.

    Raises:
        ArtefactError: ArtefactInvalid, with the problem and the way out.
    """
    if path.stat().st_size == 0:
        raise _invalid_artefact(f"{path.name} is empty: publish it again")
    if model_format is ModelFormat.TORCH_EXPORT:
        _check_archive(path)


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise _invalid_artefact(
            f"{path.name} is no whole .pt2 archive ({error}): it was cut short, or is something else; publish it again"
        ) from error
    if not any(COMPILED_CODE in f"/{name}" for name in names):
        raise _invalid_artefact(
            f"{path.name} holds no compiled code ({COMPILED_CODE}): Triton does not run a bare torch.export; make it "
            "with torch._inductor.aoti_compile_and_package, or export the model to ONNX"
        )


def _invalid_artefact(message: str) -> ArtefactError:
    return ArtefactError(FailureReason.ARTEFACT_INVALID, message)
