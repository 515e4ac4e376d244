//! Which addresses a target may resolve to. Checked on the address that is dialled, never on a name
//! (`proxy_cases.md`, case 25).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn in_v4(address: Ipv4Addr, network: [u8; 4], bits: u32) -> bool {
    let mask = u32::MAX << (32 - bits);
    u32::from(address) & mask == u32::from(Ipv4Addr::from(network)) & mask
}

fn in_v6(address: Ipv6Addr, first: u16, second: u16, bits: u32) -> bool {
    let mask = u32::MAX << (32 - bits);
    let network = (u32::from(first) << 16) | u32::from(second);
    let [a, b, ..] = address.segments();
    ((u32::from(a) << 16) | u32::from(b)) & mask == network & mask
}

/// The IPv4 address that a transition address carries: a check of the outer form alone would let it through.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0) if g != 0 => Some(v4(g, h)),
        (0x0064, 0xff9b, 0, 0, 0, 0) => Some(v4(g, h)),
        _ => None,
    }
}

/// Why a kubernetes target may not be at this address, or `None`. API servers live in private networks, so only
/// loopback, link-local and metadata, unspecified, multicast and broadcast addresses are refused.
#[must_use]
pub fn refused_for_kubernetes(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_loopback() => Some("loopback address"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("link-local or metadata address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("unspecified address"),
        IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => Some("multicast address"),
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) if v6.is_loopback() => Some("loopback address"),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("unspecified address"),
        IpAddr::V6(v6) if v6.is_multicast() => Some("multicast address"),
        IpAddr::V6(v6) if in_v6(v6, 0xfe80, 0, 10) => Some("link-local address"),
        // The metadata address of AWS and of GCE over IPv6.
        IpAddr::V6(v6) if v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254) => Some("metadata address"),
        IpAddr::V6(v6) if v6 == Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254) => Some("metadata address"),
        IpAddr::V6(v6) => embedded_v4(v6).and_then(|v4| refused_for_kubernetes(IpAddr::V4(v4))),
    }
}

/// Why a name on the allowlist may not lead to this address, or `None`: whatever is not public on the internet.
#[must_use]
pub fn refused_for_allowlist(address: IpAddr) -> Option<&'static str> {
    let address = address.to_canonical();
    if let Some(reason) = refused_for_kubernetes(address) {
        return Some(reason);
    }
    match address {
        IpAddr::V4(v4) if v4.is_private() => Some("private address"),
        IpAddr::V4(v4) if in_v4(v4, [100, 64, 0, 0], 10) => Some("carrier-grade NAT address"),
        IpAddr::V4(v4) if in_v4(v4, [192, 0, 0, 0], 24) => Some("special-purpose address"),
        IpAddr::V4(v4) if in_v4(v4, [198, 18, 0, 0], 15) => Some("benchmarking address"),
        IpAddr::V4(v4) if v4.is_documentation() => Some("documentation address"),
        IpAddr::V4(v4) if in_v4(v4, [240, 0, 0, 0], 4) => Some("reserved address"),
        // The metadata and wire-server address of Azure, public in form only.
        IpAddr::V4(v4) if v4 == Ipv4Addr::new(168, 63, 129, 16) => Some("metadata address"),
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) if in_v6(v6, 0xfc00, 0, 7) => Some("unique local address"),
        IpAddr::V6(v6) if in_v6(v6, 0xfec0, 0, 10) => Some("site-local address"),
        IpAddr::V6(v6) if in_v6(v6, 0x0064, 0xff9b, 32) => Some("NAT64 address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2002, 0, 16) => Some("6to4 address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2001, 0, 32) => Some("Teredo address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2001, 0x0db8, 32) => Some("documentation address"),
        IpAddr::V6(v6) if in_v6(v6, 0x0100, 0, 32) => Some("discard-only address"),
        IpAddr::V6(v6) => embedded_v4(v6).and(Some("IPv4-compatible address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_25_kubernetes_lives_in_private_networks_but_not_on_loopback_or_link_local() {
        for fine in [
            "10.0.0.1",
            "172.31.255.1",
            "192.168.1.1",
            "100.64.0.1",
            "203.0.113.1",
            "fd00::2",
            "2a00::1",
        ] {
            assert_eq!(refused_for_kubernetes(fine.parse().unwrap()), None, "{fine}");
        }
        for refused in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "fe80::1",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "fd00:ec2::254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert!(refused_for_kubernetes(refused.parse().unwrap()).is_some(), "{refused}");
        }
    }

    #[test]
    fn case_25_allowlist_names_lead_to_public_addresses_only() {
        for fine in ["1.1.1.1", "140.82.121.3", "2606:4700:4700::1111", "::ffff:1.1.1.1"] {
            assert_eq!(refused_for_allowlist(fine.parse().unwrap()), None, "{fine}");
        }
        for refused in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "100.100.100.200",
            "169.254.169.254",
            "127.0.0.1",
            "0.0.0.0",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:a00:1::",
            "fd00::1",
            "fc00::1",
            "fe80::1",
            "::1",
            "::",
            "192.0.2.1",
            "198.18.0.1",
            "240.0.0.1",
            "168.63.129.16",
            "::10.0.0.1",
            "2001::1",
            "64:ff9b:1::1",
        ] {
            assert!(refused_for_allowlist(refused.parse().unwrap()).is_some(), "{refused}");
        }
    }
}
