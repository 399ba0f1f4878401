//! `adaptive` of an upstream: what an operator writes about the limit that learns.

use core::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::mechanism::adaptive::Rule;
use crate::plan::Problem;
use crate::unit::{BadUnit, Span, two_lines};

/// Far above what any node has under way.
const MAX: u32 = 1 << 20;
const MIN_DEFAULT: u32 = 2;
const INITIAL_DEFAULT: u32 = 50;
const MAX_DEFAULT: u32 = 1000;

/// `adaptive = "on"`, or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptiveSpec {
    Off,
    On(Bounds),
}

/// How many requests of this node may be under way at the upstream at once, learnt from how long
/// its answers take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// Never less. Default 2.
    pub min: Option<u32>,
    /// Never more. Default 1000.
    pub max: Option<u32>,
    /// To begin with. Default 50, or the bound nearest to it.
    pub initial: Option<u32>,
    /// When answers take longer than this on average, the limit falls, whatever was measured.
    pub slow: Option<Span>,
}

impl AdaptiveSpec {
    pub(crate) fn compile(self, path: &str, problems: &mut Vec<Problem>) -> Option<Rule> {
        let Self::On(Bounds { min, max, initial, slow }) = self else { return None };
        let mut problem = |key: &str, message: String, hint: &str| {
            let (path, hint) = (format!("{path}.{key}"), Some(hint.to_owned()));
            problems.push(Problem { path, message, hint });
        };
        for (key, written) in [("min", min), ("max", max), ("initial", initial)] {
            if let Some(n) = written.filter(|n| !(1..=MAX).contains(n)) {
                problem(key, format!("{n} at once"), &format!("write a number from 1 to {MAX}"));
            }
        }
        if slow.is_some_and(|slow| slow.0.is_zero()) {
            problem("slow", "no time at all".to_owned(), "write more than zero, or leave it out");
        }
        let max = max.unwrap_or(MAX_DEFAULT).clamp(1, MAX);
        let least = min.unwrap_or_else(|| MIN_DEFAULT.min(max)).clamp(1, MAX);
        if least > max {
            problem("min", format!("{least} is more than max, {max}"), "write min below max");
        }
        let bounds = least.min(max)..=max;
        let initial = match initial {
            Some(n) if (1..=MAX).contains(&n) && !bounds.contains(&n) => {
                problem("initial", format!("{n} is not between min and max"), "or leave it out");
                max
            }
            Some(n) => n,
            None => INITIAL_DEFAULT.clamp(*bounds.start(), max),
        };
        Some(Rule { min: *bounds.start(), max, initial, slow: slow.map(|slow| slow.0) })
    }
}

impl<'de> Deserialize<'de> for AdaptiveSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AdaptiveVisitor)
    }
}

struct AdaptiveVisitor;

impl<'de> Visitor<'de> for AdaptiveVisitor {
    type Value = AdaptiveSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"on\", \"off\", or a table")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<AdaptiveSpec, E> {
        match text {
            "on" => Ok(AdaptiveSpec::On(Bounds::default())),
            "off" => Ok(AdaptiveSpec::Off),
            _ => {
                let message = format!("{text:?} is not a way to limit what is under way");
                Err(two_lines(BadUnit::new(message, "write \"on\", \"off\" or a table")))
            }
        }
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<AdaptiveSpec, A::Error> {
        Bounds::deserialize(MapAccessDeserializer::new(map)).map(AdaptiveSpec::On)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{AdaptiveSpec, Bounds};

    impl JsonSchema for AdaptiveSpec {
        fn schema_name() -> Cow<'static, str> {
            "Adaptive".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let table = generator.subschema_for::<Bounds>();
            json_schema!({ "anyOf": [{ "type": "string", "enum": ["on", "off"] }, table] })
        }
    }
}
