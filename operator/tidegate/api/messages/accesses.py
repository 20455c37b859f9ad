"""Messages about ModelAccesses: routes, callers, pipelines and releases."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    # Routes, callers and pipelines
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
        "Check the gateways' pods: kubectl get pods -A -l app.kubernetes.io/component=gateway.",
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
        "Check the xDS servers' pods: kubectl get pods -A -l app.kubernetes.io/component=xds. Traffic is not affected.",
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
        "A target, the FeatureCompute of a batch, or the FeatureCompute of a shared feature, does not exist, or does not share with this namespace.",
        "Create the object, or correct the field that names it.",
    ),
    Reason.TARGET_NOT_READY: CatalogueMessage(
        "TG2009",
        MessageLevel.WARNING,
        "A target with weight has no ready endpoint, and the other targets get its share, if there are any; or the features that an "
        "Inference names do not compile.",
        "Look at that object's own conditions.",
    ),
    Reason.SERVED_NAME_MISMATCH: CatalogueMessage(
        "TG2010",
        MessageLevel.ERROR,
        "The targets serve different model names, but a request has only one.",
        "Create another Inference with the spec.model.name of the first target, and route to that one: the name of an existing "
        "Inference cannot change.",
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
    # Releases
    Reason.STEPPING: CatalogueMessage(
        "TG2101",
        MessageLevel.INFO,
        "The release's target gets its share of this step, and all checks pass so far.",
        "Wait.",
    ),
    Reason.WAITING_FOR_REQUESTS: CatalogueMessage(
        "TG2102",
        MessageLevel.INFO,
        "The interval of this step is over, and the target, or the targets that it is compared with, have "
        "answered too few requests for the checks.",
        "Wait; or lower minRequests of the check, start with a larger step, or annotate "
        "tidegate.io/release=promote.",
    ),
    Reason.WAITING_FOR_MEASUREMENTS: CatalogueMessage(
        "TG2103",
        MessageLevel.INFO,
        "A gateway or Prometheus returns no measurements, so the release does not advance.",
        "Wait; if it stays, look at the gateway or the query that the message names.",
    ),
    Reason.UNDECIDED: CatalogueMessage(
        "TG2104",
        MessageLevel.WARNING,
        "The target is above a check's limit, but not significantly.",
        "Wait for more requests. The message has the figures.",
    ),
    Reason.PAUSED: CatalogueMessage(
        "TG2105",
        MessageLevel.WARNING,
        "The release is paused at its step by the annotation tidegate.io/release=pause; its checks still "
        "run.",
        "Wait for the person who paused it, or annotate tidegate.io/release=resume.",
    ),
    Reason.PROMOTED: CatalogueMessage(
        "TG2106",
        MessageLevel.INFO,
        "The target passed every step, or a person promoted it; it gets all requests of its route.",
        "Nothing. With the next change, write the effective weights into the spec: all weight to the target, no "
        "release.",
    ),
    Reason.CHECK_FAILED: CatalogueMessage(
        "TG2107",
        MessageLevel.ERROR,
        "The release's target failed a check significantly; with onFailure: Rollback "
        "it gets no requests any more.",
        "Read the figures in the message. After a correction, any change of spec.release or the annotation "
        "tidegate.io/release=restart starts again.",
    ),
    Reason.ABORTED: CatalogueMessage(
        "TG2108",
        MessageLevel.INFO,
        "A person ended the release by the annotation tidegate.io/release=abort; its target gets no requests "
        "any more.",
        "Nothing. Any change of spec.release, or the annotation tidegate.io/release=restart, starts again.",
    ),
}
