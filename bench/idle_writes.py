"""Writes that a settled cluster costs: the API server's own request counters, before and after some minutes.

    python bench/idle_writes.py [--state-dir DIR] [--seconds 300]

Prints one JSON document; exits 1 when anything of Tidegate's kinds or their children was written.
Leases and events are named apart: a leader must renew, and a kubelet reports, whatever is settled.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tidegate_localcluster.binaries import Binaries, default_home
from tidegate_localcluster.demo.kubectl import Kubectl

WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
OURS = {
    "inferences",
    "inferences/status",
    "modelaccesses",
    "modelaccesses/status",
    "featurecomputes",
    "featurecomputes/status",
    "deployments",
    "configmaps",
    "poddisruptionbudgets",
}
"""Resources that the controllers write; the statuses of their children are written by Kubernetes itself."""
SAMPLE = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<value>\S+)$")


def count_writes(kubectl: Kubectl) -> Counter[str]:
    """Return the write requests so far, by resource."""
    counts: Counter[str] = Counter()
    for line in kubectl.run("get", "--raw", "/metrics").splitlines():
        if (match := SAMPLE.match(line)) is None:
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels["verb"] in WRITES:
            name = "/".join(part for part in (labels["resource"], labels["subresource"]) if part)
            counts[name] += round(float(match["value"]))
    return counts


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "default")
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    binary = Binaries().ensure(["kubectl"], lambda line: None)["kubectl"]
    kubectl = Kubectl(binary, options.state_dir / "kubeconfig")
    objects = json.loads(kubectl.run("get", "inferences,modelaccesses,featurecomputes", "-A", "-o", "json"))
    before = count_writes(kubectl)
    time.sleep(options.seconds)
    after = count_writes(kubectl)
    moved = {name: after[name] - before[name] for name in sorted(after) if after[name] != before[name]}
    ours = {name: count for name, count in moved.items() if name in OURS}
    result = {
        "seconds": options.seconds,
        "objects": len(objects["items"]),
        "writes": sum(ours.values()),
        "by_resource": ours,
        "others": {name: count for name, count in moved.items() if name not in ours},
    }
    print(json.dumps(result, indent=2))
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
