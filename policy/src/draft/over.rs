//! `over`: how far a breaker looks back, in time or in calls.

use core::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::unit::{BadUnit, Span, two_lines};

/// `"10s"` or `"100 requests"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Time(Span),
    Calls(u32),
}

impl Over {
    pub(crate) fn time(self) -> Option<Span> {
        match self {
            Self::Time(span) => Some(span),
            Self::Calls(_) => None,
        }
    }

    pub(crate) fn calls(self) -> Option<u32> {
        match self {
            Self::Time(_) => None,
            Self::Calls(calls) => Some(calls),
        }
    }
}

impl FromStr for Over {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let Some(number) = text.strip_suffix("requests") else {
            return text.parse().map(Self::Time);
        };
        match number.trim_end().parse() {
            Ok(calls) => Ok(Self::Calls(calls)),
            Err(_) => {
                let message = format!("{text:?} is no number of requests");
                Err(BadUnit::new(message, "write it like \"100 requests\""))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Over {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(two_lines)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::Over;

    impl JsonSchema for Over {
        fn schema_name() -> Cow<'static, str> {
            "Over".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "type": "string",
                "description": "a length of time, or a number of calls",
                "pattern": r"^([0-9.]+ ?(ms|s|min|h)|[0-9]+ ?requests)$",
                "examples": ["10s", "100 requests"],
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_time_or_a_number_of_requests() {
        let seconds = Over::Time(Span(core::time::Duration::from_secs(10)));
        for (text, expected) in [
            ("10s", Some(seconds)),
            ("100 requests", Some(Over::Calls(100))),
            ("100requests", Some(Over::Calls(100))),
            ("requests", None),
            ("-1 requests", None),
            ("100", None),
        ] {
            assert_eq!(text.parse::<Over>().ok(), expected, "{text}");
        }
    }
}
