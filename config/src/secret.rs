//! Where a secret is kept. A configuration holds the reference, never the secret, so it can be
//! stored, compared and shown.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;
use std::borrow::Cow;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::document::Document;
use crate::store::StoreUrl;

/// A reference to a secret: `env:NAME` (also written `${env:NAME}`) or `file:PATH`. Reading it is
/// the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    /// An environment variable.
    Env(String),
    /// The contents of a file, without the line end.
    File(PathBuf),
}

impl FromStr for SecretRef {
    type Err = &'static str;

    /// The error says what would be right, and never repeats the text: it may be the secret.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let inner = text.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
        let text = inner.unwrap_or(text);
        match text.split_once(':') {
            Some(("env", name)) if is_variable(name) => Ok(Self::Env(name.to_owned())),
            Some(("env", _)) => Err("write the name of an environment variable after env:"),
            Some(("file", path)) if !path.is_empty() && !path.contains('\0') => {
                Ok(Self::File(path.into()))
            }
            Some(("file", _)) => Err("write the path of a file after file:"),
            Some(_) | None => Err("write where it is kept: \"env:NAME\" or \"file:PATH\""),
        }
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(from)?;
        text.parse().map_err(|hint| {
            de::Error::custom(format_args!("a secret does not stand in the file itself\n{hint}"))
        })
    }
}

impl Serialize for SecretRef {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(self)
    }
}

impl JsonSchema for SecretRef {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "where a secret is kept",
            "pattern": r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|\$\{env:[A-Za-z_][A-Za-z0-9_]*\}|\$\{file:.+\})$",
            "examples": ["env:SLUICE_ADMIN_TOKEN", "file:/etc/sluice/token"],
        })
    }
}

/// The text with secrets that stand in it, against the rules, made unreadable. Byte offsets stay.
pub(crate) fn masked(text: &str) -> Cow<'_, str> {
    let document = Document::parse(text);
    let mut masked = Cow::Borrowed(text);
    let mut hide = |span: Range<usize>| {
        if let Some(secret) = text.get(span.clone()) {
            let stars = secret.bytes().map(|b| if b == b'\n' { '\n' } else { '*' });
            masked.to_mut().replace_range(span, &stars.collect::<String>());
        }
    };
    for path in SECRETS {
        let written = document.text_at(path);
        let plain = |text: &str| *path == URL && text.parse::<StoreUrl>().is_ok();
        if written.is_some_and(|text| text.parse::<SecretRef>().is_err() && !plain(text)) {
            hide(document.underline(path));
        }
    }
    // A line that is not TOML is not in the tree.
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if let Some(value) = secret_value(line) {
            hide(offset + value.start..offset + value.end);
        }
        offset += line.len();
    }
    masked
}

/// Where the value of a secret stands in a line `key = value`. None when it is a reference.
pub(crate) fn secret_value(line: &str) -> Option<Range<usize>> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim().rsplit('.').next().unwrap_or(key);
    let secret = SECRETS.iter().any(|path| path.rsplit('.').next() == Some(key.trim()));
    let start = line.len() - value.trim_start().len();
    let value = value.trim();
    let bare = value.split('#').next().unwrap_or(value).trim();
    let bare = bare.strip_prefix(['"', '\'']).and_then(|bare| bare.strip_suffix(['"', '\'']));
    let reference = bare
        .is_some_and(|bare| bare.parse::<SecretRef>().is_ok() || bare.parse::<StoreUrl>().is_ok());
    (secret && !reference).then(|| start..start + value.len())
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// May hold a secret, or none.
const URL: &str = "store.redis.url";

/// Every key that holds a secret.
const SECRETS: &[&str] =
    &["admin.token", URL, "store.redis.password", "store.redis.sentinel_password"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_stands_in_the_file_is_masked_and_a_reference_is_not() {
        for (text, expected) in [
            ("admin = { token = \"hunter2\", x = 1 }", "admin = { token = *********, x = 1 }"),
            ("[admin]\ntoken = 'é'", "[admin]\ntoken = ****"),
            ("[admin]\ntoken = 'env:A'", "[admin]\ntoken = 'env:A'"),
            ("[admin]\ntoken = hunter2 # mine\n", "[admin]\ntoken = **************\n"),
            ("[admin\ntoken = \"hunter2", "[admin\ntoken = ********"),
            ("admin.token = hunter2", "admin.token = *******"),
            ("[admin]\ntoken = \"${env:A}\" # there", "[admin]\ntoken = \"${env:A}\" # there"),
            ("", ""),
        ] {
            assert_eq!(masked(text), expected);
        }
    }

    #[test]
    fn a_secret_is_a_reference_and_never_the_secret() {
        for (text, expected) in [
            ("env:TOKEN", Some("env:TOKEN")),
            ("${env:TOKEN}", Some("env:TOKEN")),
            ("file:/run/token", Some("file:/run/token")),
            ("${file:token}", Some("file:token")),
            ("env:", None),
            ("env:A B", None),
            ("env:1A", None),
            ("file:", None),
            ("${env:TOKEN", None),
            ("hunter2", None),
            ("vault:x", None),
        ] {
            let found = text.parse::<SecretRef>();
            assert_eq!(found.as_ref().ok().map(ToString::to_string).as_deref(), expected, "{text}");
            if let Err(hint) = found {
                assert!(!hint.contains("hunter2"));
            }
        }
    }
}
