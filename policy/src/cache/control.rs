//! `Cache-Control`, of a request or a response (RFC 9111 section 5.2, RFC 5861 section 4). What is
//! not understood is read so that less is kept.

use core::time::Duration;

use crate::facts::Headers;

/// What it says. Times in seconds; of several, the shortest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub no_store: bool,
    /// With or without names of fields.
    pub no_cache: bool,
    /// With or without names of fields.
    pub private: bool,
    pub public: bool,
    /// `must-revalidate` or `proxy-revalidate`.
    pub must_revalidate: bool,
    pub max_age: Option<Duration>,
    pub s_maxage: Option<Duration>,
    pub stale_if_error: Option<Duration>,
}

impl Control {
    pub fn of(headers: Headers<'_>) -> Self {
        let mut control = Self::default();
        headers.all("cache-control").for_each(|value| control.read(value));
        control
    }

    /// Adds what one field line says.
    pub fn read(&mut self, value: &[u8]) {
        let mut rest = value;
        while !rest.is_empty() {
            let Some(end) = element(rest) else {
                // A quote that is not closed may hide anything.
                self.no_store = true;
                return;
            };
            let (directive, after) = rest.split_at(end);
            self.note(directive.trim_ascii());
            rest = after.get(1..).unwrap_or_default();
        }
    }

    fn note(&mut self, directive: &[u8]) {
        let at = directive.iter().position(|b| *b == b'=').unwrap_or(directive.len());
        let (name, argument) = directive.split_at(at);
        let name = name.trim_ascii_end();
        let seconds = |was: Option<Duration>| {
            let now = seconds(argument.get(1..).unwrap_or_default().trim_ascii());
            Some(was.map_or(now, |was| was.min(now)))
        };
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        match name.len() {
            6 if is("public") => self.public = true,
            7 if is("private") => self.private = true,
            7 if is("max-age") => self.max_age = seconds(self.max_age),
            8 if is("no-store") => self.no_store = true,
            8 if is("no-cache") => self.no_cache = true,
            8 if is("s-maxage") => self.s_maxage = seconds(self.s_maxage),
            14 if is("stale-if-error") => self.stale_if_error = seconds(self.stale_if_error),
            15 if is("must-revalidate") => self.must_revalidate = true,
            16 if is("proxy-revalidate") => self.must_revalidate = true,
            _ => {}
        }
    }
}

/// Where the first element of a list ends: at a comma outside quotes, or with the text. None: a
/// quote is not closed.
fn element(list: &[u8]) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in list.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    (!quoted).then_some(list.len())
}

/// `delta-seconds`, quoted or not. What is none counts as no time at all (RFC 9111 section 4.2.1).
fn seconds(text: &[u8]) -> Duration {
    let bare = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    let text = bare.unwrap_or(text);
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Duration::ZERO;
    }
    let add = |sum: u64, digit: &u8| (sum * 10 + u64::from(digit - b'0')).min(SECONDS_MAX);
    Duration::from_secs(text.iter().fold(0, add))
}

/// RFC 9111 section 1.2.2: longer times are taken as this one.
const SECONDS_MAX: u64 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Control {
        let mut control = Control::default();
        control.read(value.as_bytes());
        control
    }

    #[test]
    fn directives_are_read_as_the_standard_says() {
        const NONE: Control = Control {
            no_store: false,
            no_cache: false,
            private: false,
            public: false,
            must_revalidate: false,
            max_age: None,
            s_maxage: None,
            stale_if_error: None,
        };
        let s = |n| Some(Duration::from_secs(n));
        for (value, expected) in [
            ("", NONE),
            (",, ,", NONE),
            ("max-age=10", Control { max_age: s(10), ..NONE }),
            ("Max-Age = 10 , PUBLIC", Control { max_age: s(10), public: true, ..NONE }),
            ("max-age=\"10\"", Control { max_age: s(10), ..NONE }),
            ("max-age=20, max-age=10", Control { max_age: s(10), ..NONE }),
            ("max-age", Control { max_age: s(0), ..NONE }),
            ("max-age=-1", Control { max_age: s(0), ..NONE }),
            ("max-age=1.5", Control { max_age: s(0), ..NONE }),
            ("max-age=99999999999999999999999", Control { max_age: s(1 << 31), ..NONE }),
            ("s-maxage=5,stale-if-error=60", {
                Control { s_maxage: s(5), stale_if_error: s(60), ..NONE }
            }),
            ("private=\"a, no-store\"", Control { private: true, ..NONE }),
            ("no-cache=\"set-cookie\", x=\"\\\"\"", Control { no_cache: true, ..NONE }),
            ("x=\"public", Control { no_store: true, ..NONE }),
            ("no-store;max-age=5", NONE),
            ("must-revalidate", Control { must_revalidate: true, ..NONE }),
            ("proxy-revalidate", Control { must_revalidate: true, ..NONE }),
            ("x-no-store, no-stores, nostore", NONE),
        ] {
            assert_eq!(read(value), expected, "{value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_and_more_of_them_never_lift_a_ban(
            a in "[ -~]{0,40}", b in proptest::collection::vec(0_u8.., 0..40),
        ) {
            let first = read(&a);
            let mut both = first;
            both.read(&b);
            assert!(both.no_store >= first.no_store && both.private >= first.private);
            assert!(both.no_cache >= first.no_cache);
            assert!(first.max_age.is_none_or(|age| both.max_age.is_some_and(|now| now <= age)));
        }
    }
}
