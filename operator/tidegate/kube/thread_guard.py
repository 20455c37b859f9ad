"""Detects that something without locks is changed in another thread than the event loop's."""

import threading

from tidegate.errors import WrongThreadError


class ThreadGuard:
    """The thread that created an object without locks, and that alone may change it: the event loop's."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()

    def check_thread(self, subject: object) -> None:
        """Raise WrongThreadError in any other thread; `subject` is named in the message."""
        if threading.get_ident() != self._thread_id:
            name = threading.current_thread().name
            message = f"{subject} was changed in thread {name}, and belongs to the event loop's"
            raise WrongThreadError(message)
