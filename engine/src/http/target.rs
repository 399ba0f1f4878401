//! The path by which a request is judged: RFC 3986 section 6.2.2 normalisation, and refusal of
//! what one server would read one way and the next another.
//!
//! Almost every path is normal already; then nothing is copied. Escapes of unreserved characters
//! are decoded for judging alone: with or without them a path means the same to every server. Dot
//! segments and doubled slashes do not, so where there were any the upstream gets the path that
//! was judged.

use sluice_config::EncodedSlashes;

/// Why a path is refused with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadPath {
    /// A `%` without two hexadecimal digits.
    Escape,
    /// `%00`, `%2F`, `%5C`, `\`, `..;`: servers disagree on what these mean.
    Ambiguous,
    /// More `..` than there are segments.
    AboveRoot,
}

/// How the normal form differs from what came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Not at all.
    Normal,
    /// In its escapes: the same to every server.
    Escaped,
    /// In its segments.
    Crooked,
}

/// Put the normal form of `path` into `out`, unless it is normal as it is.
pub(crate) fn normalise(
    path: &str,
    slashes: EncodedSlashes,
    out: &mut String,
) -> Result<Form, BadPath> {
    if is_plain(path.as_bytes()) {
        return Ok(Form::Normal);
    }
    out.clear();
    decode_unreserved(path, slashes, out)?;
    let before = out.len();
    remove_dots(out)?;
    // Removing segments always makes it shorter.
    Ok(match (out.len() < before, out == path) {
        (true, _) => Form::Crooked,
        (false, true) => Form::Normal,
        (false, false) => Form::Escaped,
    })
}

/// True when nothing in it can need a change. May be false for a normal path.
fn is_plain(path: &[u8]) -> bool {
    let mut last = 0;
    for &b in path {
        if matches!(b, b'%' | b'\\' | b';') || last == b'/' && matches!(b, b'/' | b'.') {
            return false;
        }
        last = b;
    }
    true
}

/// RFC 3986 section 6.2.2.2: an escaped unreserved character is that character.
fn decode_unreserved(path: &str, slashes: EncodedSlashes, out: &mut String) -> Result<(), BadPath> {
    let mut rest = path;
    while let Some(at) = rest.find(['%', '\\']) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        if special.starts_with('\\') {
            return Err(BadPath::Ambiguous);
        }
        let digits = special.get(1..3).ok_or(BadPath::Escape)?;
        let byte = hex(digits).ok_or(BadPath::Escape)?;
        match byte {
            0 => return Err(BadPath::Ambiguous),
            b'/' | b'\\' if slashes == EncodedSlashes::Reject => return Err(BadPath::Ambiguous),
            b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                out.push(char::from(byte));
            }
            // Upper case, as routes have them (section 6.2.2.1).
            _ => out.extend(special[..3].chars().map(|c| c.to_ascii_uppercase())),
        }
        rest = &special[3..];
    }
    out.push_str(rest);
    Ok(())
}

fn hex(digits: &str) -> Option<u8> {
    // from_str_radix takes a sign; a URI does not.
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// RFC 3986 section 5.2.4, and doubled slashes become one.
fn remove_dots(path: &mut String) -> Result<(), BadPath> {
    let given = std::mem::take(path);
    let mut segments = given.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "" if !last => {}
            "." if !last => {}
            "" | "." => path.push('/'),
            ".." => {
                let parent = path.rfind('/').ok_or(BadPath::AboveRoot)?;
                path.truncate(parent);
                if last {
                    path.push('/');
                }
            }
            // Servlet containers cut path parameters before they look at dots.
            _ if matches!(segment.split(';').next(), Some("." | "..")) => {
                return Err(BadPath::Ambiguous);
            }
            _ => {
                path.push('/');
                path.push_str(segment);
            }
        }
    }
    if path.is_empty() {
        path.push('/');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> Result<String, BadPath> {
        let mut out = String::new();
        let form = normalise(path, EncodedSlashes::Reject, &mut out)?;
        Ok(if form == Form::Normal { path.to_owned() } else { out })
    }

    #[test]
    fn paths_are_judged_in_their_normal_form() {
        let table = [
            ("/", "/"),
            ("/a/b.c", "/a/b.c"),
            ("/a/.b/..c/...", "/a/.b/..c/..."),
            ("//secret", "/secret"),
            ("/%73ecret", "/secret"),
            ("/a//b///c", "/a/b/c"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/", "/a/"),
            ("/a//", "/a/"),
            ("/%c3%a9", "/%C3%A9"),
            ("/%252e", "/%252e"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/é", "/é"),
        ];
        for (path, expected) in table {
            assert_eq!(normal(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn paths_that_servers_read_differently_are_refused() {
        let table = [
            ("/a%2Fb", BadPath::Ambiguous),
            ("/a%5cb", BadPath::Ambiguous),
            ("/a\\b", BadPath::Ambiguous),
            ("/a%00", BadPath::Ambiguous),
            ("/a/..;x/b", BadPath::Ambiguous),
            ("/a/.;/b", BadPath::Ambiguous),
            ("/..", BadPath::AboveRoot),
            ("/a/../../b", BadPath::AboveRoot),
            ("/%", BadPath::Escape),
            ("/%4", BadPath::Escape),
            ("/%+1", BadPath::Escape),
            ("/%zz", BadPath::Escape),
            ("/%é", BadPath::Escape),
        ];
        for (path, expected) in table {
            assert_eq!(normal(path), Err(expected), "{path}");
        }
    }

    #[test]
    fn only_segments_make_a_path_crooked() {
        let table = [
            ("/%73ecret", Form::Escaped),
            ("//secret", Form::Crooked),
            ("/a/%2e/b", Form::Crooked),
            ("/a/..", Form::Crooked),
            ("/a;b", Form::Normal),
            ("/%C3%A9", Form::Normal),
            ("/%c3%a9", Form::Escaped),
        ];
        for (path, expected) in table {
            let form = normalise(path, EncodedSlashes::Reject, &mut String::new());
            assert_eq!(form, Ok(expected), "{path}");
        }
    }

    #[test]
    fn an_encoded_slash_may_be_kept_and_then_stays_encoded() {
        let mut out = String::new();
        assert_eq!(normalise("/a%2Fb", EncodedSlashes::Keep, &mut out), Ok(Form::Normal));
    }

    proptest::proptest! {
        #[test]
        fn a_normal_form_is_its_own_normal_form(path in "/[a-c./%2eE;\\\\é]{0,24}") {
            if let Ok(once) = normal(&path) {
                proptest::prop_assert_eq!(normal(&once), Ok(once.clone()));
                proptest::prop_assert!(!once.split('/').any(|s| s == "." || s == ".."));
            }
        }
    }
}
