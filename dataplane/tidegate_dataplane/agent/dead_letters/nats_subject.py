"""A subject of NATS that takes dead letters, each acknowledged by the stream that stores it."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.dead_letters.letter import LetterContent, list_forms
from tidegate_dataplane.agent.nats_server import LARGER_THAN_STREAM_TAKES, NatsServer

if TYPE_CHECKING:
    from nats.js import JetStreamContext

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""Names that the client sends; it receives others."""


class DeadLetterSubject:
    """A subject; callers own the connection to its server."""

    def __init__(self, server: NatsServer, subject: str) -> None:
        self._server = server
        self._subject = subject

    def check_source(self, consumed: str) -> None:
        """Check that letters do not come back with `consumed`, a subject that may have wildcards.

        Raises:
            BrokerError: they do.
        """
        if subjects_overlap(consumed, self._subject):
            raise self._server.refusal_error(
                f"the dead letters go to {self._subject}, which is among what is consumed ({consumed}): give "
                "deadLetters.subject another name"
            )

    async def find_stream(self, stream: "JetStreamContext") -> None:
        """Check that a stream stores the subject.

        Raises:
            BrokerError: none does.
        """
        from nats.js.errors import NotFoundError

        try:
            await self._server.call_server(stream.find_stream_name_by_subject(self._subject))
        except NotFoundError as error:
            raise self._no_stream_error() from error

    async def publish_letter(
        self, stream: "JetStreamContext", max_payload: int, content: LetterContent, *, can_cut: bool = False
    ) -> None:
        """Publish a letter in the largest form that fits; a repetition with the same Nats-Msg-Id is dropped as a duplicate.

        Raises:
            BrokerError: refused, if the subject takes no message, or none of this size.
        """
        from nats.js.errors import APIError, NoStreamResponseError

        detail = ""
        for form in list_forms(content, can_cut=can_cut):
            headers = {name: text for name, text in form.headers.items() if _HEADER_NAME.fullmatch(name)}
            size = len(form.body) + _count_header_bytes(headers)
            if size > max_payload:
                detail = f"{size} bytes with its reason, and the server takes {max_payload}: raise max_payload of the server"
                continue
            try:
                await self._server.call_server(stream.publish(self._subject, form.body, headers=headers))
            except NoStreamResponseError as error:
                raise self._no_stream_error() from error
            except APIError as error:
                detail = str(error.description or error)
                if error.err_code != LARGER_THAN_STREAM_TAKES:
                    break
            else:
                return
        raise self._server.refusal_error(f"subject {self._subject} takes no dead letter: {detail}")

    def _no_stream_error(self) -> BrokerError:
        return self._server.refusal_error(
            f"no stream takes the subject {self._subject} of deadLetters; make one: nats stream add DEAD --subjects "
            f"{self._subject}"
        )


def subjects_overlap(pattern: str, subject: str) -> bool:
    """Return whether some subject matches both; either may have the wildcards * and >."""
    pattern_tokens, subject_tokens = pattern.split("."), subject.split(".")
    for pattern_token, subject_token in zip(pattern_tokens, subject_tokens, strict=False):
        if ">" in (pattern_token, subject_token):
            return True
        if pattern_token != subject_token and "*" not in (pattern_token, subject_token):
            return False
    return len(pattern_tokens) == len(subject_tokens)


def _count_header_bytes(headers: Mapping[str, str]) -> int:
    """Return the bytes of the headers on the wire: a first line, one line for each, and an empty one."""
    lines = (len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
    return len("NATS/1.0\r\n") + sum(lines) + 2
