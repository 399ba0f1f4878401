//! Quantities as people write them ("250ms", "64KiB", "100/s", "10%", "10.0.0.0/8"), read and
//! shown. Every number needs its unit; the errors say what would be right.

mod form;
mod network;

pub(crate) use form::two_lines;
pub use network::Network;

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;

/// A length of time: "250ms", "10s", "5min", "1h".
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

/// Why a text is not the quantity that was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUnit {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: String,
}

impl BadUnit {
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for BadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
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

impl FromStr for Span {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let (number, unit) = split(text);
        if number.is_empty() {
            return Err(BadUnit::new(
                format!("{text:?} is not a length of time"),
                "write a number and a unit, like \"250ms\", \"10s\", \"5min\" or \"1h\"",
            ));
        }
        if unit.is_empty() {
            return Err(Self::unitless(text));
        }
        let Some(&(_, ns)) = TIME.iter().find(|(name, _)| *name == unit) else {
            let hint = match time_unit(unit) {
                Some(near) => format!("write \"{number}{near}\""),
                None => "the units are ns, us, ms, s, min, h and day".to_owned(),
            };
            return Err(BadUnit::new(format!("{unit:?} is no unit of time"), hint));
        };
        let ns = scaled(number, ns).and_then(|ns| u64::try_from(ns).ok()).ok_or_else(|| {
            BadUnit::new(
                format!("{text:?} cannot be counted in nanoseconds"),
                "write a whole number of a smaller unit, at most 500 years",
            )
        })?;
        Ok(Self(Duration::from_nanos(ns)))
    }
}

impl Span {
    fn unitless(number: &str) -> BadUnit {
        BadUnit::new(
            "a number needs a unit",
            format!(
                "write \"{number}s\" if seconds are meant; the units are ms, s, min, h and day"
            ),
        )
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        let (count, unit) = in_largest_unit(self.0.as_nanos(), TIME);
        write!(f, "{count}{unit}")
    }
}

impl FromStr for ByteSize {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let (number, unit) = split(text);
        if number.is_empty() {
            return Err(BadUnit::new(
                format!("{text:?} is not a number of bytes"),
                "write a number and a unit, like \"512B\", \"64KiB\" or \"10MiB\"",
            ));
        }
        if unit.is_empty() {
            return Err(Self::unitless(text));
        }
        let Some(&(_, bytes)) = BYTES.iter().find(|(name, _)| *name == unit) else {
            let hint = match unit.to_ascii_uppercase().as_bytes().first() {
                Some(letter @ (b'K' | b'M' | b'G' | b'T')) => {
                    format!("write \"{number}{}iB\"", char::from(*letter))
                }
                _ => "the units are B, KiB, MiB, GiB and TiB".to_owned(),
            };
            return Err(BadUnit::new(format!("{unit:?} is no unit of size here"), hint));
        };
        scaled(number, bytes).and_then(|bytes| u64::try_from(bytes).ok()).map(Self).ok_or_else(
            || {
                BadUnit::new(
                    format!("{text:?} is not a whole number of bytes"),
                    "use a smaller unit",
                )
            },
        )
    }
}

impl ByteSize {
    fn unitless(number: &str) -> BadUnit {
        BadUnit::new(
            "a number needs a unit",
            format!(
                "write \"{number}B\" if bytes are meant; the units are B, KiB, MiB, GiB and TiB"
            ),
        )
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0B");
        }
        let (count, unit) = in_largest_unit(u128::from(self.0), BYTES);
        write!(f, "{count}{unit}")
    }
}

impl FromStr for Ratio {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let (number, unit) = split(text);
        if number.is_empty() {
            let hint = "write a share of the whole, like \"10%\" or \"0.5%\"";
            return Err(BadUnit::new(format!("{text:?} is not a share"), hint));
        }
        if unit.is_empty() {
            return Err(Self::unitless(text));
        }
        if unit != "%" {
            let hint = format!("write \"{number}%\"");
            return Err(BadUnit::new(format!("{unit:?} is no unit of a share"), hint));
        }
        match scaled(number, PPM_PER_PERCENT).map(u32::try_from) {
            Some(Ok(ppm)) if ppm <= WHOLE_PPM => Ok(Self(ppm)),
            Some(_) => Err(BadUnit::new(
                format!("{text:?} is more than the whole"),
                "a share is between \"0%\" and \"100%\"",
            )),
            None => Err(BadUnit::new(
                format!("{text:?} is finer than one part in a million"),
                "write at most four digits after the point",
            )),
        }
    }
}

impl Ratio {
    fn unitless(number: &str) -> BadUnit {
        BadUnit::new("a number needs a unit", format!("write \"{number}%\" if percent are meant"))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{rest:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

impl FromStr for Rate {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let (number, rest) = split(text);
        let Some(per) = rest.strip_prefix('/') else {
            return Err(Self::misspelt(text, number, rest));
        };
        let (count, unit) = split(per);
        let units = TIME.iter().chain([&MONTH]);
        let Some(&(_, ns)) = units.into_iter().find(|(name, _)| *name == unit) else {
            return Err(Self::misspelt(text, number, per));
        };
        let tokens = number.parse().map_err(|_| {
            BadUnit::new(
                format!("{text:?} does not begin with a whole number above zero"),
                "write how many are let through, like \"100/s\"",
            )
        })?;
        let count = if count.is_empty() { "1" } else { count };
        scaled(count, ns)
            .and_then(|ns| u64::try_from(ns).ok())
            .and_then(|ns| Self::new(tokens, Duration::from_nanos(ns)))
            .ok_or_else(|| {
                let hint = "write a period above zero, like \"10/15min\"";
                BadUnit::new(format!("{per:?} is no period"), hint)
            })
    }
}

impl Rate {
    fn unitless(number: &str) -> BadUnit {
        BadUnit::new("a rate needs a period", format!("write \"{number}/s\" if a second is meant"))
    }

    fn misspelt(text: &str, number: &str, period: &str) -> BadUnit {
        if !number.is_empty() && period.is_empty() {
            return Self::unitless(number);
        }
        let word = period.trim_start_matches(|c: char| !c.is_alphabetic());
        let word = word.strip_prefix("per").unwrap_or(word).trim_start();
        let hint = match time_unit(word) {
            Some(unit) if !number.is_empty() => format!("write \"{number}/{unit}\""),
            _ => {
                "write how many per period, like \"100/s\", \"600/min\" or \"10/15min\"".to_owned()
            }
        };
        BadUnit::new(format!("{text:?} is not a rate"), hint)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match in_largest_unit(self.period.as_nanos(), TIME) {
            (30, "day") => (1, MONTH.0),
            other => other,
        };
        if count == 1 {
            return write!(f, "{}/{unit}", self.tokens);
        }
        write!(f, "{}/{count}{unit}", self.tokens)
    }
}

/// The leading digits (and points), and what follows them.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// A decimal number times `unit`. None unless the result is whole and fits.
fn scaled(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.ends_with('.') || fraction.len() > 9 {
        return None;
    }
    let whole: u128 = u64::from_str(whole).ok()?.into();
    let tenths = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = if fraction.is_empty() { 0 } else { u64::from_str(fraction).ok()?.into() };
    let parts = (whole * tenths + fraction).checked_mul(unit.into())?;
    parts.is_multiple_of(tenths).then(|| parts / tenths)
}

/// The largest unit of which `amount` is a whole number.
fn in_largest_unit(amount: u128, units: &[(&'static str, u64)]) -> (u128, &'static str) {
    let fits = units.iter().rev().find(|(_, size)| amount.is_multiple_of(u128::from(*size)));
    let &(name, size) = fits.unwrap_or(&units[0]);
    (amount / u128::from(size), name)
}

/// The unit that a person most likely means by this word.
fn time_unit(word: &str) -> Option<&'static str> {
    let word = word.trim().to_ascii_lowercase();
    let starts = |prefix: &str| word.starts_with(prefix);
    Some(match word.as_str() {
        "" => return None,
        _ if starts("ms") || starts("milli") => "ms",
        _ if starts("us") || starts("µ") || starts("micro") => "us",
        _ if starts("ns") || starts("nano") => "ns",
        _ if starts("s") => "s",
        "m" => "min",
        _ if starts("min") => "min",
        _ if starts("h") => "h",
        _ if starts("d") => "day",
        _ => return None,
    })
}

/// Smallest first.
const TIME: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
];
/// Of a rate only: quotas are by the calendar's, buckets refill in thirty days.
const MONTH: (&str, u64) = ("month", 30 * 86_400_000_000_000);
const BYTES: &[(&str, u64)] =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
const PPM_PER_PERCENT: u64 = 10_000;
const WHOLE_PPM: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text and shows what was read, or the error and its hint.
    fn shown<T: FromStr<Err = BadUnit> + fmt::Display>(text: &str) -> String {
        match text.parse::<T>() {
            Ok(quantity) => {
                let shown = quantity.to_string();
                let again = shown.parse::<T>().map(|quantity| quantity.to_string());
                assert_eq!(again.as_ref(), Ok(&shown), "{shown} does not survive a second reading");
                shown
            }
            Err(bad) => format!("! {}", bad.hint),
        }
    }

    fn check<T: FromStr<Err = BadUnit> + fmt::Display>(table: &[(&str, &str)]) {
        for (text, expected) in table {
            assert_eq!(shown::<T>(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn a_span_is_a_number_and_a_unit_of_time() {
        check::<Span>(&[
            ("250ms", "250ms"),
            ("10s", "10s"),
            ("0s", "0s"),
            ("90s", "90s"),
            ("60s", "1min"),
            ("1.5h", "90min"),
            ("0.0005s", "500us"),
            ("24h", "1day"),
            ("30", "! write \"30s\" if seconds are meant; the units are ms, s, min, h and day"),
            ("5m", "! write \"5min\""),
            ("30 s", "! write \"30s\""),
            ("30 seconds", "! write \"30s\""),
            ("30x", "! the units are ns, us, ms, s, min, h and day"),
            ("0.5ns", "! write a whole number of a smaller unit, at most 500 years"),
            ("999999999day", "! write a whole number of a smaller unit, at most 500 years"),
            ("soon", "! write a number and a unit, like \"250ms\", \"10s\", \"5min\" or \"1h\""),
        ]);
    }

    #[test]
    fn a_size_counts_in_powers_of_1024() {
        check::<ByteSize>(&[
            ("512B", "512B"),
            ("64KiB", "64KiB"),
            ("1024KiB", "1MiB"),
            ("1.5MiB", "1536KiB"),
            ("0B", "0B"),
            ("64KB", "! write \"64KiB\""),
            ("64k", "! write \"64KiB\""),
            ("10mb", "! write \"10MiB\""),
            ("0.3B", "! use a smaller unit"),
            ("99999999999TiB", "! use a smaller unit"),
            ("64", "! write \"64B\" if bytes are meant; the units are B, KiB, MiB, GiB and TiB"),
        ]);
    }

    #[test]
    fn a_ratio_is_a_part_of_one_whole() {
        check::<Ratio>(&[
            ("10%", "10%"),
            ("0%", "0%"),
            ("100%", "100%"),
            ("0.5%", "0.5%"),
            ("0.0001%", "0.0001%"),
            ("12.340%", "12.34%"),
            ("110%", "! a share is between \"0%\" and \"100%\""),
            ("100.0001%", "! a share is between \"0%\" and \"100%\""),
            ("0.00001%", "! write at most four digits after the point"),
            ("10", "! write \"10%\" if percent are meant"),
            ("10 percent", "! write \"10%\""),
            ("-1%", "! write a share of the whole, like \"10%\" or \"0.5%\""),
        ]);
    }

    #[test]
    fn a_rate_is_a_count_and_a_period() {
        let form = "! write how many per period, like \"100/s\", \"600/min\" or \"10/15min\"";
        check::<Rate>(&[
            ("100/s", "100/s"),
            ("600/min", "600/min"),
            ("100/60s", "100/min"),
            ("10/15min", "10/15min"),
            ("5/h", "5/h"),
            ("1000/day", "1000/day"),
            ("1000/month", "1000/month"),
            ("1000/30day", "1000/month"),
            ("1/0.5s", "1/500ms"),
            ("100 per second", "! write \"100/s\""),
            ("100 / min", "! write \"100/min\""),
            ("100/minute", "! write \"100/min\""),
            ("100/m", "! write \"100/min\""),
            ("100", "! write \"100/s\" if a second is meant"),
            ("0/s", "! write how many are let through, like \"100/s\""),
            ("1.5/s", "! write how many are let through, like \"100/s\""),
            ("1/0s", "! write a period above zero, like \"10/15min\""),
            ("fast", form),
            ("", form),
        ]);
    }
}
