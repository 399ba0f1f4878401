//! Capabilities that this version does not have yet. Their keys are refused plainly instead of as
//! unknown, and what stands in them is looked at, so that one run still finds every mistake.

use serde::Deserialize;
use sluice_policy::unit::Ratio;

use crate::document::Document;
use crate::reader::{Depends, Fault, Keys, Reader};

/// Notes every key of a later version and keeps the reader from it.
pub(crate) fn refuse(document: &Document<'_>, reader: &mut Reader) {
    for later in LATER {
        for path in later.pattern.paths(document) {
            let before = reader.faults.len();
            if let Some(look) = later.look {
                look(document, &path, reader);
            }
            reader.skip(&path);
            let mine = reader.faults.get_mut(before..).unwrap_or_default();
            let note = format!("{} is not in this version", later.what);
            if mine.is_empty() {
                let span = document.key_span(&path);
                let hint = Some("take it out; what it would do is not done".to_owned());
                reader.note(Fault { path, span, message: note, hint, depends: Depends::Nothing });
                continue;
            }
            // One problem a key: what is wrong inside stands for the key, and says so.
            for fault in mine {
                fault.hint = Some(match fault.hint.take() {
                    Some(hint) => format!("{hint}; besides, {note}"),
                    None => note.clone(),
                });
            }
        }
    }
}

/// Each key as a person would write it, and what it will be for.
pub(crate) fn keys() -> impl Iterator<Item = (String, &'static str)> {
    LATER.iter().map(|later| {
        let key = match later.pattern {
            Pattern::Root(key) => format!("[{key}]"),
            Pattern::Named(first, key) => format!("{first}.NAME.{key}"),
            Pattern::Listener(key) => format!("server.listen[].{key}"),
        };
        (key, later.what)
    })
}

struct Later {
    pattern: Pattern,
    /// As in "… is not in this version".
    what: &'static str,
    look: Option<fn(&Document<'_>, &str, &mut Reader)>,
}

/// Where a key may stand.
enum Pattern {
    Root(&'static str),
    /// In each `[first.NAME]`.
    Named(&'static str, &'static str),
    /// In each element of `server.listen`.
    Listener(&'static str),
}

impl Pattern {
    fn paths(&self, document: &Document<'_>) -> Vec<String> {
        match self {
            Self::Root(key) => document.at(&[key]).map(|_| (*key).to_owned()).into_iter().collect(),
            Self::Named(first, key) => document
                .named(first)
                .filter(|(_, node)| node.get_ref().get(*key).is_some())
                .map(|(name, _)| format!("{first}.{name}.{key}"))
                .collect(),
            Self::Listener(key) => {
                let listen = document.at(&["server", "listen"]);
                let elements = listen.and_then(|listen| listen.get_ref().as_array());
                let elements = elements.into_iter().flatten().enumerate();
                elements
                    .filter(|(_, node)| node.get_ref().get(*key).is_some())
                    .map(|(i, _)| format!("server.listen[{i}].{key}"))
                    .collect()
            }
        }
    }
}

const fn later(pattern: Pattern, what: &'static str) -> Later {
    Later { pattern, what, look: None }
}

const LATER: &[Later] = &[
    later(Pattern::Root("auth"), "authentication"),
    later(Pattern::Root("tenant"), "telling tenants apart"),
    later(Pattern::Root("tls"), "TLS"),
    later(Pattern::Listener("tls"), "TLS"),
    later(Pattern::Named("route", "auth"), "authentication"),
    later(Pattern::Named("route", "allow"), "authorization"),
    Later {
        look: Some(canary),
        ..later(Pattern::Named("route", "canary"), "sending a share to a canary")
    },
];

fn read<T: for<'d> Deserialize<'d>>(document: &Document<'_>, path: &str, reader: &mut Reader) {
    let keys: Vec<&str> = path.split('.').collect();
    if let Some(node) = document.at(&keys) {
        reader.read::<T>(path, document.key_span(path), node, Keys::All);
    }
}

fn canary(document: &Document<'_>, path: &str, reader: &mut Reader) {
    read::<Canary>(document, path, reader);
    crate::check::reference(document, reader, &format!("{path}.to"), "upstream");
}

// Read for their mistakes alone.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read for its mistakes; nothing is done with it yet")]
struct Canary {
    to: String,
    share: Option<Ratio>,
    sticky: Option<String>,
}
