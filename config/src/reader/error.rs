//! Why a value could not be read, in words for whoever wrote it.

use core::fmt;
use core::ops::Range;

use serde::de::{self, Unexpected};

use crate::near;

/// A path, its key and its value.
type About = (String, Range<usize>, Range<usize>);

/// Why a value could not be read.
#[derive(Debug)]
pub(super) struct Error {
    /// None until it has passed the place it is about.
    pub(super) place: Option<Box<About>>,
    pub(super) kind: Kind,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Value,
    Key,
    Missing(&'static str),
}

impl Error {
    fn new(kind: Kind, message: String, hint: Option<String>) -> Self {
        Self { place: None, kind, message, hint }
    }

    pub(super) fn at(mut self, path: String, key: Range<usize>, value: Range<usize>) -> Self {
        self.place.get_or_insert_with(|| Box::new((path, key, value)));
        self
    }

    pub(super) fn about_a_key(mut self) -> Self {
        self.kind = Kind::Key;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for Error {}

impl de::Error for Error {
    /// The first line is the message, the second the hint.
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        match text.split_once('\n') {
            Some((message, hint)) => Self::new(Kind::Value, message.into(), Some(hint.into())),
            None => Self::new(Kind::Value, text, None),
        }
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        let wanted = in_plain_words(wanted.to_string());
        let list = wanted.starts_with("a list") && !matches!(found, Unexpected::Map);
        let hint = list.then(|| "put it in brackets, like [\"a\", \"b\"]".to_owned());
        Self::new(Kind::Value, format!("wanted {wanted}, found {}", kind_of(found)), hint)
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        let (low, high) = match wanted.to_string().as_str() {
            "u8" => (0, u64::from(u8::MAX)),
            "u16" => (0, u64::from(u16::MAX)),
            "u32" => (0, u64::from(u32::MAX)),
            "a nonzero u16" => (1, u64::from(u16::MAX)),
            other => {
                let message = format!("{} is not {other}", shown(found));
                return Self::new(Kind::Value, message, None);
            }
        };
        let hint = Some(format!("write a whole number between {low} and {high}"));
        Self::new(Kind::Value, format!("{} is out of bounds", shown(found)), hint)
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        let hint = near::hint(variant, known.iter().copied());
        Self::new(Kind::Value, format!("\"{variant}\" is not known here"), hint)
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let hint = near::hint(field, known.iter().copied());
        Self::new(Kind::Key, format!("unknown key `{field}`"), hint)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Kind::Missing(field), format!("`{field}` is missing"), None)
    }
}

fn in_plain_words(wanted: String) -> String {
    match wanted.as_str() {
        "a string" => "text in quotes".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "a list".into(),
        "a map" => "a table".into(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number".into(),
        other if other.starts_with("struct ") => "a table".into(),
        other if other.starts_with("enum ") => "text in quotes".into(),
        _ => wanted,
    }
}

fn kind_of(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(_) => "true or false".into(),
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a whole number".into(),
        Unexpected::Float(_) => "a number".into(),
        Unexpected::Str(_) | Unexpected::Char(_) => "text".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a table".into(),
        other => other.to_string(),
    }
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Str(text) => format!("\"{text}\""),
        other => other.to_string(),
    }
}
