"""Webhooks reach public addresses alone, unless private ones are allowed."""

from ipaddress import ip_address

import pytest

from rlhf_pipeline.alerts.addresses import is_public, resolve_allowed
from rlhf_pipeline.errors import DeliveryFailed

PRIVATE = """127.0.0.1 127.8.8.8 10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1
    ::1 fc00::1 fec0::1 ::ffff:10.0.0.1 ::ffff:127.0.0.1
    64:ff9b::a00:1 2002:7f00:1::1 198.18.0.1 240.0.0.1 255.255.255.255
    2001:0:7f00:1::1 2001:db8::1 ::10.0.0.1"""
NEVER = """169.254.169.254 169.254.1.1 fe80::1 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 0.0.0.0 ::
    224.0.0.1 ff02::1 168.63.129.16 192.0.0.192 fd00:ec2::254 fd20:ce::254 100.100.100.200
    ::ffff:100.100.100.200 64:ff9b:1::a9fe:a9fe"""
PUBLIC = "1.1.1.1 8.8.8.8 2606:4700:4700::1111 ::ffff:1.1.1.1 64:ff9b::808:808 172.32.0.1"


@pytest.mark.parametrize("address", [*PRIVATE.split(), *NEVER.split()])
def test_addresses_of_the_own_network_are_refused(address: str) -> None:
    with pytest.raises(DeliveryFailed, match="which webhooks may not reach"):
        resolve_allowed(address, 443, allow_private=False)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses_are_accepted(address: str) -> None:
    assert is_public(ip_address(address))
    assert resolve_allowed(address, 443, allow_private=False) == [ip_address(address)]


@pytest.mark.parametrize("address", NEVER.split())
def test_metadata_of_clouds_is_never_reachable(address: str) -> None:
    with pytest.raises(DeliveryFailed, match="which no webhook may reach"):
        resolve_allowed(address, 443, allow_private=True)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "localhost", "10.1.2.3", "::1"])
def test_private_addresses_can_be_allowed_in_any_spelling(host: str) -> None:
    assert not any(map(is_public, resolve_allowed(host, 80, allow_private=True)))


def test_an_unknown_host_is_an_error_with_its_name() -> None:
    with pytest.raises(DeliveryFailed, match=r"Host no\.such\.invalid cannot be resolved"):
        resolve_allowed("no.such.invalid", 443, allow_private=False)
