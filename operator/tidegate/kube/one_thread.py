"""Says so when something without locks is changed in another thread than its own: the change would be lost, or a neighbour's."""

import threading

from tidegate.errors import WrongThreadError


class OneThread:
    """The thread that made something, which is the one of the event loop, and alone may change it."""

    def __init__(self) -> None:
        self._own = threading.get_ident()

    def check(self, what: object) -> None:
        """Raises WrongThreadError in any other thread; `what` is named in the message."""
        if threading.get_ident() != self._own:
            name = threading.current_thread().name
            message = f"{what} was changed in thread {name}, and belongs to the event loop's"
            raise WrongThreadError(message)
