//! Single values of the gateway's own tables: how each is read, shown and described.

use core::fmt;
use core::marker::PhantomData;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::num::NonZeroU16;
use core::str::FromStr;
use std::borrow::Cow;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluice_policy::unit::{BadUnit, Span};

use crate::deadline::Deadline;

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Stdout,
    Stderr,
    File(PathBuf),
    Off,
}

/// What the access log never shows. Names are lower case for headers, as written for queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hide {
    Header(String),
    Query(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Listening(pub(crate) SocketAddr);

/// None is one per core.
#[derive(Clone, Debug)]
pub(crate) struct Workers(pub(crate) Option<NonZeroU16>);

/// None is off.
#[derive(Clone, Debug)]
pub(crate) struct AdminListen(pub(crate) Option<SocketAddr>);

/// None is off.
#[derive(Clone, Debug)]
pub(crate) struct Slow(pub(crate) Option<Span>);

/// A header field's name in lower case; it may end in `*`.
#[derive(Clone, Debug)]
pub(crate) struct HeaderPattern(pub(crate) String);

#[derive(Clone, Debug)]
pub(crate) struct ListenSpec {
    pub(crate) addr: Listening,
}

/// A listener that says more than its address.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListenTable {
    addr: Listening,
}

impl FromStr for Listening {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let addr = match text.strip_prefix(':') {
            Some(port) => port.parse().ok().map(any),
            None => text.parse().ok(),
        };
        addr.map(Self).ok_or_else(|| {
            let hint = match text.parse::<IpAddr>() {
                Ok(ip) => format!("write the port too: \"{}\"", SocketAddr::new(ip, 8080)),
                Err(_) if text.parse::<u16>().is_ok() => format!("write \":{text}\""),
                Err(_) => {
                    "write \":8080\", \"127.0.0.1:8080\" or \"[::1]:8080\"; names are not looked up"
                        .to_owned()
                }
            };
            BadUnit::new(format!("{text:?} is not an address to listen on"), hint)
        })
    }
}

impl FromStr for AdminListen {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        match text {
            "off" => Ok(Self(None)),
            _ => Listening::from_str(text).map(|listening| Self(Some(listening.0))),
        }
    }
}

impl FromStr for Slow {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        match text {
            "off" => Ok(Self(None)),
            _ => text.parse().map(|span| Self(Some(span))),
        }
    }
}

impl FromStr for LogTarget {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            "off" => Ok(Self::Off),
            // An absolute path can be nothing else; a relative one needs to say that it is one.
            _ => match text.strip_prefix("file:").or_else(|| text.starts_with('/').then_some(text))
            {
                Some(path) if !path.is_empty() && !path.contains('\0') => {
                    Ok(Self::File(path.into()))
                }
                Some(_) | None => Err(BadUnit::new(
                    format!("a log cannot be written to {text:?}"),
                    "write \"stdout\", \"stderr\", \"file:PATH\", an absolute path or \"off\"",
                )),
            },
        }
    }
}

impl FromStr for Hide {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        match text.split_once(':') {
            Some(("header", name)) if is_token(name) => Ok(Self::Header(name.to_lowercase())),
            Some(("query", name)) if !name.is_empty() => Ok(Self::Query(name.to_owned())),
            Some(_) | None => Err(BadUnit::new(
                format!("{text:?} names nothing that could be hidden"),
                "write \"header:NAME\" or \"query:NAME\"",
            )),
        }
    }
}

impl FromStr for HeaderPattern {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        if is_token(text.strip_suffix('*').unwrap_or(text)) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        let hint = "write a name like \"x-account\", or \"x-account-*\" for all that begin so";
        Err(BadUnit::new(format!("{text:?} is not the name of a header field"), hint))
    }
}

impl FromStr for Workers {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        match text {
            "auto" => Ok(Self(None)),
            _ => Err(Self::bad(&format!("{text:?}"))),
        }
    }
}

impl Workers {
    fn bad(what: &str) -> BadUnit {
        let hint = format!("write \"auto\", or a number from 1 to {WORKERS_MAX}");
        BadUnit::new(format!("{what} is no number of workers"), hint)
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => write!(f, ":{}", self.0.port()),
            IpAddr::V4(_) | IpAddr::V6(_) => self.0.fmt(f),
        }
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(addr) => Listening(addr).fmt(f),
            None => f.write_str("off"),
        }
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => span.fmt(f),
            None => f.write_str("off"),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::Off => f.write_str("off"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl fmt::Display for Hide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}

impl fmt::Display for HeaderPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A port on every IPv4 address. IPv4, because IPv6 may be switched off.
pub(crate) const fn any(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

/// A serde error carries one text: the first line is the message, the second the hint.
fn two_lines<E: de::Error>(bad: BadUnit) -> E {
    E::custom(format_args!("{}\n{}", bad.message, bad.hint))
}

/// Reads a value from text only.
struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err = BadUnit>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(two_lines)
    }
}

macro_rules! text {
    ($($type:ident: $what:literal, $pattern:literal, [$($example:literal),+];)+) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Text(PhantomData))
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
                into.collect_str(self)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "description": $what,
                    "pattern": $pattern,
                    "examples": [$($example),+],
                })
            }
        }
    )+};
}

text! {
    Listening: "an address and a port to listen on", r"^([0-9.]+|\[[0-9A-Fa-f:.]+\])?:[0-9]{1,5}$",
        [":8080", "127.0.0.1:8080", "[::1]:8080"];
    AdminListen: "an address and a port to listen on, or off",
        r"^(off|([0-9.]+|\[[0-9A-Fa-f:.]+\])?:[0-9]{1,5})$", ["127.0.0.1:9901", "off"];
    Slow: "a length of time with its unit, or off",
        r"^(off|[0-9]+(\.[0-9]+)?(ns|us|ms|s|min|h|day))$", ["250ms", "off"];
    LogTarget: "where a log is written", r"^(stdout|stderr|off|file:.+|/.+)$",
        ["stdout", "file:/var/log/sluice/access.log"];
    Hide: "a header field or a query parameter", r"^(header|query):.+$",
        ["header:authorization", "query:token"];
    Deadline: "the name of a header field, or off", r"^[0-9A-Za-z._-]+$",
        ["x-request-timeout-ms", "grpc-timeout", "off"];
    HeaderPattern: "the name of a header field, which may end in *",
        r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", ["x-account", "x-account-*"];
}

impl<'de> Deserialize<'de> for ListenSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ListenVisitor)
    }
}

struct ListenVisitor;

impl<'de> Visitor<'de> for ListenVisitor {
    type Value = ListenSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address like \":8080\", or a table with addr")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ListenSpec, E> {
        text.parse().map(|addr| ListenSpec { addr }).map_err(two_lines)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ListenSpec, A::Error> {
        let table = ListenTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ListenSpec { addr: table.addr })
    }
}

impl Serialize for ListenSpec {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        self.addr.serialize(into)
    }
}

impl JsonSchema for ListenSpec {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = generator.subschema_for::<Listening>();
        let table = generator.subschema_for::<ListenTable>();
        json_schema!({ "anyOf": [text, table] })
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(WorkersVisitor)
    }
}

struct WorkersVisitor;

impl Visitor<'_> for WorkersVisitor {
    type Value = Workers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"auto\" or a whole number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Workers, E> {
        text.parse().map_err(two_lines)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Workers, E> {
        let count = u16::try_from(number).ok().filter(|count| *count <= WORKERS_MAX);
        match count.and_then(NonZeroU16::new) {
            Some(count) => Ok(Workers(Some(count))),
            None => Err(two_lines(Workers::bad(&number.to_string()))),
        }
    }
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(count) => into.serialize_u16(count.get()),
            None => into.serialize_str("auto"),
        }
    }
}

impl JsonSchema for Workers {
    fn schema_name() -> Cow<'static, str> {
        "Workers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "\"auto\" or a number",
            "anyOf": [
                { "const": "auto" },
                { "type": "integer", "minimum": 1, "maximum": WORKERS_MAX },
            ],
        })
    }
}

/// Whether this could be the name of a header field (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(tchar)
}

/// More threads than any machine has cores.
const WORKERS_MAX: u16 = 1024;
