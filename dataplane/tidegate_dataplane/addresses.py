"""Network addresses of hosts that tenants name, to which our processes may connect. Nothing is resolved here."""

import ipaddress

# Cloud metadata services that lie outside the link-local ranges.
METADATA_NETWORKS = (
    ipaddress.ip_network("fd00:ec2::254/128"),  # AWS, IPv6
    ipaddress.ip_network("100.100.100.200/32"),  # Alibaba Cloud
    ipaddress.ip_network("168.63.129.16/32"),  # Azure
    ipaddress.ip_network("192.0.0.192/32"),  # Oracle Cloud
)
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def explain_refusal(text: str, *, allow_loopback: bool) -> str | None:
    """Return why a process of ours must not connect to the address `text`; None if it may.

    Private ranges are allowed, because an administrator allows hosts by name (models.allowedHosts and the like). Refused are
    loopback, link-local and cloud metadata addresses, where services trust this node or pod, and addresses that no host has.
    """
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return "not an IP address"
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded:
            return explain_refusal(str(embedded), allow_loopback=allow_loopback)
    if address.is_loopback:
        return None if allow_loopback else "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if any(address in network for network in METADATA_NETWORKS):
        return "a cloud metadata address"
    if address.is_unspecified or address.is_multicast:
        return "not the address of a host"
    return None
