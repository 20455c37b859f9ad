"""Messages about objects of any kind."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.RECONCILED: CatalogueMessage(
        "TG1001",
        MessageLevel.INFO,
        "The object is as its spec asks.",
        NO_ACTION,
    ),
    Reason.INVALID_SPEC: CatalogueMessage(
        "TG1002",
        MessageLevel.ERROR,
        "The spec contradicts itself in a way that the CRD cannot reject.",
        "Change the field that the message names.",
    ),
    Reason.NAME_CONFLICT: CatalogueMessage(
        "TG1003",
        MessageLevel.ERROR,
        "An object that is not ours already has the name of a child that we would create.",
        "Rename this object, or delete the one that the message names.",
    ),
    Reason.CHILD_REFUSED: CatalogueMessage(
        "TG1004",
        MessageLevel.ERROR,
        "The API server rejected one of our child objects, for example by a quota or an admission policy.",
        "Read the API server's error in the message; raise the quota or change the policy or the spec.",
    ),
    Reason.PREDECESSOR_DELETING: CatalogueMessage(
        "TG1005",
        MessageLevel.WARNING,
        "A child of a deleted object with the same name still exists, and we need its name.",
        "Wait; if it stays, look at the finalizers of the object that the message names.",
    ),
    Reason.OBJECT_LEFT_OUT: CatalogueMessage(
        "TG1006",
        MessageLevel.ERROR,
        "An object that Tidegate watches has content that it cannot parse. Tidegate keeps the last version that it could parse, or "
        "ignores the object; other objects are not affected.",
        "Look for an absurd value in the object, such as a request for 1e90 cores, and correct it; the message shows where "
        "parsing failed. Please report it with the object, because no content should cause this.",
    ),
    Reason.RECONCILE_CRASHED: CatalogueMessage(
        "TG1007",
        MessageLevel.ERROR,
        "A reconcile of the object ended with an unexpected exception, which is a bug in Tidegate. The object stays as it was and is "
        "tried again at growing intervals; other objects are reconciled as usual.",
        "If it began with a change of this object, revert the change. Please report it with the traceback in the log of the "
        "controllers (reconcile_crashed), which `tidegate report` collects.",
    ),
}
