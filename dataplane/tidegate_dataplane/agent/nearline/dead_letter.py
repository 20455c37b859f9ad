"""Headers of a dead letter: those of the sender that can be sent again, and the reason. Pure."""

from collections.abc import Mapping, Sequence

from tidegate_dataplane.agent.nearline.failure_policy import DeadLetter


def reason_headers(verdict: DeadLetter) -> dict[str, str]:
    """Return the headers that every dead letter has, in ASCII."""
    return {
        "Tidegate-Reason": verdict.reason.value,
        "Tidegate-Message": " ".join(verdict.message.split())[:300].encode("ascii", "replace").decode(),
    }


def sender_headers(headers: Mapping[str, str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the sender's own headers; not ours, nor those that begin with one of `without`."""
    return {
        _to_one_line(name): _to_one_line(value)
        for name, value in headers.items()
        if not name.startswith(("Tidegate-", *without))
    }


def _to_one_line(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\r", " ").replace("\n", " ")
