//! `balance`: how requests are spread over servers, as it is written and what it means.

use core::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer as _, Visitor};
use serde::{Deserialize, Deserializer};

use crate::admit::key::{Key, PARTS};
use crate::plan::Problem;
use crate::steer::balance::Rule;
use crate::steer::hash::Affinity;
use crate::time::nanos;
use crate::unit::{Ratio, Span};

/// How requests are spread: a word, or a table that says more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalanceSpec {
    pub kind: Balance,
    pub key: Option<Vec<String>>,
    pub headroom: Option<Ratio>,
    pub decay: Option<Span>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// One after the other, by weight, evenly interleaved.
    #[default]
    RoundRobin,
    /// The less busy of two picked at random (power of two choices), by weight.
    P2c,
    /// At random, by weight.
    Weighted,
    /// The quicker of two picked at random: by the time its responses take, which counts at once
    /// when it grows and fades when it does not, times its requests under way, by weight.
    PeakEwma,
    /// The same key goes to the same server, as long as that one has room (consistent hashing with
    /// bounded loads), by weight.
    Hash,
}

impl BalanceSpec {
    pub(crate) fn compile(self, path: &str, problems: &mut Vec<Problem>) -> Rule {
        let mut wrong = |key: &str, message: String, hint: &str| {
            let (path, hint) = (format!("{path}{key}"), Some(hint.to_owned()));
            problems.push(Problem { path, message, hint });
        };
        let Self { kind, key, headroom, decay } = self;
        let written = [
            ("key", key.is_some(), Balance::Hash),
            ("headroom", headroom.is_some(), Balance::Hash),
            ("decay", decay.is_some(), Balance::PeakEwma),
        ];
        for (name, _, of) in written.into_iter().filter(|(_, on, of)| *on && *of != kind) {
            let of = if of == Balance::Hash { "hash" } else { "peak_ewma" };
            let hint = format!("take it out, or write `kind = \"{of}\"`");
            wrong(&format!(".{name}"), "it means nothing here".to_owned(), &hint);
        }
        match kind {
            Balance::RoundRobin => Rule::RoundRobin,
            Balance::P2c => Rule::P2c,
            Balance::Weighted => Rule::Weighted,
            Balance::PeakEwma => {
                let decay = decay.unwrap_or(Span(DECAY));
                if !(DECAY_MIN..=DECAY_MAX).contains(&decay.0) {
                    wrong(".decay", format!("{decay} is out of bounds"), "from 100ms to 10min");
                }
                Rule::PeakEwma { half_life_ns: nanos(decay.0).max(1) }
            }
            Balance::Hash => {
                let headroom = headroom.unwrap_or(HEADROOM);
                if headroom < HEADROOM_MIN {
                    wrong(".headroom", format!("{headroom} is no room"), "from 1% to 100%");
                }
                let parts = key.unwrap_or_else(|| vec!["ip".to_owned()]);
                if parts.is_empty() {
                    let hint = "write `key = [\"ip\"]`, or another balance";
                    wrong(".key", "every request would be the same".to_owned(), hint);
                }
                let key = Key::parse(&parts).unwrap_or_else(|unread| {
                    for i in unread {
                        let message = format!("`{}` is no part of a key", parts[i].escape_debug());
                        wrong(&format!(".key[{i}]"), message, PARTS);
                    }
                    Key::default()
                });
                Rule::Hash(Affinity { key, headroom_ppm: headroom.0 })
            }
        }
    }
}

/// Finagle's time constant of 10 s is a half-life of 7.
const DECAY: core::time::Duration = core::time::Duration::from_secs(7);
const DECAY_MIN: core::time::Duration = core::time::Duration::from_millis(100);
const DECAY_MAX: core::time::Duration = core::time::Duration::from_secs(600);
/// The factor of 1.25 of the paper.
const HEADROOM: Ratio = Ratio(250_000);
const HEADROOM_MIN: Ratio = Ratio(10_000);

impl<'de> Deserialize<'de> for BalanceSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(BalanceVisitor)
    }
}

struct BalanceVisitor;

impl<'de> Visitor<'de> for BalanceVisitor {
    type Value = BalanceSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a way to balance, or a table")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<BalanceSpec, E> {
        let kind = Balance::deserialize(text.into_deserializer())?;
        Ok(BalanceSpec { kind, ..BalanceSpec::default() })
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<BalanceSpec, A::Error> {
        let BalanceTable { kind, key, headroom, decay } =
            BalanceTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(BalanceSpec { kind, key, headroom, decay })
    }
}

/// A way to balance that says more than its name.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct BalanceTable {
    /// Which.
    kind: Balance,
    /// Of `hash`: what belongs together, as in a limit's `key`: `"ip"`, `"header:NAME"`,
    /// `"cookie:NAME"`, `"path"`, `"api_key"`, one or the other (`"cookie:sid|ip"`). Requests that
    /// have none of it go to the less busy of two servers. Default `["ip"]`.
    key: Option<Vec<String>>,
    /// Of `hash`: how far above its share of the requests under way a server may be before its
    /// keys go elsewhere. From 1% to 100%, default 25%.
    headroom: Option<Ratio>,
    /// Of `peak_ewma`: the time in which an old response time loses half of its weight. Default
    /// 7s.
    decay: Option<Span>,
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Balance, BalanceSpec, BalanceTable};

    impl JsonSchema for BalanceSpec {
        fn schema_name() -> Cow<'static, str> {
            "BalanceRule".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let table = generator.subschema_for::<BalanceTable>().to_value();
            let words = Balance::json_schema(generator).to_value();
            let words = words["oneOf"].as_array().into_iter().flatten().cloned();
            let all: Vec<_> = words.chain([table]).collect();
            json_schema!({ "oneOf": all })
        }
    }
}
