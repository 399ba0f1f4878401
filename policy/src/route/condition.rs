//! What else must hold for a route to match: header, query, cookie, client network.

use crate::draft::WhereSpec;
use crate::facts::Facts;
use crate::mechanism::ranges::Networks;
use crate::plan::Problem;
use crate::route::pattern::token_byte;

/// Every one of them must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    fields: Vec<Condition>,
    from: Networks,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    place: Place,
    name: String,
    /// None: present, with any value.
    value: Option<String>,
}

/// Where a name is looked for. The first of that name counts, so that two conditions with
/// different values can never hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Header,
    Query,
    Cookie,
}

impl Conditions {
    /// `path` is where the route is written.
    pub(crate) fn compile(spec: &WhereSpec, path: &str, problems: &mut Vec<Problem>) -> Self {
        let mut fields = Vec::new();
        let places = [
            (Place::Header, "header", &spec.header),
            (Place::Query, "query", &spec.query),
            (Place::Cookie, "cookie", &spec.cookie),
        ];
        for (place, word, wanted) in places {
            for (name, value) in wanted {
                let token = !name.is_empty() && name.bytes().all(token_byte);
                if name.is_empty() || (!token && place != Place::Query) {
                    problems.push(Problem {
                        path: format!("{path}.where.{word}.{name}"),
                        message: format!("`{name}` is not a {word} name"),
                        hint: None,
                    });
                }
                let value = (value != "*").then(|| value.clone());
                fields.push(Condition { place, name: name.clone(), value });
            }
        }
        Self { fields, from: Networks::new(&spec.from) }
    }

    pub(crate) fn hold(&self, facts: &Facts<'_>) -> bool {
        self.fields.iter().all(|c| c.holds(facts))
            && (self.from.is_empty() || self.from.contains(facts.client))
    }

    /// More of them is more specific.
    pub(crate) fn count(&self) -> usize {
        self.fields.len() + usize::from(!self.from.is_empty())
    }

    /// Whether some request meets both.
    pub(crate) fn overlap(&self, other: &Self) -> bool {
        let apart = |a: &Condition, b: &Condition| {
            a.place == b.place
                && a.place.same_name(&a.name, &b.name)
                && a.value.is_some()
                && b.value.is_some()
                && a.value != b.value
        };
        !self.fields.iter().any(|a| other.fields.iter().any(|b| apart(a, b)))
            && (self.from.is_empty() || other.from.is_empty() || self.from.overlaps(&other.from))
    }
}

impl Place {
    fn same_name(self, a: &str, b: &str) -> bool {
        match self {
            Self::Header => a.eq_ignore_ascii_case(b),
            Self::Query | Self::Cookie => a == b,
        }
    }
}

impl Condition {
    fn holds(&self, facts: &Facts<'_>) -> bool {
        let wanted = self.value.as_ref().map(String::as_bytes);
        match self.place {
            Place::Header => meets(facts.headers.get(&self.name), wanted),
            Place::Cookie => meets(cookie(facts, self.name.as_bytes()), wanted),
            Place::Query => {
                let found = facts.query.split('&').find_map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (!pair.is_empty() && decoded(name).eq(self.name.bytes())).then_some(value)
                });
                found.is_some_and(|v| wanted.is_none_or(|w| decoded(v).eq(w.iter().copied())))
            }
        }
    }
}

fn meets(found: Option<&[u8]>, wanted: Option<&[u8]>) -> bool {
    found.is_some_and(|found| wanted.is_none_or(|wanted| found == wanted))
}

/// The first cookie of that name (RFC 6265 section 4.2.1).
pub(crate) fn cookie<'a>(facts: &Facts<'a>, name: &[u8]) -> Option<&'a [u8]> {
    let (name_len, headers) = (name.len(), facts.headers);
    for field in headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(b"cookie")).map(|(_, v)| v) {
        for pair in field.split(|b| *b == b';') {
            let pair = pair.trim_ascii();
            if pair.get(..name_len) == Some(name) && pair.get(name_len) == Some(&b'=') {
                return pair.get(name_len + 1..);
            }
        }
    }
    None
}

/// As a form is encoded: `+` is a space, `%XX` a byte; a lone `%` stands for itself.
fn decoded(text: &str) -> impl Iterator<Item = u8> {
    let mut rest = text.as_bytes();
    core::iter::from_fn(move || {
        let (first, tail) = rest.split_first()?;
        rest = tail;
        if *first == b'%'
            && let [high, low, tail @ ..] = tail
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            rest = tail;
            return Some(high << 4 | low);
        }
        Some(if *first == b'+' { b' ' } else { *first })
    })
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sim::{Head, facts};

    fn one(place: &str, name: &str, value: &str) -> Conditions {
        let map = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let spec = match place {
            "header" => WhereSpec { header: map, ..WhereSpec::default() },
            "query" => WhereSpec { query: map, ..WhereSpec::default() },
            _ => WhereSpec { cookie: map, ..WhereSpec::default() },
        };
        let mut problems = Vec::new();
        let conditions = Conditions::compile(&spec, "route.r", &mut problems);
        assert_eq!(problems, []);
        conditions
    }

    #[test]
    fn fields_are_found_where_they_are_looked_for() {
        let head = Head::new(&[
            ("X-Colour", "blue"),
            ("x-colour", "red"),
            ("Cookie", "a=1; b=2"),
            ("cookie", "c=x=y"),
        ]);
        let query = "q=1&q=2&empty=&flag&sp%61ce=a+b%20c&bad=%zz";
        let facts = Facts { query, headers: head.headers(), ..facts("/") };
        // (place, name, value, holds)
        let table = [
            ("header", "x-colour", "blue", true),
            ("header", "X-COLOUR", "*", true),
            ("header", "x-colour", "red", false),
            ("header", "x-other", "*", false),
            ("cookie", "a", "1", true),
            ("cookie", "b", "2", true),
            ("cookie", "b", "1", false),
            ("cookie", "c", "x=y", true),
            ("cookie", "A", "*", false),
            ("query", "q", "1", true),
            ("query", "q", "2", false),
            ("query", "empty", "", true),
            ("query", "flag", "*", true),
            ("query", "space", "a b c", true),
            ("query", "bad", "%zz", true),
            ("query", "nope", "*", false),
        ];
        for (place, name, value, holds) in table {
            assert_eq!(one(place, name, value).hold(&facts), holds, "{place} {name}={value}");
        }
    }

    #[test]
    fn conditions_that_exclude_each_other_do_not_overlap() {
        let a = |value: &str| one("header", "x-a", value);
        assert!(!a("1").overlap(&a("2")));
        assert!(a("1").overlap(&a("1")) && a("1").overlap(&a("*")));
        assert!(a("1").overlap(&one("header", "x-b", "2")));
        assert!(a("1").overlap(&one("query", "x-a", "2")));
    }
}
