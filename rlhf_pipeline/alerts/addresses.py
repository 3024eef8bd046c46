"""Resolves host names and refuses addresses inside the own network, against forged requests."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from rlhf_pipeline.errors import DeliveryFailed

IPAddress = IPv4Address | IPv6Address
NAT64 = IPv6Network("64:ff9b::/96")
# Services of clouds that only their own machines reach: Azure's host, Oracle's metadata (Python
# before 3.12.4 takes the latter for public), metadata of Alibaba, Amazon and Google; and addresses
# of which only the network's own translator knows where they lead (RFC 8215), such as to those.
CLOUD_SERVICES = (
    IPv4Network("168.63.129.16/32"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("100.100.100.200/32"),
    IPv6Network("fd00:ec2::254/128"),
    IPv6Network("fd20:ce::254/128"),
    IPv6Network("64:ff9b:1::/48"),
)


def resolve_allowed(host: str, port: int, *, allow_private: bool) -> list[IPAddress]:
    """All addresses of a host, in the system's order.

    Raises DeliveryFailed if any is not public; with `allow_private`, only if one is link-local,
    multicast, unspecified or a cloud's own service, such as its metadata.
    """
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise DeliveryFailed(
            f"Host {host} cannot be resolved: {reason}. Correct its name."
        ) from None
    found = dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries)
    for address in found:
        if is_public(address):
            continue
        if not allow_private:
            raise DeliveryFailed(
                f"{host} has the private address {address}, which webhooks may not reach. Name "
                "another host, or set alert_allow_private (RLHF_ALERT_ALLOW_PRIVATE=true)."
            )
        inner = embedded_ipv4(address) or address
        is_unusable = inner.is_link_local or inner.is_multicast or inner.is_unspecified
        if is_unusable or _is_cloud_service(inner):
            raise DeliveryFailed(
                f"{host} has the address {address}, which no webhook may reach: it is link-local, "
                "multicast, unspecified or a cloud's own service. Name another host."
            )
    return list(found)


def is_public(address: IPAddress) -> bool:
    """Whether an address is reachable from anywhere on the internet.

    >>> [is_public(ip_address(a)) for a in ("1.1.1.1", "100.64.0.1", "::ffff:127.0.0.1")]
    [True, False, False]
    """
    inner = embedded_ipv4(address)
    if inner is not None:
        return is_public(inner)
    if isinstance(address, IPv6Address) and (address.is_site_local or address.is_reserved):
        return False
    return address.is_global and not address.is_multicast and not _is_cloud_service(address)


def embedded_ipv4(address: IPAddress) -> IPv4Address | None:
    """The IPv4 address that a mapped, 6to4 or NAT64 address leads to."""
    if isinstance(address, IPv4Address):
        return None
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_cloud_service(address: IPAddress) -> bool:
    return any(address in network for network in CLOUD_SERVICES)
