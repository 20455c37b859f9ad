"""Fleets as chance makes them: for the properties that every fleet has."""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from builders.fleet import a_backend, a_fleet, credentials
from builders.model_access import a_model_access
from builders.release import released
from builders.tokens import Issuer
from tidegate.api.model_access import ModelAccess
from tidegate.routing.credentials import ClientAuthority, InvalidContent, KeyFetchFailed, KeyFetchResult
from tidegate.routing.fleet import Backend, Endpoint, FleetState
from tidegate.routing.pipelines import pipeline_key

ALL_NAMES = ["a", "b", "c", "d"]
NAMES = st.sampled_from(ALL_NAMES)
TARGETS = [*ALL_NAMES, "shop/a", "shop/b", "ads/a", "feed/a"]
"""Names that accesses of ads and shop may give: one names an Inference of its own namespace in two ways."""
HOSTS = st.sampled_from(["x.com", "y.com", "z.com"])
CALLS = st.lists(st.sampled_from(TARGETS), max_size=2, unique=True).map(lambda names: tuple(sorted(names)))
VALUES = st.text(string.printable[:95], min_size=1, max_size=20)


def header_test(random: Random) -> dict[str, str]:
    """One way to compare a header, expressions included that are larger than Envoy takes."""
    return random.choice(
        [
            {"exact": random.choice(["vip", "a b", "~"])},
            {"prefix": random.choice(["de-", " "])},
            {"regex": random.choice(["a|b", "[a-z]{3,40}", "x{90}", "(y{10}){20}", ".*"])},
        ]
    )


def route_extras(random: Random, targets: Collection[str]) -> dict[str, Any]:
    """What a route may say besides its targets: any of it, or nothing."""
    free = [name for name in TARGETS if name not in targets]
    extras = {
        "sticky": random.choice([{"header": "x-user"}, {"cookie": "session"}]),
        "mirror": [
            {"inference": name, "percent": random.randint(1, 100)}
            for name in random.sample(TARGETS, random.randint(0, 2))
        ],
        "fallback": {"inference": random.choice(free)} if free else None,
        "retry": {"attempts": random.randint(0, 5), "budgetPercent": random.randint(0, 100)},
    }
    return {name: value for name, value in extras.items() if value and random.random() < 0.5}


def any_pipeline(random: Random, inferences: Sequence[str]) -> dict[str, Any]:
    """A pipeline over these Inferences, and at times over a ModelAccess."""
    models: list[dict[str, Any]] = [
        {"inference": name, "as": f"p_{name.replace('/', '_')}"} for name in inferences
    ]
    if random.random() < 0.3:
        models.append({"access": random.choice(ALL_NAMES), "as": "inner"})
    return {"models": models, "modelName": random.choice(["ctr", "cvr"])}


def any_protection(random: Random) -> dict[str, Any]:
    """Any of the limits, or none."""
    outlier = {"consecutiveFailures": random.randint(1, 1000), "ejectFor": random.choice(["1s", "1h"])}
    limits = {
        "rateLimit": {"requests": random.randint(1, 1_000_000), "per": random.choice(["100ms", "1m"])},
        "maxConcurrent": random.randint(1, 65_536),
        "maxPending": random.randint(1, 65_536),
        "outlier": outlier,
        "deadline": random.random() < 0.5,
        "admissionControl": {
            "mode": random.choice(["Local", "Priced"]),
            "maxFailurePercent": random.randint(1, 50),
        },
    }
    return {name: value for name, value in limits.items() if random.random() < 0.5}


def any_release(random: Random, routes: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """A release on one of the routes that have two targets, if there is such a route."""
    fit = [route for route in routes if len(route.get("targets", ())) > 1]
    if not fit:
        return None
    route = random.choice(fit)
    checks = [{"metric": "ErrorRate", "max": "0.001"}, {"metric": "LatencyP99", "maxRatioToStable": "1.1"}]
    return {
        "route": route["name"],
        "target": route["targets"][-1]["inference"],
        "steps": sorted(random.sample(range(1, 100), random.randint(1, 5))),
        "checks": random.sample(checks, random.randint(1, 2)),
    }


def with_any_progress(random: Random, access: ModelAccess) -> ModelAccess:
    """Somewhere on the way of its release, if it has one; or with a status about another one."""
    if access.spec.release is None or random.random() < 0.3:
        return access
    return released(
        access,
        phase=random.choice(["Progressing", "Paused", "Promoted", "RolledBack"]),
        step=random.randint(1, 7),
        **({"key": "another"} if random.random() < 0.2 else {}),
    )


SECRETS = {
    "keys": {"alice": b"a" * 16, "bob": b"b" * 40, "short": b"c"},
    "empty": {},
    "issuer": {"jwks.json": Issuer.key_set(Issuer("i", "EdDSA"))},
    "broken": {"jwks.json": b"{"},
}


KEY_HOSTS = frozenset({"login.example.com", "sso.example.com:8443"})
FETCHED: dict[str, KeyFetchResult] = {
    "https://login.example.com/keys": Issuer.key_set(Issuer("i", "EdDSA")).decode(),
    "https://login.example.com/broken": InvalidContent("it is no JSON"),
    "https://sso.example.com:8443/keys": KeyFetchFailed("it answers HTTP 500"),
}
IDENTITIES = ["spiffe://example.com/ads/ranker", "ranker.ads.example.com", "localhost", "x+y://~"]


def any_auth(random: Random) -> dict[str, Any]:
    """Any way to tell callers apart, with Secrets that fit, do not fit and are not there."""
    secret = random.choice([*SECRETS, "missing"])
    jwt = {"issuer": "i", "audiences": random.sample(["x", "y", "z"], random.randint(1, 3))}
    return random.choice(
        [
            {"apiKeys": {"secret": secret, "header": random.choice(["x-api-key", "authorization"])}},
            {"jwt": {**jwt, "secret": secret, "forward": random.random() < 0.5}},
            {"jwt": {**jwt, "jwksUri": random.choice([*FETCHED, "https://unlisted.example.com/keys"])}},
            {"mtls": {"identities": random.sample(IDENTITIES, random.randint(1, 3))}},
        ]
    )


def fuzzed_access(random: Random, name: str, hosts: Sequence[str] = ()) -> ModelAccess:
    """Any ModelAccess that the API accepts, with every field that there is."""
    routes_: list[dict[str, Any]] = []
    segments = random.sample(["x-segment", "x-scene", "x-place"], random.randint(0, 2))
    for number, segment in enumerate([*segments, None]):
        inferences = random.sample(TARGETS, random.randint(1, 3))
        targets = [
            {"inference": inference, "weight": random.randint(1 if index == 0 else 0, 1_000_000)}
            for index, inference in enumerate(inferences)
        ]
        route: dict[str, Any] = {"name": f"r{number}", "timeout": random.choice(["1ms", "1h"])}
        if segment is not None:
            route["match"] = {"headers": [{"name": segment, **header_test(random)}]}
        if random.random() < 0.25:
            routes_.append({**route, "pipeline": any_pipeline(random, inferences)})
        else:
            routes_.append({**route, "targets": targets, **route_extras(random, inferences)})
    spec: dict[str, Any] = {"protection": any_protection(random)} if random.random() < 0.5 else {}
    for route in random.sample(routes_, random.randint(0, len(routes_))):
        route["value"] = random.choice(["0", "0.5", "1.0", "3", "999999999999.999999999"])
    if random.random() < 0.5:
        spec["auth"] = any_auth(random)
    release = any_release(random, routes_) if random.random() < 0.5 else None
    access = a_model_access(
        name,
        random.choice(["ads", "shop"]),
        hosts=list(hosts),
        routes=routes_,
        metadata={"creationTimestamp": f"2026-{random.randint(1, 12):02}-01T00:00:00Z"},
        **({"release": release} if release else {}),
        **spec,
    )
    return with_any_progress(random, access)


@st.composite
def any_model_access(draw: st.DrawFn, name: str | None = None) -> ModelAccess:
    """Any ModelAccess that the API accepts, nearly."""
    random = draw(st.randoms(use_true_random=False))
    hosts = draw(st.lists(HOSTS, max_size=3, unique=True))
    access = fuzzed_access(random, name or draw(NAMES), hosts)
    if access.spec.routes[0].match is None:
        return access
    # Any printable text is a value.
    body = access.dump()
    body["spec"]["routes"][0]["match"] = {"headers": [{"name": "x-segment", "exact": draw(VALUES)}]}
    return ModelAccess.parse(body)


@st.composite
def any_fleet(draw: st.DrawFn) -> FleetState:
    """A fleet of such accesses, over backends of which some sleep and some serve another name."""
    accesses = {access.key: access for access in draw(st.lists(any_model_access(), max_size=4))}
    backends = [
        replace(
            a_backend(
                name,
                *draw(st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), max_size=2, unique=True)),
                namespace=namespace,
                model_name=draw(st.sampled_from(["ctr", "ctr", "cvr"])),
                value=draw(st.sampled_from(["1", "1", "3"])),
            ),
            shared_with=draw(st.sampled_from([(), ("ads", "shop")])),
        )
        for name in draw(st.lists(NAMES, unique=True))
        for namespace in ("ads", "shop")
    ]
    # Pods of a pipeline, or left over from one where the route has targets now.
    pipelines = [
        Backend(
            pipeline_key(access.key, route.name),
            "ctr",
            draw(st.sampled_from([(), (Endpoint("10.0.0.9"),)])),
            calls=draw(CALLS),
            callers=draw(st.sampled_from([(), ("10.0.0.9",), ("10.0.0.8", "10.0.0.9")])),
        )
        for access in accesses.values()
        for route in access.spec.routes
        if draw(st.booleans())
    ]
    kept = draw(st.lists(st.sampled_from(list(SECRETS)), unique=True))
    asked = draw(st.lists(st.sampled_from(list(FETCHED)), unique=True))
    known = replace(
        credentials({name: SECRETS[name] for name in kept}),
        key_hosts=draw(st.sampled_from([frozenset[str](), KEY_HOSTS])),
        client_authority=draw(st.sampled_from(ClientAuthority)),
        fetched={address: FETCHED[address] for address in asked},
    )
    return a_fleet(*accesses.values(), *backends, *pipelines, known)
