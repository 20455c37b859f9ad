"""Of the routes, targets and callers of a ModelAccess."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PROGRAMMED: Message(
        "TG2001",
        Level.INFO,
        "Every connected proxy has accepted this generation.",
        NOTHING,
    ),
    Reason.ENDPOINTS_PUBLISHED: Message(
        "TG2002",
        Level.INFO,
        "Every connected proxy has its ready endpoints.",
        NOTHING,
    ),
    Reason.WAITING_FOR_PROXIES: Message(
        "TG2003",
        Level.WARNING,
        "Some connected proxies have not accepted this generation, or its ready endpoints, yet.",
        "Wait; usually well under a second.",
    ),
    Reason.NO_PROXIES: Message(
        "TG2004",
        Level.ERROR,
        "No proxy is connected, so nobody can call this endpoint.",
        "Check the pods of deployment tidegate-gateway.",
    ),
    Reason.PROXY_REJECTED: Message(
        "TG2005",
        Level.ERROR,
        "A proxy refused what this object is for it, and keeps the last good one; other objects go on.",
        "Report it with the message: Tidegate should have refused the spec first. Where the gateways have a "
        "bootstrap of your own, compare it with ours.",
    ),
    Reason.XDS_UNREACHABLE: Message(
        "TG2006",
        Level.WARNING,
        "The controllers cannot ask the xDS servers what the proxies run.",
        "Check the pods of deployment tidegate-xds; traffic goes on meanwhile.",
    ),
    Reason.TARGETS_READY: Message(
        "TG2007",
        Level.INFO,
        "Every target with weight has ready endpoints.",
        NOTHING,
    ),
    Reason.TARGET_NOT_FOUND: Message(
        "TG2008",
        Level.ERROR,
        "A target does not exist in this namespace.",
        "Create the Inference or correct the route's target.",
    ),
    Reason.TARGET_NOT_READY: Message(
        "TG2009",
        Level.WARNING,
        "A target with weight has no ready endpoint; its share goes to the others where there are any.",
        "Look at that Inference's own conditions.",
    ),
    Reason.SERVED_NAME_MISMATCH: Message(
        "TG2010",
        Level.ERROR,
        "The targets serve under different model names, but a client can only ask for one.",
        "Set the same spec.model.name on all of them.",
    ),
    Reason.HOST_CONFLICT: Message(
        "TG2011",
        Level.ERROR,
        "An older ModelAccess already has one of these hosts.",
        "Choose another host, or delete the older object.",
    ),
    Reason.PIPELINE_INVALID: Message(
        "TG2012",
        Level.ERROR,
        "The models and features of a pipeline do not fit together; what ran before runs on.",
        "Change the model, feature or field that the message names.",
    ),
    Reason.CREDENTIALS_NOT_READABLE: Message(
        "TG2013",
        Level.ERROR,
        "The gateways cannot have what spec.auth names. A Secret does not exist, lacks the label "
        "tidegate.io/auth=gateway, or its namespace is not in the chart's auth.namespaces; an issuer's "
        "address (jwksUri) has a host that is not in auth.jwks.allowedHosts, or has given no keys since the "
        "xDS server started. Nobody is let in meanwhile: calls are answered 503 (gRPC: UNAVAILABLE).",
        "Run the command in the message, or see why the issuer's address gives no keys.",
    ),
    Reason.CREDENTIALS_INVALID: Message(
        "TG2014",
        Level.ERROR,
        "Something in the Secret or at the address that spec.auth names cannot be used. Keys that can be used"
        " still let their holders in; where there are none, calls are answered 503 (gRPC: UNAVAILABLE).",
        "Correct the entry that the message names; the message never shows its value.",
    ),
    Reason.CLIENT_AUTHORITY_MISSING: Message(
        "TG2015",
        Level.ERROR,
        "spec.auth.mtls asks for client certificates, and the gateways have nothing to check them by: the "
        "chart's gateway.tls.clientAuthority is not set, or its Secret was never good. Nobody is let in "
        "meanwhile: calls are answered 503 (gRPC: UNAVAILABLE).",
        "Have whoever runs Tidegate set it; where it is set, tidegate xds status says what is wrong with the "
        "Secret.",
    ),
}
