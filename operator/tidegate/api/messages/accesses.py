"""Messages about routes, targets and callers of a ModelAccess."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.PROGRAMMED: CatalogueMessage(
        "TG2001",
        MessageLevel.INFO,
        "Every connected proxy has accepted this generation.",
        NO_ACTION,
    ),
    Reason.ENDPOINTS_PUBLISHED: CatalogueMessage(
        "TG2002",
        MessageLevel.INFO,
        "Every connected proxy has its ready endpoints.",
        NO_ACTION,
    ),
    Reason.WAITING_FOR_PROXIES: CatalogueMessage(
        "TG2003",
        MessageLevel.WARNING,
        "Some connected proxies have not accepted this generation, or its ready endpoints, yet.",
        "Wait; usually well under a second.",
    ),
    Reason.NO_PROXIES: CatalogueMessage(
        "TG2004",
        MessageLevel.ERROR,
        "No proxy is connected, so clients cannot reach this endpoint.",
        "Check the pods of deployment tidegate-gateway.",
    ),
    Reason.PROXY_REJECTED: CatalogueMessage(
        "TG2005",
        MessageLevel.ERROR,
        "A proxy rejected this object's resources and keeps the last accepted ones; other objects are not affected.",
        "Report a bug with the message, because Tidegate should have rejected the spec. If the gateways have your "
        "own bootstrap, compare it with ours.",
    ),
    Reason.XDS_UNREACHABLE: CatalogueMessage(
        "TG2006",
        MessageLevel.WARNING,
        "The controllers cannot ask the xDS servers what the proxies run.",
        "Check the pods of deployment tidegate-xds; traffic is not affected.",
    ),
    Reason.TARGETS_READY: CatalogueMessage(
        "TG2007",
        MessageLevel.INFO,
        "Every target with weight has ready endpoints.",
        NO_ACTION,
    ),
    Reason.TARGET_NOT_FOUND: CatalogueMessage(
        "TG2008",
        MessageLevel.ERROR,
        "A target does not exist in this namespace.",
        "Create the Inference or correct the route's target.",
    ),
    Reason.TARGET_NOT_READY: CatalogueMessage(
        "TG2009",
        MessageLevel.WARNING,
        "A target with weight has no ready endpoint; the other targets get its share, if there are any.",
        "Look at that Inference's own conditions.",
    ),
    Reason.SERVED_NAME_MISMATCH: CatalogueMessage(
        "TG2010",
        MessageLevel.ERROR,
        "The targets serve different model names, but a request has only one.",
        "Set the same spec.model.name on all of them.",
    ),
    Reason.HOST_CONFLICT: CatalogueMessage(
        "TG2011",
        MessageLevel.ERROR,
        "An older ModelAccess already has one of these hosts.",
        "Choose another host, or delete the older object.",
    ),
    Reason.PIPELINE_INVALID: CatalogueMessage(
        "TG2012",
        MessageLevel.ERROR,
        "The models and features of a pipeline do not fit together; the previous pipeline keeps running.",
        "Change the model, feature or field that the message names.",
    ),
    Reason.CREDENTIALS_NOT_READABLE: CatalogueMessage(
        "TG2013",
        MessageLevel.ERROR,
        "The gateways cannot get the credentials that spec.auth names. A Secret does not exist, lacks the label "
        "tidegate.io/auth=gateway, or its namespace is not in the chart's auth.namespaces; an issuer's "
        "address (jwksUri) has a host that is not in auth.jwks.allowedHosts, or has returned no keys since the "
        "xDS server started. Meanwhile all requests get 503 (gRPC: UNAVAILABLE).",
        "Run the command in the message, or find out why the issuer's address returns no keys.",
    ),
    Reason.CREDENTIALS_INVALID: CatalogueMessage(
        "TG2014",
        MessageLevel.ERROR,
        "An entry of the Secret, or the content at the address, that spec.auth names is invalid. Valid keys "
        "still work; without any, requests get 503 (gRPC: UNAVAILABLE).",
        "Correct the entry that the message names; the message never shows its value.",
    ),
    Reason.CLIENT_AUTHORITY_MISSING: CatalogueMessage(
        "TG2015",
        MessageLevel.ERROR,
        "spec.auth.mtls requires client certificates, and the gateways cannot verify them: the "
        "chart's gateway.tls.clientAuthority is not set, or its Secret was never valid. Meanwhile all requests "
        "get 503 (gRPC: UNAVAILABLE).",
        "Ask your Tidegate administrator to set it; if it is set, tidegate xds status shows what is wrong with the "
        "Secret.",
    ),
}
