//! An address and how much of it counts: "10.0.0.0/8".

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;

use super::BadUnit;

/// An address and how many of its leading bits count: "10.0.0.0/8", "::1", "2001:db8::/32".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Bits beyond the address's own length are cut; bits past the prefix are cleared.
    pub fn new(address: IpAddr, bits: u8) -> Self {
        match address {
            IpAddr::V4(a) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Self { address: IpAddr::V4((a.to_bits() & mask).into()), bits }
            }
            IpAddr::V6(a) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Self { address: IpAddr::V6((a.to_bits() & mask).into()), bits }
            }
        }
    }

    pub const fn address(self) -> IpAddr {
        self.address
    }

    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// An IPv4 address inside IPv6 (`::ffff:10.0.0.1`) counts as the IPv4 address.
    pub fn contains(self, address: IpAddr) -> bool {
        Self::new(address.to_canonical(), self.bits).address == self.address
    }
}

impl FromStr for Network {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let bad = || {
            BadUnit::new(
                format!("{text:?} is not a network"),
                "write an address, or an address and the length of its prefix, like \"10.0.0.0/8\"",
            )
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => longest,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= longest).ok_or_else(|| {
                BadUnit::new(
                    format!("{text:?} has no prefix length that fits its address"),
                    format!("write \"{address}/{longest}\", or less than {longest}"),
                )
            })?,
        };
        let network = Self::new(address, bits);
        if network.address != address {
            let hint =
                format!("write \"{network}\" for the network, or \"{address}\" for the host");
            return Err(BadUnit::new(format!("{text:?} has bits set past its prefix"), hint));
        }
        if let (IpAddr::V6(mapped), 96..) = (address, bits)
            && let Some(v4) = Ipv6Addr::to_ipv4_mapped(&mapped)
        {
            let hint = format!("write \"{}\"", Self::new(IpAddr::V4(v4), bits - 96));
            return Err(BadUnit::new("an IPv4 network is written as IPv4", hint));
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = if self.address.is_ipv4() { 32 } else { 128 };
        if self.bits == longest {
            return write!(f, "{}", self.address);
        }
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_no_bits_past_its_prefix() {
        let form = "! write an address, or an address and the length of its prefix, like \
                    \"10.0.0.0/8\"";
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::1", "::1"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("10.1.2.3/8", "! write \"10.0.0.0/8\" for the network, or \"10.1.2.3\" for the host"),
            ("10.0.0.0/33", "! write \"10.0.0.0/32\", or less than 32"),
            ("::ffff:10.0.0.0/104", "! write \"10.0.0.0/8\""),
            ("example.com", form),
            ("", form),
        ] {
            let shown = match text.parse::<Network>() {
                Ok(network) => network.to_string(),
                Err(bad) => format!("! {}", bad.hint),
            };
            assert_eq!(shown, expected, "{text:?}");
            if !shown.starts_with('!') {
                assert_eq!(shown.parse(), text.parse::<Network>(), "{shown}");
            }
        }
    }

    #[test]
    fn a_mapped_address_is_inside_the_ipv4_network() {
        let ten: Network = "10.0.0.0/8".parse().unwrap();
        assert!(ten.contains("::ffff:10.9.9.9".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(!ten.contains("::1".parse().unwrap()));
    }
}
