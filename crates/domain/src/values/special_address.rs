//! The addresses that do not belong to the public internet: one table.
//!
//! Its sources are the IANA special-purpose address registries for
//! [IPv4](https://www.iana.org/assignments/iana-ipv4-special-registry/) and
//! [IPv6](https://www.iana.org/assignments/iana-ipv6-special-registry/) (everything there that is not globally
//! reachable), the multicast ranges, and the metadata addresses that cloud providers document. Of IPv6, IANA has
//! assigned only 2000::/3 to the internet: every address outside of it is refused, even if no row of the table contains
//! it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The reason why an address does not belong to the public internet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpecialAddress {
    /// The kind of address, with its article: "a private".
    pub kind: &'static str,
    /// True if no setting allows it: machines get their credentials from such an address, and no service that a step
    /// would call listens there.
    pub never: bool,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

/// Makes a network from the first four of the address's eight groups, and its last.
const fn v6(groups: [u16; 4], last: u16, length: u8) -> IpNet {
    let [a, b, c, d] = groups;
    let address = Ipv6Addr::new(a, b, c, d, 0, 0, 0, last);
    IpNet::V6(Ipv6Net::new_assert(address, length))
}

const fn inner(network: IpNet, kind: &'static str) -> (IpNet, SpecialAddress) {
    (network, SpecialAddress { kind, never: false })
}

const fn never(network: IpNet, kind: &'static str) -> (IpNet, SpecialAddress) {
    (network, SpecialAddress { kind, never: true })
}

/// `fd00:c1::a9fe:a9fe`
const ORACLE: IpNet = IpNet::V6(Ipv6Net::new_assert(
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    128,
));

/// The first row that contains an address applies.
const TABLE: &[(IpNet, SpecialAddress)] = &[
    // Metadata of AWS, Azure, Google, Oracle, OpenStack and others; RFC 3927.
    never(v4(169, 254, 0, 0, 16), "a link-local or metadata"),
    // Azure's host agent.
    never(v4(168, 63, 129, 16, 32), "a metadata"),
    // Alibaba Cloud.
    never(v4(100, 100, 100, 200, 32), "a metadata"),
    // Oracle Cloud's classic machines.
    never(v4(192, 0, 0, 192, 32), "a metadata"),
    // RFC 791
    inner(v4(0, 0, 0, 0, 8), "an unspecified"),
    // RFC 1918
    inner(v4(10, 0, 0, 0, 8), "a private"),
    // RFC 6598
    inner(v4(100, 64, 0, 0, 10), "a carrier-shared"),
    // RFC 1122
    inner(v4(127, 0, 0, 0, 8), "a loopback"),
    // RFC 1918
    inner(v4(172, 16, 0, 0, 12), "a private"),
    // RFC 6890
    inner(v4(192, 0, 0, 0, 24), "a reserved"),
    // RFC 5737
    inner(v4(192, 0, 2, 0, 24), "a documentation"),
    // RFC 7526
    inner(v4(192, 88, 99, 0, 24), "a deprecated relay"),
    // RFC 1918
    inner(v4(192, 168, 0, 0, 16), "a private"),
    // RFC 2544
    inner(v4(198, 18, 0, 0, 15), "a benchmarking"),
    // RFC 5737
    inner(v4(198, 51, 100, 0, 24), "a documentation"),
    inner(v4(203, 0, 113, 0, 24), "a documentation"),
    // RFC 5771
    inner(v4(224, 0, 0, 0, 4), "a multicast"),
    // RFC 1112 and, for the last one, RFC 8190
    inner(v4(240, 0, 0, 0, 4), "a reserved"),
    // RFC 4291
    never(v6([0xfe80, 0, 0, 0], 0, 10), "a link-local or metadata"),
    // AWS, Google, Oracle and Scaleway.
    never(v6([0xfd00, 0xec2, 0, 0], 0, 32), "a metadata"),
    never(v6([0xfd20, 0xce, 0, 0], 0x254, 128), "a metadata"),
    never(ORACLE, "a metadata"),
    never(v6([0xfd00, 0x42, 0, 0], 0x42, 128), "a metadata"),
    // RFC 4291
    inner(v6([0, 0, 0, 0], 0, 128), "an unspecified"),
    inner(v6([0, 0, 0, 0], 1, 128), "a loopback"),
    // RFC 8215
    inner(v6([0x64, 0xff9b, 1, 0], 0, 48), "a local translation"),
    // RFC 6666 and RFC 9780
    inner(v6([0x100, 0, 0, 0], 0, 64), "a discard"),
    inner(v6([0x100, 0, 0, 1], 0, 64), "a dummy"),
    // RFC 4380: Teredo, which is within the next network.
    inner(v6([0x2001, 0, 0, 0], 0, 32), "a Teredo"),
    // RFC 2928
    inner(v6([0x2001, 0, 0, 0], 0, 23), "a reserved"),
    // RFC 3849
    inner(v6([0x2001, 0xdb8, 0, 0], 0, 32), "a documentation"),
    // RFC 3056
    inner(v6([0x2002, 0, 0, 0], 0, 16), "a 6to4"),
    // RFC 9637
    inner(v6([0x3fff, 0, 0, 0], 0, 20), "a documentation"),
    // RFC 9602
    inner(v6([0x5f00, 0, 0, 0], 0, 16), "a segment routing"),
    // RFC 4193
    inner(v6([0xfc00, 0, 0, 0], 0, 7), "a private"),
    // RFC 3879
    inner(v6([0xfec0, 0, 0, 0], 0, 10), "a site-local"),
    // RFC 4291
    inner(v6([0xff00, 0, 0, 0], 0, 8), "a multicast"),
];

/// RFC 4291: the part of IPv6 that IANA assigns.
const GLOBAL_UNICAST: IpNet = v6([0x2000, 0, 0, 0], 0, 3);
/// RFC 6052: IPv4 addresses in a network with IPv6 only. Such an address counts as the IPv4 address within it.
const NAT64: IpNet = v6([0x64, 0xff9b, 0, 0], 0, 96);

/// Returns the reason why an address is not allowed by default; `None` for an address of the public internet.
pub fn special_address(address: IpAddr) -> Option<SpecialAddress> {
    let address = address.to_canonical();
    let embedded = embedded_v4(address).into_iter().flatten();
    let embedded = embedded.filter_map(|v4| line(IpAddr::V4(v4)));
    // An address that must never be called in one reading must not be called at all.
    let mut all: Vec<SpecialAddress> = line(address).into_iter().chain(embedded).collect();
    all.sort_by_key(|special| !special.never);
    all.first().copied()
}

fn line(address: IpAddr) -> Option<SpecialAddress> {
    let listed = TABLE.iter().find(|(network, _)| network.contains(&address));
    if let Some((_, special)) = listed {
        return Some(*special);
    }
    let is_public =
        address.is_ipv4() || GLOBAL_UNICAST.contains(&address) || NAT64.contains(&address);
    (!is_public).then_some(SpecialAddress {
        kind: "an unassigned",
        never: false,
    })
}

/// Returns whether every address of a network is one that no setting allows.
pub fn is_never_called(network: &IpNet) -> bool {
    TABLE
        .iter()
        .any(|(listed, special)| special.never && listed.contains(network))
}

/// Returns the IPv4 addresses at which packets to an IPv6 address may end. Otherwise an inner address could be reached
/// in the form of IPv6. Mapped addresses were converted before.
fn embedded_v4(address: IpAddr) -> [Option<Ipv4Addr>; 2] {
    let IpAddr::V6(v6) = address else {
        return [None, None];
    };
    let joined = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match v6.segments() {
        // Compatible (RFC 4291) and translated (RFC 2765). `::` and `::1` are rows of the table.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => [Some(joined(high, low)), None],
        [0, 0, 0, 0, 0xffff, 0, high, low] => [Some(joined(high, low)), None],
        // NAT64 (RFC 6052) under the well-known prefix, and under the local one in two of its lengths.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => [Some(joined(high, low)), None],
        [0x64, 0xff9b, 1, high, middle, low, a, b] => [
            Some(joined(a, b)),
            // The address is around the eight bits that must be zero.
            Some(joined(high, middle << 8 | low >> 8)),
        ],
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => [Some(joined(high, low)), None],
        // Teredo (RFC 4380): the server, and the client, whose bits are inverted.
        [0x2001, 0, high, low, _, _, a, b] => [Some(joined(high, low)), Some(joined(!a, !b))],
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Option<SpecialAddress> {
        special_address(address.parse().unwrap())
    }

    /// One address of each range, and its first and last where they are easily mistaken.
    const INNER: [(&str, &str); 57] = [
        ("0.0.0.0", "an unspecified"),
        ("0.1.2.3", "an unspecified"),
        ("10.0.0.5", "a private"),
        ("10.255.255.255", "a private"),
        ("100.64.0.0", "a carrier-shared"),
        ("100.127.255.255", "a carrier-shared"),
        ("127.0.0.1", "a loopback"),
        ("127.255.255.254", "a loopback"),
        ("172.16.0.0", "a private"),
        ("172.31.255.255", "a private"),
        ("192.0.0.8", "a reserved"),
        ("192.0.2.1", "a documentation"),
        ("192.88.99.1", "a deprecated relay"),
        ("192.168.1.1", "a private"),
        ("198.18.0.0", "a benchmarking"),
        ("198.19.255.255", "a benchmarking"),
        ("198.51.100.7", "a documentation"),
        ("203.0.113.7", "a documentation"),
        ("224.0.0.1", "a multicast"),
        ("239.255.255.255", "a multicast"),
        ("240.0.0.1", "a reserved"),
        ("255.255.255.255", "a reserved"),
        ("::", "an unspecified"),
        ("::1", "a loopback"),
        ("::ffff:127.0.0.1", "a loopback"),
        ("::ffff:10.0.0.1", "a private"),
        ("::ffff:198.18.0.1", "a benchmarking"),
        ("::10.0.0.1", "an unassigned"),
        ("::8.8.8.8", "an unassigned"),
        ("::ffff:0:10.0.0.1", "an unassigned"),
        ("::ffff:0:8.8.8.8", "an unassigned"),
        ("64:ff9b::10.0.0.1", "a private"),
        ("64:ff9b::127.0.0.1", "a loopback"),
        ("64:ff9b::192.88.99.1", "a deprecated relay"),
        ("64:ff9b:1::8.8.8.8", "a local translation"),
        ("64:ff9b:1:ffff:ffff::", "a local translation"),
        ("64:ff9b:2::1", "an unassigned"),
        ("100::1", "a discard"),
        ("100:0:0:1::1", "a dummy"),
        ("100:0:0:2::1", "an unassigned"),
        ("1fff::1", "an unassigned"),
        ("2001::1", "a Teredo"),
        ("2001:0:808:808::f7f7:f7f7", "a Teredo"),
        ("2001:1::1", "a reserved"),
        ("2001:10::1", "a reserved"),
        ("2001:1ff:ffff::1", "a reserved"),
        ("2001:db8::1", "a documentation"),
        ("2002:808:808::1", "a 6to4"),
        ("2002:a00:1::", "a 6to4"),
        ("3fff::1", "a documentation"),
        ("3fff:fff::1", "a documentation"),
        ("4000::1", "an unassigned"),
        ("5f00::1", "a segment routing"),
        ("fc00::1", "a private"),
        ("fdff::1", "a private"),
        ("fec0::1", "a site-local"),
        ("ff02::1", "a multicast"),
    ];

    #[test]
    fn what_is_not_of_the_internet_is_told_with_its_kind() {
        for (address, kind) in INNER {
            let special = of(address).unwrap_or_else(|| panic!("{address} is let through"));
            assert_eq!((special.kind, special.never), (kind, false), "{address}");
        }
    }

    #[test]
    fn every_line_holds_its_own_first_and_last_address() {
        for (network, special) in TABLE {
            for address in [network.network(), network.broadcast()] {
                let found = special_address(address);
                let found = found.unwrap_or_else(|| panic!("{address} of {network}"));
                assert!(found.never || !special.never, "{address} of {network}");
            }
            assert_eq!(network.trunc(), *network, "a line names its first address");
        }
    }

    #[test]
    fn metadata_and_link_local_addresses_are_never_called_in_any_disguise() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.0.1",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "febf::1",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::168.63.129.16",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::f7f7:f7f7",
            "2001:0:808:808::5601:5601",
        ] {
            let special = of(address).unwrap_or_else(|| panic!("{address} is let through"));
            assert!(special.never, "{address}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_allowed() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.1.1",
            "172.15.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "192.88.98.1",
            "198.17.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700::1111",
            "3ffe::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
        ] {
            assert_eq!(of(address), None, "{address}");
        }
    }
}
