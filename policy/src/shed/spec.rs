//! `[shed]`: what an operator writes about the node's own bounds.

use core::time::Duration;

use serde::{Deserialize, Deserializer};

use super::node::Rule;
use crate::plan::Problem;
use crate::unit::{Ratio, Span, two_lines};

/// Where nothing else is at fault, a loop that comes round this late has too much to do; a machine
/// that others use comes near it for a moment, but not four times in a row.
const LAG: Duration = Duration::from_millis(100);

/// When the node protects itself: near any of these bounds it sheds what is `low`, then what is
/// `normal`, then what is `high`, and never what is `critical` (`priority` of a route).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ShedSpec {
    /// How late a worker's loop may come round, four times in a row; `"off"` does not look.
    /// Default 100ms.
    pub lag: Option<Lag>,
    /// How many requests the node may have in progress. Default: any.
    pub in_flight: Option<u32>,
    /// How busy the machine's processors may be, over a second. Default: wholly.
    pub cpu: Option<Ratio>,
    /// The machine's load average over a minute. Default: any.
    pub load: Option<u32>,
}

/// A time, or `"off"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag(Option<Span>);

impl ShedSpec {
    pub(crate) fn compile(self, problems: &mut Vec<Problem>) -> Rule {
        let zeros = [
            ("lag", self.lag.is_some_and(|lag| lag.0 == Some(Span(Duration::ZERO)))),
            ("in_flight", self.in_flight == Some(0)),
            ("cpu", self.cpu == Some(Ratio(0))),
            ("load", self.load == Some(0)),
        ];
        for (key, _) in zeros.into_iter().filter(|(_, zero)| *zero) {
            problems.push(Problem {
                path: format!("shed.{key}"),
                message: "everything would be shed".to_owned(),
                hint: Some("write more than zero, or leave it out".to_owned()),
            });
        }
        let lag = self.lag.map_or(Some(LAG), |Lag(lag)| lag.map(|span| span.0));
        let cpu_permille = self.cpu.map(|cpu| cpu.0.div_ceil(1_000));
        Rule { lag, in_flight: self.in_flight, cpu_permille, load: self.load }
    }
}

impl<'de> Deserialize<'de> for Lag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text == "off" {
            return Ok(Self(None));
        }
        let span = text.parse::<Span>().map_err(two_lines::<D::Error>)?;
        Ok(Self(Some(span)))
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Lag, Span};

    impl JsonSchema for Lag {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            "Lag".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let span = generator.subschema_for::<Span>();
            json_schema!({ "anyOf": [{ "type": "string", "enum": ["off"] }, span] })
        }
    }
}
