"""Headers of a dead letter: those of the sender that can be sent again, and the reason. Pure."""

from collections.abc import Mapping, Sequence

from tidegate_dataplane.agent.nearline.verdict import Dead


def reason_headers(verdict: Dead) -> dict[str, str]:
    """Return the headers that every dead letter has, in ASCII."""
    return {
        "Tidegate-Reason": verdict.reason.value,
        "Tidegate-Message": " ".join(verdict.message.split())[:300].encode("ascii", "replace").decode(),
    }


def kept_headers(headers: Mapping[str, str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the sender's own headers; not ours, nor those that begin with one of `without`."""
    return {
        _line(name): _line(value)
        for name, value in headers.items()
        if not name.startswith(("Tidegate-", *without))
    }


def _line(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\r", " ").replace("\n", " ")
