//! Mistakes in the TOML itself, one for each place, and the text without them.
//!
//! A parser that goes on after an unclosed bracket misunderstands everything behind it. So a text
//! that is not TOML is cut into entries (a header, or a key and its value), each of which must
//! hold alone. One that does not is noted and blanked, and the rest is read as if it were not
//! there.

use core::ops::Range;
use std::borrow::Cow;

use toml::de::DeTable;

use crate::reader::{Depends, Fault};
use crate::secret::secret_value;

/// A text that parses, as far as that can be had, with all bytes where they were.
#[derive(Debug)]
pub(crate) struct Recovered<'t> {
    pub(crate) text: Cow<'t, str>,
    pub(crate) faults: Vec<Fault>,
    /// A table went missing with its name, so what refers to it cannot be judged.
    pub(crate) tables_lost: bool,
}

pub(crate) fn recover(text: &str) -> Recovered<'_> {
    let errors = DeTable::parse_recoverable(text).1;
    let mut recovered = Recovered { text: text.into(), faults: Vec::new(), tables_lost: false };
    if errors.is_empty() {
        return recovered;
    }
    let mut clean = text.to_owned();
    let entries = entries(text);
    let mut next = 0;
    let mut lost_header = false;
    while let Some(entry) = entries.get(next) {
        let (last, error) = extend(text, &entries[next..]);
        let span = entry.start..entries[next + last].end;
        let header = is_header(&text[entry.clone()]);
        lost_header = if header { error.is_some() } else { lost_header };
        recovered.tables_lost |= lost_header;
        if error.is_some() || lost_header {
            blank(&mut clean, span);
        }
        if let Some(error) = error {
            recovered.faults.push(fault(text, &error, entry.start));
        }
        next += last + 1;
    }
    // What holds alone may still contradict the rest: a key that is written twice.
    let errors = DeTable::parse_recoverable(&clean).1;
    recovered.faults.extend(errors.iter().map(|error| fault(text, error, 0)));
    recovered.text = clean.into();
    recovered
}

/// How many more entries the first one takes to hold: its value may be a text of several lines
/// that look like entries. The error when it never does.
fn extend(text: &str, entries: &[Range<usize>]) -> (usize, Option<toml::de::Error>) {
    let mut first = None;
    for (last, entry) in entries.iter().enumerate().take(EXTENSION_MAX) {
        let mut errors = DeTable::parse_recoverable(&text[entries[0].start..entry.end]).1;
        if errors.is_empty() {
            return (last, None);
        }
        first.get_or_insert_with(|| errors.swap_remove(0));
    }
    (0, first)
}

/// Where each entry begins and ends: from a line that looks like the start of one to the next.
fn entries(text: &str) -> Vec<Range<usize>> {
    let mut starts = vec![0];
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if offset > 0 && (is_header(line) || is_key(line)) {
            starts.push(offset);
        }
        offset += line.len();
    }
    let ends = starts[1..].iter().copied().chain([text.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// `[name]`, or what was meant to be one. A list in a list ends in a comma or holds one.
fn is_header(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or(line).trim();
    line.strip_prefix('[').is_some_and(|rest| {
        let name = rest.trim_start_matches('[').trim_end_matches(']');
        !name.is_empty() && name.chars().all(in_name)
    })
}

/// `name = …`.
fn is_key(line: &str) -> bool {
    line.split_once('=').is_some_and(|(name, _)| {
        let name = name.trim();
        !name.is_empty() && name.chars().all(in_name)
    })
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || "-_.\"' ".contains(c)
}

fn blank(text: &mut String, span: Range<usize>) {
    let spaces: String =
        text[span.clone()].bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect();
    text.replace_range(span, &spaces);
}

fn fault(text: &str, error: &toml::de::Error, offset: usize) -> Fault {
    let span =
        error.span().map_or(text.len()..text.len(), |span| span.start + offset..span.end + offset);
    let (message, expected) = match error.message().split_once(", expected ") {
        Some((message, expected)) => (message, Some(expected)),
        None => (error.message(), None),
    };
    let written = text.get(span.clone()).unwrap_or_default();
    let word = |c: char| c.is_alphanumeric() || "-_./%:".contains(c);
    let line = text.get(..span.start).and_then(|before| before.lines().last()).unwrap_or_default();
    let hint = match expected {
        // The key alone makes a secret of what follows.
        _ if secret_value(line).is_some() => None,
        _ if message.contains("must be quoted") && written.chars().all(word) => {
            Some(format!("write \"{written}\""))
        }
        Some(expected) => Some(format!("expected {expected}")),
        None => None,
    };
    let path = String::new();
    Fault { path, span, message: message.to_owned(), hint, depends: Depends::Nothing }
}

/// How many lines that look like entries may be part of one text.
const EXTENSION_MAX: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_that_is_not_toml_is_one_fault_and_the_rest_is_left() {
        for (text, places, left) in [
            ("a = 1\nb = 2\n", &[][..], "a = 1\nb = 2\n"),
            ("a = [1\nb = 2\n[c]\nd = 3\n", &[6][..], "      \nb = 2\n[c]\nd = 3\n"),
            ("[a]\nb = \"x\nc = 2\n", &[10], "[a]\n      \nc = 2\n"),
            ("[a\nb = 1\n[c]\nd = 2\n", &[2], "  \n     \n[c]\nd = 2\n"),
            ("a = 5s\nb = x\n", &[4, 11], "      \n     \n"),
            // A text of several lines that look like entries holds, and so does a list of lists.
            ("a = '''\nb = 1\nc = 2'''\nd = x\n", &[27], "a = '''\nb = 1\nc = 2'''\n     \n"),
            ("a = [\n[1, 2],\n[3],\n]\nb = x\n", &[25], "a = [\n[1, 2],\n[3],\n]\n     \n"),
            ("a = \"\"\"\nb = 1\nc = 2\n", &[8], "       \nb = 1\nc = 2\n"),
        ] {
            let recovered = recover(text);
            let found: Vec<usize> = recovered.faults.iter().map(|f| f.span.start).collect();
            assert_eq!((&*recovered.text, &*found), (left, places), "{text}");
        }
    }
}
