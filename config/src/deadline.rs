//! The header field by which servers are told how much time is left.

use core::fmt;
use core::str::FromStr;

use sluice_policy::unit::BadUnit;

/// As written: a name, or `"off"`.
#[derive(Clone, Debug)]
pub(crate) struct Deadline(pub(crate) Option<DeadlineHeader>);

/// A header field that tells a length of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineHeader {
    name: String,
}

impl DeadlineHeader {
    /// Lower case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value is written as gRPC does, with a unit; any other's in whole milliseconds.
    pub fn is_grpc(&self) -> bool {
        self.name == "grpc-timeout"
    }
}

impl Default for Deadline {
    fn default() -> Self {
        Self(Some(DeadlineHeader { name: "x-request-timeout-ms".to_owned() }))
    }
}

impl FromStr for Deadline {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        if text == "off" {
            return Ok(Self(None));
        }
        let name = text.to_ascii_lowercase();
        let token = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        // Nobody hands a field that means something else to HTTP to this.
        let meant = name.contains("timeout") || name.contains("deadline");
        if token && meant {
            return Ok(Self(Some(DeadlineHeader { name })));
        }
        let hint = "write a name like \"x-request-timeout-ms\", with `timeout` or `deadline` in it, \
                    or \"off\"";
        Err(BadUnit::new(format!("{text:?} is not the name of such a field"), hint))
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("off", DeadlineHeader::name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_be_one_that_can_only_mean_this() {
        for (text, expected) in [
            ("off", Some(None)),
            ("X-Request-Timeout-Ms", Some(Some(("x-request-timeout-ms", false)))),
            (
                "x-envoy-expected-rq-timeout-ms",
                Some(Some(("x-envoy-expected-rq-timeout-ms", false))),
            ),
            ("grpc-timeout", Some(Some(("grpc-timeout", true)))),
            ("content-length", None),
            ("x timeout", None),
            ("", None),
        ] {
            let found = text.parse::<Deadline>().ok().map(|deadline| deadline.0);
            let found = found.as_ref().map(|d| d.as_ref().map(|d| (d.name(), d.is_grpc())));
            assert_eq!(found, expected, "{text}");
        }
    }
}
