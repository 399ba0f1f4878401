//! A set of networks, asked by binary search.

use core::net::IpAddr;

use crate::unit::Network;

/// Disjoint address ranges, ends included, in ascending order; each family apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Networks {
    pub(crate) fn new(networks: &[Network]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match (network.address(), network.bits()) {
                (IpAddr::V4(a), bits) => v4.push(range_v4(a.to_bits(), bits)),
                // ::ffff:10.0.0.0/104 is 10.0.0.0/8: what `to_canonical` does to addresses.
                (IpAddr::V6(a), bits) => match a.to_ipv4_mapped().zip(bits.checked_sub(96)) {
                    Some((a, bits)) => v4.push(range_v4(a.to_bits(), bits)),
                    None => {
                        let host = u128::MAX.checked_shr(u32::from(bits)).unwrap_or(0);
                        v6.push((a.to_bits() & !host, a.to_bits() | host));
                    }
                },
            }
        }
        Self { v4: merge(v4, |end| end.checked_add(1)), v6: merge(v6, |end| end.checked_add(1)) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// An IPv4 address inside IPv6 counts as the IPv4 address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(a) => within(&self.v4, a.to_bits()),
            IpAddr::V6(a) => within(&self.v6, a.to_bits()),
        }
    }

    /// Whether some address is in both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        crosses(&self.v4, &other.v4) || crosses(&self.v6, &other.v6)
    }
}

fn range_v4(address: u32, bits: u8) -> (u32, u32) {
    let host = u32::MAX.checked_shr(u32::from(bits)).unwrap_or(0);
    (address & !host, address | host)
}

fn within<T: Ord + Copy>(ranges: &[(T, T)], point: T) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= point);
    after.checked_sub(1).and_then(|i| ranges.get(i)).is_some_and(|(_, end)| point <= *end)
}

fn crosses<T: Ord + Copy>(a: &[(T, T)], b: &[(T, T)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 <= y.1 && y.0 <= x.1))
}

fn merge<T: Ord + Copy>(mut ranges: Vec<(T, T)>, after: impl Fn(T) -> Option<T>) -> Box<[(T, T)]> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if after(last.1).is_none_or(|next| start <= next) => {
                last.1 = last.1.max(end);
            }
            _ => merged.push((start, end)),
        }
    }
    merged.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network(text: &str) -> Network {
        let (address, bits) = text.split_once('/').unwrap();
        Network::new(address.parse().unwrap(), bits.parse().unwrap())
    }

    #[test]
    fn addresses_are_found_in_either_family() {
        let set = Networks::new(
            &["10.0.0.0/8", "10.1.0.0/16", "192.168.1.1/32", "2001:db8::/32", "::ffff:1.2.3.0/120"]
                .map(network),
        );
        // (address, inside)
        let table = [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("::ffff:10.0.0.1", true),
            ("192.168.1.1", true),
            ("192.168.1.2", false),
            ("1.2.3.4", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("::1", false),
        ];
        for (address, inside) in table {
            assert_eq!(set.contains(address.parse().unwrap()), inside, "{address}");
        }
    }

    #[test]
    fn everything_of_one_family_leaves_the_other_out() {
        let (all4, all6) =
            (Networks::new(&[network("0.0.0.0/0")]), Networks::new(&[network("::/0")]));
        let (v4, v6) = ("1.2.3.4".parse().unwrap(), "::2".parse().unwrap());
        assert!(all4.contains(v4) && !all4.contains(v6));
        assert!(all6.contains(v6) && !all6.contains(v4));
        assert!(!all4.overlaps(&all6) && all4.overlaps(&all4) && Networks::default().is_empty());
    }

    proptest! {
        #[test]
        fn a_set_holds_what_one_of_its_networks_holds(
            networks in prop::collection::vec((any::<u32>(), 0_u8..=32), 0..8),
            probes in prop::collection::vec(any::<u32>(), 1..20),
        ) {
            let networks: Vec<_> = networks
                .into_iter()
                .map(|(a, bits)| Network::new(IpAddr::V4(a.into()), bits))
                .collect();
            let set = Networks::new(&networks);
            let edges = networks.iter().filter_map(|n| match n.address() {
                IpAddr::V4(a) => Some([a.to_bits(), a.to_bits().wrapping_sub(1)]),
                IpAddr::V6(_) => None,
            });
            for probe in probes.into_iter().chain(edges.flatten()) {
                let address = IpAddr::V4(probe.into());
                let expected = networks.iter().any(|n| n.contains(address));
                prop_assert_eq!(set.contains(address), expected);
            }
        }
    }
}
