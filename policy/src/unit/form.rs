//! The written form of every quantity: how it is read from and shown in a file, and its schema.

use core::fmt;
use core::marker::PhantomData;
use core::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BadUnit, ByteSize, Network, Rate, Ratio, Span};

/// A quantity that is written as text. A bare number is refused by saying which unit it may lack.
trait Written: FromStr<Err = BadUnit> {
    /// What the visitor expects, as in "expected …".
    const WANTED: &'static str;

    fn bare(number: &str) -> BadUnit;
}

/// A serde error carries one text: the first line says what is wrong, the second what would be
/// right.
pub(crate) fn two_lines<E: de::Error>(bad: BadUnit) -> E {
    E::custom(format_args!("{}\n{}", bad.message, bad.hint))
}

struct Text<T>(PhantomData<T>);

impl<T: Written> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WANTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(two_lines)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        Err(two_lines(T::bare(&number.to_string())))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        Err(two_lines(T::bare(&number.to_string())))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        Err(two_lines(T::bare(&number.to_string())))
    }
}

macro_rules! written {
    ($($type:ident: $wanted:literal, $pattern:literal, [$($example:literal),*], $bare:expr;)*) => {$(
        impl Written for $type {
            const WANTED: &'static str = $wanted;

            fn bare(number: &str) -> BadUnit {
                let bare: fn(&str) -> BadUnit = $bare;
                bare(number)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Text(PhantomData))
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
                into.collect_str(self)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "description": $wanted,
                    "pattern": $pattern,
                    "examples": [$($example),*],
                })
            }
        }
    )*};
}

written! {
    Span: "a length of time with its unit", r"^[0-9]+(\.[0-9]+)?(ns|us|ms|s|min|h|day)$",
        ["250ms", "10s", "5min", "1h"], Span::unitless;
    ByteSize: "a number of bytes with its unit", r"^[0-9]+(\.[0-9]+)?(B|KiB|MiB|GiB|TiB)$",
        ["512B", "64KiB", "10MiB"], ByteSize::unitless;
    Ratio: "a share in percent", r"^(100(\.0+)?|[0-9]{1,2}(\.[0-9]{1,4})?)%$",
        ["10%", "0.5%"], Ratio::unitless;
    Rate: "how many per period", r"^[1-9][0-9]*/([0-9]+(\.[0-9]+)?)?(ns|us|ms|s|min|h|day|month)$",
        ["100/s", "600/min", "10/15min", "5/h", "1000/day"], Rate::unitless;
    Network: "an address, or a network as address/prefix length",
        r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$", ["10.0.0.0/8", "2001:db8::/32", "127.0.0.1"],
        |number| BadUnit::new(
            format!("{number} is not a network"), "write it as text, like \"10.0.0.0/8\"");
}
