//! `[store]`: where counts are kept that several gateways share.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::check::fault;
use crate::document::Document;
use crate::reader::Reader;
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
    /// One server: `"redis://host:port/database"`, `"rediss://…"` with TLS, or where the address
    /// is kept if it holds a password: `"env:NAME"` or `"file:PATH"`.
    pub(crate) url: Option<StoreUrl>,
    /// Instead of `url`: the Sentinels to ask which server is the primary, as `"host:port"`.
    #[schemars(with = "Option<Vec<String>>")]
    pub(crate) sentinels: Option<Vec<Server>>,
    /// The name by which Sentinels know the primary.
    pub(crate) master: Option<String>,
    /// Instead of `url`: some servers of a Redis Cluster, as `"host:port"`. They name the others.
    #[schemars(with = "Option<Vec<String>>")]
    pub(crate) cluster: Option<Vec<Server>>,
    /// Whom to log in as. Default: Redis' own default user.
    pub(crate) user: Option<String>,
    /// The password to log in with.
    pub(crate) password: Option<SecretRef>,
    /// The password of the Sentinels, if they have one.
    pub(crate) sentinel_password: Option<SecretRef>,
    /// Speak TLS to the servers, and to the Sentinels. With `url`, `rediss://` says so.
    pub(crate) tls: Option<bool>,
    /// A file of certificates, in PEM, that sign the servers'. Default: those that the system
    /// trusts.
    pub(crate) ca: Option<PathBuf>,
    /// A file with the certificate to show the servers, in PEM, where they want one.
    pub(crate) certificate: Option<PathBuf>,
    /// A file with that certificate's key, in PEM.
    pub(crate) certificate_key: Option<PathBuf>,
    /// How many gateways share it. It decides which limits are reserved in batches, and the share
    /// of a gateway that can't reach it.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) nodes: u32,
    /// A proxy stands before it, such as Envoy or twemproxy, that does not tell when the Redis
    /// behind it restarts. What such a proxy does not pass on is then not asked. `strict` limits
    /// need to know, and can't be kept as written. Only with `url`.
    #[serde(default)]
    pub(crate) proxied: bool,
}

/// The most gateways that may share a store.
const NODES_MAX: u32 = 1000;

fn one() -> u32 {
    1
}

/// What of it excludes what, or needs it.
pub(crate) fn check(document: &Document<'_>, reader: &mut Reader, store: &StoreTable) {
    let Some(redis) = &store.redis else { return };
    let mut wrong = |key: &str, message: &str, hint: &str| {
        let path = format!("store.redis{key}");
        let span = document.underline(&path);
        reader.note(fault(&path, span, message.to_owned(), Some(hint.to_owned())));
    };
    if !(1..=NODES_MAX).contains(&redis.nodes) {
        wrong(".nodes", "out of bounds", &format!("write 1 to {NODES_MAX}"));
    }
    let empty = |servers: &Option<Vec<Server>>| servers.as_ref().is_some_and(Vec::is_empty);
    for (key, empty) in
        [(".sentinels", empty(&redis.sentinels)), (".cluster", empty(&redis.cluster))]
    {
        if empty {
            wrong(key, "names no server", "write [\"host:port\", …], or take it out");
        }
    }
    let ways = [redis.url.is_some(), redis.sentinels.is_some(), redis.cluster.is_some()];
    match ways.iter().filter(|way| **way).count() {
        0 => wrong("", "does not say where the Redis is", "write url, sentinels or cluster"),
        1 => {}
        _ => wrong("", "says in several ways where the Redis is", "keep url, sentinels or cluster"),
    }
    match (redis.sentinels.is_some(), &redis.master) {
        (true, None) => wrong("", "does not name the primary", "write master = \"NAME\""),
        (false, Some(_)) => wrong(".master", "only Sentinels know it", "take it out"),
        (true, Some(_)) | (false, None) => {}
    }
    if redis.sentinels.is_none() && redis.sentinel_password.is_some() {
        wrong(".sentinel_password", "there are no Sentinels", "take it out");
    }
    if redis.url.is_none() && redis.proxied {
        wrong(".proxied", "what these name is reached itself", "take it out, or write url");
    }
    if redis.user.is_some() && redis.password.is_none() {
        wrong(".user", "has no password", "write password = \"env:NAME\" or \"file:PATH\"");
    }
    if redis.url.is_some() && redis.tls.is_some() {
        wrong(".tls", "the address says it", "write \"rediss://…\" or \"redis://…\", without this");
    }
    let plain = matches!(&redis.url, Some(StoreUrl::Plain(url)) if !url.starts_with("rediss:"))
        || (redis.url.is_none() && redis.tls != Some(true));
    for (key, file) in [(".ca", &redis.ca), (".certificate", &redis.certificate)] {
        if plain && file.is_some() {
            wrong(key, "there is no TLS", "write rediss:// or tls = true, or take it out");
        }
    }
    if redis.certificate.is_some() != redis.certificate_key.is_some() {
        let hint = "write certificate and certificate_key";
        wrong("", "a certificate and its key belong together", hint);
    }
}

/// A server of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub host: String,
    pub port: u16,
}

impl FromStr for Server {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let form = "write \"host:port\"";
        let (host, port) = text.rsplit_once(':').ok_or(form)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let named = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let good = match bare {
            Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(named),
        };
        let port = port.parse().ok().filter(|port| good && *port > 0).ok_or(form)?;
        Ok(Self { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl<'de> Deserialize<'de> for Server {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(from)?;
        text.parse().map_err(|hint| de::Error::custom(format_args!("this is no server\n{hint}")))
    }
}

impl Serialize for Server {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(self)
    }
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
        let form = "write \"redis://host:port\", or \"rediss://host:port\" for TLS";
        let rest = text.strip_prefix("redis://").or_else(|| text.strip_prefix("rediss://"));
        let Some(rest) = rest else { return Err(form) };
        let (authority, _) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(
                "a password does not stand in the file itself: write password = \"env:NAME\" or \
                        \"file:PATH\"",
            );
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
            "pattern": r"^(rediss?://[^@]+|env:.+|file:.+|\$\{env:.+\}|\$\{file:.+\})$",
            "examples": ["redis://10.0.0.5:6379", "rediss://redis.internal:6380", "env:SLUICE_REDIS_URL"],
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
            ("rediss://10.0.0.5", true),
            ("rediss://:hunter2@10.0.0.5", false),
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

    #[test]
    fn ways_that_exclude_one_another_are_told_apart() {
        let one = "url = \"redis://a:1\"";
        let tls = "url = \"rediss://a:1\"";
        let watched = "sentinels = [\"a:1\"]";
        let cluster = "cluster = [\"a:1\"]";
        for (lines, expected) in [
            (&[one][..], None),
            (&[tls, "ca = \"/ca\""], None),
            (&[watched, "master = \"m\"", "sentinel_password = \"env:P\""], None),
            (
                &[cluster, "tls = true", "ca = \"/ca\"", "user = \"u\"", "password = \"env:P\""],
                None,
            ),
            (&[], Some("does not say where the Redis is")),
            (&[one, cluster], Some("says in several ways where the Redis is")),
            (&["cluster = []"], Some("names no server")),
            (&[watched], Some("does not name the primary")),
            (&[one, "master = \"m\""], Some("only Sentinels know it")),
            (&[cluster, "sentinel_password = \"env:P\""], Some("there are no Sentinels")),
            (&[one, "user = \"u\""], Some("has no password")),
            (&[one, "password = \"hunter2\""], Some("a secret does not stand in the file itself")),
            (&[one, "proxied = true"], None),
            (&[cluster, "proxied = true"], Some("what these name is reached itself")),
            (&[tls, "tls = true"], Some("the address says it")),
            (&[one, "ca = \"/ca\""], Some("there is no TLS")),
            (
                &[cluster, "certificate = \"/c\"", "certificate_key = \"/k\""],
                Some("there is no TLS"),
            ),
            (&[tls, "certificate = \"/c\""], Some("a certificate and its key belong together")),
        ] {
            let text = format!(
                "version = 1\n[server]\nlisten = [\"127.0.0.1:0\"]\n[store.redis]\n{}\n",
                lines.join("\n")
            );
            let found = crate::parse(&text).err().map(|problems| {
                let all: Vec<String> = problems.iter().map(|p| p.message.clone()).collect();
                assert!(!problems.render("f", &text, false).contains("hunter2"));
                all.join("; ")
            });
            assert_eq!(found.as_deref(), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for (text, expected) in [
            ("10.0.0.5:6379", Some(("10.0.0.5", 6379))),
            ("redis-1.internal:1", Some(("redis-1.internal", 1))),
            ("[::1]:6379", Some(("::1", 6379))),
            ("::1:6379", None),
            ("redis", None),
            ("redis:0", None),
            ("redis:70000", None),
            ("redis://redis:6379", None),
            (":6379", None),
        ] {
            let found = text.parse::<Server>().ok();
            let shown = found.as_ref().map(|server| (server.host.as_str(), server.port));
            assert_eq!(shown, expected, "{text}");
            assert!(found.is_none_or(|server| server.to_string() == text));
        }
    }
}
