//! Numbers with units, as the command line takes them.

use std::time::Duration;

/// `128`, `64KiB`, `1MiB`: plain bytes or powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("`{unit}` is not a unit of bytes: B, KiB, MiB or GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= BYTES_MAX);
    bytes.ok_or_else(|| "at most 16GiB".to_owned())
}

/// `250ms`, `10s`, `1m 30s`, up to an hour: no run here is meant to last longer.
pub fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if span > SPAN_MAX { Err("at most 1h".to_owned()) } else { Ok(span) }
}

/// Nanoseconds of a span; spans here are at most an hour.
pub(crate) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

const BYTES_MAX: u64 = 16 << 30;
const SPAN_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_binary_units() {
        for (text, expected) in [
            ("0", 0),
            ("128", 128),
            ("1B", 1),
            ("64KiB", 65_536),
            ("1MiB", 1 << 20),
            ("16GiB", 16 << 30),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "KiB", "1kb", "1.5MiB", "-1", "17GiB", "99999999999999999999GiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_need_a_unit_and_end() {
        assert_eq!(span("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "10", "2h", "-1s"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
