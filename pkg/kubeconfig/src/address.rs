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
        // IPv4-compatible (RFC 4291), IPv4-translated (RFC 2765), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056), ISATAP
        // (RFC 5214).
        (0, 0, 0, 0, 0, 0) if g != 0 => Some(v4(g, h)),
        (0, 0, 0, 0, 0xffff, 0) | (0x0064, 0xff9b, 0, 0, 0, 0) | (0x0064, 0xff9b, 1, _, _, _) => Some(v4(g, h)),
        (0x2002, ..) => Some(v4(b, c)),
        (_, _, _, _, 0 | 0x0200, 0x5efe) => Some(v4(g, h)),
        _ => None,
    }
}

/// Where clouds answer with credentials, outside the link-local networks.
fn is_metadata(address: IpAddr) -> bool {
    match address {
        // Azure's wire server, Alibaba Cloud, Oracle Cloud.
        IpAddr::V4(v4) => [[168, 63, 129, 16], [100, 100, 100, 200], [192, 0, 0, 192]].contains(&v4.octets()),
        // AWS (instance metadata, EKS Pod Identity), Google, Oracle Cloud, Scaleway.
        IpAddr::V6(v6) => [
            [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254],
            [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23],
            [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254],
            [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe],
            [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42],
        ]
        .contains(&v6.segments()),
    }
}

/// Why a kubernetes target may not be at this address, or `None`. API servers live in private networks, so only
/// loopback, link-local and metadata, unspecified, multicast and broadcast addresses are refused.
#[must_use]
pub fn refused_for_kubernetes(address: IpAddr) -> Option<&'static str> {
    let address = address.to_canonical();
    if is_metadata(address) {
        return Some("metadata address");
    }
    match address {
        IpAddr::V4(v4) if v4.is_loopback() => Some("loopback address"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("link-local or metadata address"),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("unspecified address"),
        IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => Some("multicast address"),
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) if v6.is_loopback() => Some("loopback address"),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("unspecified address"),
        IpAddr::V6(v6) if v6.is_multicast() => Some("multicast address"),
        IpAddr::V6(v6) if in_v6(v6, 0xfe80, 0, 10) => Some("link-local address"),
        IpAddr::V6(v6) => embedded_v4(v6).and_then(|v4| refused_for_kubernetes(IpAddr::V4(v4))),
    }
}

/// Why a name on the allowlist may not lead to this address, or `None`: whatever is not public on the internet (the IANA
/// registries of special-purpose addresses).
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
        IpAddr::V4(v4) if in_v4(v4, [192, 88, 99, 0], 24) => Some("6to4 relay address"),
        IpAddr::V4(v4) if in_v4(v4, [198, 18, 0, 0], 15) => Some("benchmarking address"),
        IpAddr::V4(v4) if v4.is_documentation() => Some("documentation address"),
        IpAddr::V4(v4) if in_v4(v4, [240, 0, 0, 0], 4) => Some("reserved address"),
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) if in_v6(v6, 0xfc00, 0, 7) => Some("unique local address"),
        IpAddr::V6(v6) if in_v6(v6, 0x0064, 0xff9b, 32) => Some("NAT64 address"),
        // All of the internet is in one prefix; the rest is reserved, translated or local (RFC 4291, section 2.4).
        IpAddr::V6(v6) if !in_v6(v6, 0x2000, 0, 3) => Some("non-public address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2002, 0, 16) => Some("6to4 address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2001, 0, 32) => Some("Teredo address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2001, 0, 23) => Some("special-purpose address"),
        IpAddr::V6(v6) if in_v6(v6, 0x2001, 0x0db8, 32) || in_v6(v6, 0x3fff, 0, 20) => Some("documentation address"),
        IpAddr::V6(v6) => embedded_v4(v6).and(Some("IPv4-carrying address")),
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
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::ffff:0:127.0.0.1",
            "2a00::5efe:169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::23",
            "fd20:ce::254",
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
            "::ffff:0:10.0.0.1",
            "2a00::5efe:10.0.0.1",
            "192.88.99.1",
            "100::1",
            "5f00::1",
            "fec0::1",
            "3fff::1",
            "2001:db8::1",
            "2001:20::1",
            "4000::1",
        ] {
            assert!(refused_for_allowlist(refused.parse().unwrap()).is_some(), "{refused}");
        }
    }
}
