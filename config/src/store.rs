//! `[store]`: where counts are kept that several gateways share.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::secret::SecretRef;

/// Where counts are kept that several gateways share.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StoreTable {
    /// A Redis, for limits with `store = "redis"`.
    pub(crate) redis: Option<RedisTable>,
}

/// A Redis, for limits with `store = "redis"`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisTable {
    /// `"redis://host:port/database"`, or where it is kept if it holds a password: `"env:NAME"`
    /// or `"file:PATH"`.
    pub(crate) url: StoreUrl,
    /// How many gateways share it. It decides which limits are reserved in batches, and the share
    /// of a gateway that can't reach it.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) nodes: u32,
}

/// The most gateways that may share a store.
pub(crate) const NODES_MAX: u32 = 1000;

fn one() -> u32 {
    1
}

/// Where a Redis is: an address without a secret, or a reference to one with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Plain(String),
    Secret(SecretRef),
}

impl FromStr for StoreUrl {
    type Err = &'static str;

    /// Never repeats the text: it may hold a password.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        if let Ok(secret) = text.parse() {
            return Ok(Self::Secret(secret));
        }
        let form = "write \"redis://host:port\"";
        if text.starts_with("rediss://") {
            return Err("TLS to the store is not in this version");
        }
        let Some(rest) = text.strip_prefix("redis://") else { return Err(form) };
        let (authority, _) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("a password does not stand in the file itself: write \"env:NAME\" or \
                        \"file:PATH\", and the whole address there");
        }
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let graphic = text.bytes().all(|b| b.is_ascii_graphic());
        if host.is_empty() || !graphic { Err(form) } else { Ok(Self::Plain(text.to_owned())) }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(url) => f.write_str(url),
            Self::Secret(secret) => secret.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for StoreUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(from)?;
        text.parse().map_err(|hint| {
            de::Error::custom(format_args!("this is no address of a Redis\n{hint}"))
        })
    }
}

impl Serialize for StoreUrl {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(self)
    }
}

impl JsonSchema for StoreUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "StoreUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^(redis://[^@]+|env:.+|file:.+|\$\{env:.+\}|\$\{file:.+\})$",
            "examples": ["redis://10.0.0.5:6379", "env:SLUICE_REDIS_URL"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_holds_no_password() {
        for (text, good) in [
            ("redis://10.0.0.5:6379", true),
            ("redis://[::1]:6379/2", true),
            ("redis://redis.internal", true),
            ("env:REDIS_URL", true),
            ("${file:/run/redis}", true),
            ("redis://user:hunter2@10.0.0.5", false),
            ("rediss://10.0.0.5", false),
            ("redis://", false),
            ("redis://:6379", false),
            ("10.0.0.5:6379", false),
            ("", false),
        ] {
            let found = text.parse::<StoreUrl>();
            assert_eq!(found.is_ok(), good, "{text}: {found:?}");
            assert!(!format!("{found:?}").contains("hunter2"));
        }
    }
}
