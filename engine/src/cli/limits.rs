//! `limits`: what limits promise and did, and numbers of single keys.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::ask::ask;
use super::{json as pretty, print};
use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Limits {
    /// Every limit: its bound, and what it has decided
    List {
        /// For machines; also when standard output is no terminal
        #[arg(long)]
        json: bool,
    },
    /// Keys that have numbers of their own
    Overrides {
        /// For machines; also when standard output is no terminal
        #[arg(long)]
        json: bool,
    },
    /// Give one key of a limit with a store numbers of its own, on every gateway within a second
    Override {
        limit: String,
        /// The values of the limit's `key`, with commas between: "acme", "10.0.0.7,GET"
        key: String,
        /// "5000/s"
        rate: String,
        /// Of a bucket
        #[arg(long, value_name = "N")]
        burst: Option<u32>,
    },
    /// Take that away: the limit's own numbers again
    Restore { limit: String, key: String },
}

/// As much of `/v1/limits` as people read.
#[derive(Debug, Deserialize)]
struct Told {
    #[serde(default)]
    limits: Vec<Limit>,
    #[serde(default)]
    overrides: Vec<Override>,
}

#[derive(Debug, Deserialize)]
struct Limit {
    name: String,
    bound: String,
    allowed: u64,
    refused: u64,
    shadow_refused: u64,
}

#[derive(Debug, Deserialize)]
struct Override {
    key: String,
    value: String,
    /// Why it means nothing.
    error: Option<String>,
}

/// What became of a change.
#[derive(Debug, Deserialize)]
struct Changed {
    error: Option<String>,
}

pub(super) fn limits(control: Option<&Path>, limits: Limits) -> Result<Exit, Failure> {
    match limits {
        Limits::List { json } => {
            show(control, json, |all| all, |told| told.limits.iter().map(line).collect())
        }
        Limits::Overrides { json } => {
            show(control, json, |mut all| all["overrides"].take(), |told| own(&told.overrides))
        }
        Limits::Override { limit, key, rate, burst } => {
            let burst = burst.map(|burst| burst.to_string());
            let mut wish = vec![("limit", &limit), ("key", &key), ("rate", &rate)];
            wish.extend(burst.as_ref().map(|burst| ("burst", burst)));
            change(control, &wish)?;
            let burst = burst.map(|burst| format!(", {burst} at once")).unwrap_or_default();
            print(&format!("{limit}/{key}: {rate}{burst}\n"))
        }
        Limits::Restore { limit, key } => {
            change(control, &[("limit", &limit), ("key", &key)])?;
            print(&format!("{limit}/{key}: the limit's own numbers\n"))
        }
    }
}

fn show(
    control: Option<&Path>,
    json: bool,
    part: fn(Value) -> Value,
    text: fn(&Told) -> String,
) -> Result<Exit, Failure> {
    let (_, all): (u16, Value) = ask(control, "GET", "/v1/limits")?;
    if json || !io::stdout().is_terminal() {
        return print(&pretty(&part(all))?);
    }
    let told = serde_json::from_value(all).map_err(|e| {
        Failure::new(Exit::Failed, format!("/v1/limits: not an answer of this version: {e}"))
    })?;
    print(&text(&told))
}

fn change(control: Option<&Path>, wish: &[(&str, &String)]) -> Result<(), Failure> {
    let mut path = "/v1/limits/override".to_owned();
    for (i, (key, value)) in wish.iter().enumerate() {
        let _ = write!(path, "{}{key}={}", if i == 0 { '?' } else { '&' }, escaped(value));
    }
    let (_, Changed { error }) = ask(control, "POST", &path)?;
    error.map_or(Ok(()), |why| Err(Failure::new(Exit::Failed, why)))
}

/// For a query (RFC 3986, section 2.3).
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/:,".contains(&byte);
        let _ =
            if plain { write!(text, "{}", char::from(byte)) } else { write!(text, "%{byte:02X}") };
    }
    text
}

fn line(limit: &Limit) -> String {
    let Limit { name, bound, allowed, refused, shadow_refused } = limit;
    let shadow = match shadow_refused {
        0 => String::new(),
        n => format!(", {n} would have been"),
    };
    format!("{name}: {bound}\n    {allowed} allowed, {refused} refused{shadow}\n")
}

fn own(overrides: &[Override]) -> String {
    if overrides.is_empty() {
        return "no key has numbers of its own\n".to_owned();
    }
    let line = |Override { key, value, error }: &Override| match error {
        Some(why) => format!("{key}: {value}: means nothing: {why}\n"),
        None => format!("{key}: {value}\n"),
    };
    overrides.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_query_would_misread_is_escaped() {
        let table =
            [("10.0.0.7,GET", "10.0.0.7,GET"), ("a b&c=d", "a%20b%26c%3Dd"), ("é", "%C3%A9")];
        for (value, expected) in table {
            assert_eq!(escaped(value), expected);
        }
    }

    #[test]
    fn people_read_what_a_limit_did_and_which_keys_differ() {
        let limit = Limit {
            name: "fair".to_owned(),
            bound: "at most 5".to_owned(),
            allowed: 7,
            refused: 2,
            shadow_refused: 0,
        };
        assert_eq!(line(&limit), "fair: at most 5\n    7 allowed, 2 refused\n");
        let own_one = |error: Option<&str>| {
            let (key, value) = ("fair/acme".to_owned(), "5/s".to_owned());
            own(&[Override { key, value, error: error.map(str::to_owned) }])
        };
        assert_eq!(own_one(None), "fair/acme: 5/s\n");
        assert_eq!(own_one(Some("no")), "fair/acme: 5/s: means nothing: no\n");
        assert_eq!(own(&[]), "no key has numbers of its own\n");
    }
}
