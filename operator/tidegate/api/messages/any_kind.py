"""Of objects of any kind."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.RECONCILED: Message(
        "TG1001",
        Level.INFO,
        "The object is as its spec asks.",
        NOTHING,
    ),
    Reason.INVALID_SPEC: Message(
        "TG1002",
        Level.ERROR,
        "The spec contradicts itself in a way that the CRD could not refuse.",
        "Change the field that the message names.",
    ),
    Reason.NAME_CONFLICT: Message(
        "TG1003",
        Level.ERROR,
        "An object that is not ours already has the name of a child that we would create.",
        "Rename this object, or delete the one that the message names.",
    ),
    Reason.CHILD_REFUSED: Message(
        "TG1004",
        Level.ERROR,
        "The API server refused one of our child objects, for example by a quota or an admission policy.",
        "Read the API server's own words in the message; raise the quota or change the policy or the spec.",
    ),
    Reason.PREDECESSOR_DELETING: Message(
        "TG1005",
        Level.WARNING,
        "A child of a deleted object of the same name is still there, and its name is needed.",
        "Wait; if it stays, look at the finalizers of the object that the message names.",
    ),
    Reason.OBJECT_LEFT_OUT: Message(
        "TG1006",
        Level.ERROR,
        "An object of a kind that Tidegate watches has content that it cannot read. It goes on with what the object was before, or "
        "without it; all other objects are as usual.",
        "Look for a value of the object that makes no sense, such as a request for 1e90 cores, and correct it; the message says where "
        "the reading failed. Please report it, with the object: no content should do this.",
    ),
}
