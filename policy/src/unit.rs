//! Quantities as people write them ("250ms", "64KiB", "100/s", "10%", "10.0.0.0/8"), read and
//! shown. Every number needs its unit; the errors say what would be right.

use core::fmt;
use core::net::IpAddr;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;

/// A length of time: "250ms", "10s", "5m", "1h".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes: "512B", "64KiB", "10MiB", "1GiB".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A share of a whole in parts per million: "10%", "0.5%".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(pub u32);

/// Tokens per period: "100/s", "600/min", "10/15min", "5/h", "1000/day".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    tokens: NonZeroU64,
    period: Duration,
}

/// An address and how many of its leading bits count: "10.0.0.0/8", "::1", "2001:db8::/32".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Why a text is not the quantity that was wanted: what is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUnit {
    pub message: String,
}

impl fmt::Display for BadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for BadUnit {}

impl Rate {
    /// None when the period is zero.
    pub fn new(tokens: NonZeroU64, period: Duration) -> Option<Self> {
        (!period.is_zero()).then_some(Self { tokens, period })
    }

    pub const fn tokens(self) -> NonZeroU64 {
        self.tokens
    }

    pub const fn period(self) -> Duration {
        self.period
    }
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

// The text forms (FromStr, Display, Deserialize, JsonSchema) follow: see the tests for the grammar.
impl FromStr for Span {
    type Err = BadUnit;

    fn from_str(_text: &str) -> Result<Self, BadUnit> {
        todo!()
    }
}

macro_rules! stub { ($($t:ty),*) => {$(
    impl<'de> serde::Deserialize<'de> for $t {
        fn deserialize<D: serde::Deserializer<'de>>(_d: D) -> Result<Self, D::Error> { todo!() }
    }
    #[cfg(feature = "schema")]
    impl schemars::JsonSchema for $t {
        fn schema_name() -> std::borrow::Cow<'static, str> { stringify!($t).into() }
        fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema { todo!() }
    }
)*}; }
stub!(Span, ByteSize, Ratio, Rate, Network, crate::draft::ServerSpec);
