//! Header edits as written, checked: nothing that frames a message or belongs to one connection,
//! and nothing that could end a line early.

use crate::draft::HeaderSpec;
use crate::plan::{HeaderEdit, Problem};
use crate::route::pattern::token_byte;

/// Fields that say where a message ends or speak of one connection (RFC 9110 section 7.6.1): the
/// gateway alone writes them.
const OURS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

pub(crate) fn compile(spec: HeaderSpec, path: &str, problems: &mut Vec<Problem>) -> HeaderEdit {
    let mut edit = HeaderEdit::default();
    for (name, value) in spec.set {
        let path = format!("{path}.set.{name}");
        let lower = name.to_ascii_lowercase();
        check_name(&name, &path, problems);
        if !is_value(&value) {
            problems.push(Problem {
                path: path.clone(),
                message: format!("`{}` cannot be a header's value", value.escape_debug()),
                hint: Some("no line breaks and no control characters".to_owned()),
            });
        }
        if edit.set.iter().any(|(n, _)| *n == lower) {
            problems.push(twice(&path, &lower));
        }
        edit.set.push((lower, value));
    }
    for (i, name) in spec.remove.into_iter().enumerate() {
        let path = format!("{path}.remove[{i}]");
        let lower = name.to_ascii_lowercase();
        check_name(&name, &path, problems);
        if lower == "host" {
            let hint = Some("every request names one: set it to another instead".to_owned());
            let message = "`host` cannot be removed".to_owned();
            problems.push(Problem { path: path.clone(), message, hint });
        }
        if edit.remove.contains(&lower) || edit.set.iter().any(|(n, _)| *n == lower) {
            problems.push(twice(&path, &lower));
        }
        edit.remove.push(lower);
    }
    edit
}

/// Visible ASCII, spaces, tabs and obs-text, without space around (RFC 9110 section 5.5).
pub(crate) fn is_value(value: &str) -> bool {
    let byte = |b: u8| b == b'\t' || (b' '..=b'~').contains(&b) || b >= 0x80;
    value.bytes().all(byte) && value.trim_matches([' ', '\t']) == value
}

fn check_name(name: &str, path: &str, problems: &mut Vec<Problem>) {
    let mut problem = |message: String, hint: &str| {
        problems.push(Problem { path: path.to_owned(), message, hint: Some(hint.to_owned()) });
    };
    if name.is_empty() || !name.bytes().all(token_byte) {
        let hint = "letters, digits and - . _ (RFC 9110 section 5.6.2)";
        problem(format!("`{}` is not a header name", name.escape_debug()), hint);
    } else if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        let hint = "it frames the message or belongs to one connection: the gateway writes it";
        problem(format!("`{name}` cannot be edited"), hint);
    }
}

fn twice(path: &str, name: &str) -> Problem {
    let hint = Some("edit each field once; names have no case".to_owned());
    Problem { path: path.to_owned(), message: format!("`{name}` is edited twice"), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(set: &[(&str, &str)], remove: &[&str]) -> (HeaderEdit, Vec<String>) {
        let spec = HeaderSpec {
            set: set.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            remove: remove.iter().map(|n| (*n).to_owned()).collect(),
        };
        let mut problems = Vec::new();
        let edit = compile(spec, "h", &mut problems);
        (edit, problems.into_iter().map(|p| p.path).collect())
    }

    #[test]
    fn names_come_out_in_lower_case() {
        let (edit, found) = problems(&[("X-Env", "blue \u{e4}")], &["Server"]);
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(edit.set, [("x-env".to_owned(), "blue \u{e4}".to_owned())]);
        assert_eq!(edit.remove, ["server"]);
    }

    #[test]
    fn what_could_break_a_message_is_refused() {
        type Edits<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a [&'a str]);
        let table: [Edits<'_>; 10] = [
            (&[("Content-Length", "1")], &[], &["h.set.Content-Length"]),
            (&[], &["transfer-encoding", "Connection"], &["h.remove[0]", "h.remove[1]"]),
            (&[("x", "a\r\nb: c")], &[], &["h.set.x"]),
            (&[("x", "a\0")], &[], &["h.set.x"]),
            (&[("x", " a")], &[], &["h.set.x"]),
            (&[("a b", "1"), ("", "2")], &[], &["h.set.", "h.set.a b"]),
            (&[("x:", "1")], &[], &["h.set.x:"]),
            (&[("X", "1"), ("x", "2")], &[], &["h.set.x"]),
            (&[("x", "1")], &["X"], &["h.remove[0]"]),
            (&[], &["Host"], &["h.remove[0]"]),
        ];
        for (set, remove, paths) in table {
            assert_eq!(problems(set, remove).1, paths, "{set:?} {remove:?}");
        }
    }
}
