//! `[METHOD[,METHOD]] [host]/path` as written, read into what it means.

use crate::plan::Problem;

/// Segments a written path may have, so that looking one up is bounded, too.
const SEGMENTS_MAX: usize = 64;

/// What a route's match text says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Sorted, each once. Empty: any.
    pub(crate) methods: Vec<String>,
    pub(crate) host: Host,
    pub(crate) segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Any,
    /// The part after `*.`, lower case: `*.acme.dev` is any host with labels before `.acme.dev`.
    Wildcard(String),
    /// Lower case.
    Exact(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(String),
    /// `{name}`: one segment that is not empty.
    Param,
    /// `{*rest}`: whatever follows, also nothing. `/a/{*rest}` matches `/a`, `/a/` and `/a/b/c`.
    Rest,
}

impl Pattern {
    /// The message and the hint say what is wrong with the text and what would be right.
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let mut words = text.split_whitespace();
        let (methods, place) = match (words.next(), words.next(), words.next()) {
            (Some(place), None, _) => ("", place),
            (Some(methods), Some(place), None) => (methods, place),
            (None, ..) => return Err(wrong("nothing to match", SHAPE)),
            (Some(_), Some(_), Some(_)) => return Err(wrong("more than two words", SHAPE)),
        };
        let Some(slash) = place.find('/') else {
            return Err(wrong(&format!("no path in `{place}`"), SHAPE));
        };
        let (host, path) = place.split_at(slash);
        Ok(Self {
            methods: parse_methods(methods)?,
            host: parse_host(host)?,
            segments: parse_path(path)?,
        })
    }
}

const SHAPE: &str =
    "write `[METHOD[,METHOD]] [host]/path`, like `GET,POST api.acme.dev/v1/{*rest}`";

fn wrong(message: &str, hint: &str) -> Problem {
    Problem { path: String::new(), message: message.to_owned(), hint: Some(hint.to_owned()) }
}

fn parse_methods(text: &str) -> Result<Vec<String>, Problem> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut methods = Vec::new();
    for method in text.split(',') {
        if method.is_empty() || !method.bytes().all(token_byte) {
            return Err(wrong(&format!("`{method}` is not a method"), SHAPE));
        }
        if method.bytes().any(|b| b.is_ascii_lowercase()) {
            let hint =
                format!("methods are case-sensitive: write `{}`", method.to_ascii_uppercase());
            return Err(wrong(&format!("`{method}` is not a method in use"), &hint));
        }
        methods.push(method.to_owned());
    }
    methods.sort_unstable();
    methods.dedup();
    Ok(methods)
}

fn parse_host(text: &str) -> Result<Host, Problem> {
    if text.is_empty() || text == "*" {
        return Ok(Host::Any);
    }
    if text.contains(':') && !text.starts_with('[') {
        return Err(wrong(
            &format!("a port in the host `{text}`"),
            "leave the port out: hosts match on any port",
        ));
    }
    let (name, wildcard) = match text.strip_prefix("*.") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let address = !wildcard && name.starts_with('[') && name.ends_with(']');
    let label = |l: &str| {
        let byte = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&l.len()) && l.bytes().all(byte)
    };
    let named = name.len() <= 253 && name.split('.').all(label);
    if !address && !named {
        let hint = "a host is a name, or `*.` and a name: `*.acme.dev`";
        return Err(wrong(&format!("`{text}` is not a host"), hint));
    }
    Ok(if wildcard { Host::Wildcard(name) } else { Host::Exact(name) })
}

fn parse_path(path: &str) -> Result<Vec<Segment>, Problem> {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if parts.len() > SEGMENTS_MAX {
        let message = format!("a path of {} segments", parts.len());
        return Err(wrong(&message, &format!("at most {SEGMENTS_MAX}")));
    }
    let last = parts.len() - 1;
    parts.iter().enumerate().map(|(i, part)| parse_segment(part, i == last)).collect()
}

fn parse_segment(text: &str, last: bool) -> Result<Segment, Problem> {
    if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        let (name, rest) = match inner.strip_prefix('*') {
            Some(name) => (name, true),
            None => (inner, false),
        };
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        {
            return Err(wrong(&format!("`{text}` has no name"), "write `{id}` or `{*rest}`"));
        }
        return match (rest, last) {
            (true, false) => Err(wrong(
                &format!("`{text}` is not at the end"),
                "`{*rest}` takes everything that follows",
            )),
            (true, true) => Ok(Segment::Rest),
            (false, _) => Ok(Segment::Param),
        };
    }
    if text.contains(['{', '}', '*']) {
        let hint = "`{name}` takes a whole segment, `{*rest}` all that follow";
        return Err(wrong(&format!("`{text}` mixes text and braces"), hint));
    }
    if text == "." || text == ".." || (text.is_empty() && !last) {
        let hint = "requests are matched after dot segments and doubled slashes are gone";
        return Err(wrong(&format!("the segment `{text}` can never match"), hint));
    }
    if !text.bytes().all(|b| b.is_ascii_graphic() && !b"?#\"<>\\^`|".contains(&b)) {
        let hint = "a path has no query, and other characters are written as %XX";
        return Err(wrong(&format!("`{text}` holds what no path can"), hint));
    }
    decode_unreserved(text).map(Segment::Literal)
}

/// As requests are: escapes of unreserved characters decoded (RFC 3986 section 6.2.2), the others
/// in upper case.
fn decode_unreserved(text: &str) -> Result<String, Problem> {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..2).filter(|c| c.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = code.and_then(|c| u8::from_str_radix(c, 16).ok());
        let (Some(code), Some(byte)) = (code, byte) else {
            return Err(wrong(
                &format!("`%{piece}` is not an escape"),
                "write `%` and two hex digits",
            ));
        };
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            decoded.push(char::from(byte));
        } else {
            decoded.push('%');
            decoded.push_str(&code.to_ascii_uppercase());
        }
        decoded.push_str(&piece[2..]);
    }
    Ok(decoded)
}

/// RFC 9110 section 5.6.2.
pub(crate) const fn token_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric()
        || matches!(
            b,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lit(text: &str) -> Segment {
        Segment::Literal(text.to_owned())
    }

    #[test]
    fn texts_are_read() {
        let exact = |h: &str| Host::Exact(h.to_owned());
        let wild = |h: &str| Host::Wildcard(h.to_owned());
        let table: [(&str, &[&str], Host, Vec<Segment>); 10] = [
            ("/", &[], Host::Any, vec![lit("")]),
            ("*/a", &[], Host::Any, vec![lit("a")]),
            ("GET /a/b", &["GET"], Host::Any, vec![lit("a"), lit("b")]),
            ("POST,GET,GET /a/", &["GET", "POST"], Host::Any, vec![lit("a"), lit("")]),
            ("Api.Acme.dev/{*rest}", &[], exact("api.acme.dev"), vec![Segment::Rest]),
            ("*.Acme.dev/{id}/x", &[], wild("acme.dev"), vec![Segment::Param, lit("x")]),
            ("  PUT   a.b./  ", &["PUT"], exact("a.b"), vec![lit("")]),
            ("[::1]/", &[], exact("[::1]"), vec![lit("")]),
            ("/%7euser/a%2fb", &[], Host::Any, vec![lit("~user"), lit("a%2Fb")]),
            ("M-SEARCH /", &["M-SEARCH"], Host::Any, vec![lit("")]),
        ];
        for (text, methods, host, segments) in table {
            let methods = methods.iter().map(|m| (*m).to_owned()).collect();
            assert_eq!(Pattern::parse(text), Ok(Pattern { methods, host, segments }), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        // (text, part of the message)
        let table = [
            ("", "nothing"),
            ("GET", "no path"),
            ("GET a b/", "more than two"),
            ("get /", "`get`"),
            ("GET, /", "``"),
            ("a.b:80/", "a port"),
            ("a..b/", "`a..b`"),
            ("*.*.b/", "`*.*.b`"),
            ("/{*rest}/a", "not at the end"),
            ("/{}", "no name"),
            ("/a{id}", "mixes"),
            ("/a/*", "mixes"),
            ("/a//b", "can never match"),
            ("/a/../b", "can never match"),
            ("/a?b", "no path can"),
            ("/ä", "no path can"),
            ("/%zz", "not an escape"),
            ("/%", "not an escape"),
        ];
        for (text, part) in table {
            let problem = Pattern::parse(text).unwrap_err();
            assert!(problem.message.contains(part), "{text}: {}", problem.message);
            assert!(problem.hint.is_some(), "{text}");
        }
        let deep = "/a".repeat(SEGMENTS_MAX + 1);
        assert!(Pattern::parse(&deep).is_err());
    }
}
