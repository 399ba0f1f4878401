//! Host + path + method + … → route. The most specific match wins; order of writing never matters.

pub(crate) mod condition;
pub(crate) mod pattern;
mod trie;

use core::cmp::Ordering;

use crate::draft::RouteSpec;
use crate::facts::Facts;
use crate::plan::{Problem, RouteId};
use crate::route::condition::Conditions;
use crate::route::pattern::{Host, Pattern, Segment};
use crate::route::trie::Trie;

/// Which requests a route takes.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    pattern: Pattern,
    also: Conditions,
}

/// How specific a matcher is. The greater wins, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    host: HostRank,
    path: PathRank,
    /// A method is given.
    method: bool,
    conditions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HostRank {
    Any,
    /// How many labels stand after the `*.`
    Wildcard(usize),
    Exact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathRank {
    /// Neither parameters nor a rest.
    exact: bool,
    literals: usize,
    params: usize,
    /// No rest.
    bounded: bool,
}

/// What was found for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    Route(RouteId),
    /// Routes match all but the method.
    Method,
    None,
}

/// Every route, ready to be looked up without allocating.
#[derive(Debug, Default)]
pub(crate) struct Table {
    matchers: Vec<Matcher>,
    /// Sorted by name, without case.
    exact: Vec<(String, Trie)>,
    wildcard: Vec<(String, Trie)>,
    any: Trie,
}

impl Matcher {
    pub(crate) fn compile(
        spec: &RouteSpec,
        path: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let also = Conditions::compile(&spec.also, path, problems);
        match Pattern::parse(&spec.matches) {
            Ok(pattern) => Some(Self { pattern, also }),
            Err(problem) => {
                problems.push(Problem { path: format!("{path}.match"), ..problem });
                None
            }
        }
    }

    fn precedence(&self) -> Precedence {
        let host = match &self.pattern.host {
            Host::Any => HostRank::Any,
            Host::Wildcard(name) => HostRank::Wildcard(name.split('.').count()),
            Host::Exact(_) => HostRank::Exact,
        };
        let count = |wanted: fn(&Segment) -> bool| {
            self.pattern.segments.iter().filter(|s| wanted(s)).count()
        };
        let params = count(|s| *s == Segment::Param);
        let bounded = !self.pattern.segments.contains(&Segment::Rest);
        let literals = count(|s| matches!(s, Segment::Literal(_)));
        Precedence {
            host,
            path: PathRank { exact: bounded && params == 0, literals, params, bounded },
            method: !self.pattern.methods.is_empty(),
            conditions: self.also.count(),
        }
    }

    /// Whether some request matches both, given that both have the same precedence.
    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (&self.pattern, &other.pattern);
        a.host == b.host
            && paths_overlap(&a.segments, &b.segments)
            && (a.methods.is_empty() || a.methods.iter().any(|m| b.methods.contains(m)))
            && self.also.overlap(&other.also)
    }
}

fn paths_overlap(a: &[Segment], b: &[Segment]) -> bool {
    match (a, b) {
        ([Segment::Rest, ..], _) | (_, [Segment::Rest, ..]) | ([], []) => true,
        ([], _) | (_, []) => false,
        ([x, a @ ..], [y, b @ ..]) => {
            let meet = match (x, y) {
                (Segment::Literal(x), Segment::Literal(y)) => x == y,
                (Segment::Literal(text), _) | (_, Segment::Literal(text)) => !text.is_empty(),
                _ => true,
            };
            meet && paths_overlap(a, b)
        }
    }
}

impl Table {
    /// `routes` in the order of their ids, each with its name. Two that can match the same request
    /// with the same precedence are a problem.
    pub(crate) fn new(routes: Vec<(String, Matcher)>, problems: &mut Vec<Problem>) -> Self {
        let (names, matchers): (Vec<_>, Vec<_>) = routes.into_iter().unzip();
        let mut order: Vec<(Precedence, usize)> =
            matchers.iter().enumerate().map(|(i, m)| (m.precedence(), i)).collect();
        order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        report_ties(&order, &names, &matchers, problems);

        let mut table = Self::default();
        for (rank, (_, index)) in order.iter().enumerate() {
            let (Some(matcher), Ok(rank), Ok(id)) =
                (matchers.get(*index), u32::try_from(rank), u32::try_from(*index))
            else {
                continue;
            };
            let trie = match &matcher.pattern.host {
                Host::Any => &mut table.any,
                Host::Wildcard(name) => entry(&mut table.wildcard, name),
                Host::Exact(name) => entry(&mut table.exact, name),
            };
            trie.insert(&matcher.pattern.segments, rank, RouteId(id));
        }
        table.matchers = matchers;
        table
    }

    pub(crate) fn find(&self, facts: &Facts<'_>) -> Hit {
        let mut method_missed = false;
        let mut takes = |id: RouteId| {
            let Some(matcher) = self.matchers.get(id.index()) else { return false };
            if !matcher.also.hold(facts) {
                return false;
            }
            let methods = &matcher.pattern.methods;
            let taken = methods.is_empty() || methods.iter().any(|m| m == facts.method);
            method_missed |= !taken;
            taken
        };
        match self.visit(facts.host, |trie| trie.find(facts.path, &mut takes)) {
            Some(id) => Hit::Route(id),
            None if method_missed => Hit::Method,
            None => Hit::None,
        }
    }

    /// The methods that routes take on this request's place: for the `Allow` field of a 405.
    pub(crate) fn methods(&self, facts: &Facts<'_>) -> Vec<&str> {
        let mut methods = Vec::new();
        self.visit(facts.host, |trie| {
            trie.find(facts.path, &mut |id| {
                if let Some(matcher) = self.matchers.get(id.index())
                    && matcher.also.hold(facts)
                {
                    methods.extend(matcher.pattern.methods.iter().map(String::as_str));
                }
                false
            })
        });
        methods.sort_unstable();
        methods.dedup();
        methods
    }

    /// What `find` finds first in the tries that a host leads to, the most specific first.
    fn visit(&self, host: &str, mut find: impl FnMut(&Trie) -> Option<RouteId>) -> Option<RouteId> {
        let host = host.strip_suffix('.').unwrap_or(host);
        if !self.exact.is_empty()
            && let Some(found) = lookup(&self.exact, host).and_then(&mut find)
        {
            return Some(found);
        }
        if !self.wildcard.is_empty() {
            let dots = host.match_indices('.').filter(|(at, _)| *at > 0);
            let mut tries = dots.filter_map(|(at, _)| lookup(&self.wildcard, host.get(at + 1..)?));
            if let Some(found) = tries.find_map(&mut find) {
                return Some(found);
            }
        }
        find(&self.any)
    }
}

fn report_ties(
    order: &[(Precedence, usize)],
    names: &[String],
    matchers: &[Matcher],
    problems: &mut Vec<Problem>,
) {
    for same in order.chunk_by(|a, b| a.0 == b.0) {
        for (i, (_, a)) in same.iter().enumerate() {
            for (_, b) in
                same.iter().skip(i + 1).filter(|(_, b)| matchers[*a].overlaps(&matchers[*b]))
            {
                problems.push(Problem {
                    path: format!("route.{}.match", names[*b]),
                    message: format!(
                        "`{}` and `{}` can match the same request, and neither is more specific",
                        names[*a], names[*b]
                    ),
                    hint: Some(
                        "give one of them a method, more of the path, or a `where`".to_owned(),
                    ),
                });
            }
        }
    }
}

fn entry<'a>(hosts: &'a mut Vec<(String, Trie)>, name: &str) -> &'a mut Trie {
    let at = match hosts.binary_search_by(|(n, _)| n.as_str().cmp(name)) {
        Ok(at) => at,
        Err(at) => {
            hosts.insert(at, (name.to_owned(), Trie::default()));
            at
        }
    };
    &mut hosts[at].1
}

/// `name` may be in any case; the list is in lower case.
fn lookup<'a>(hosts: &'a [(String, Trie)], name: &str) -> Option<&'a Trie> {
    let at = hosts.binary_search_by(|(n, _)| compare(n.as_bytes(), name.as_bytes())).ok()?;
    hosts.get(at).map(|(_, trie)| trie)
}

fn compare(lower: &[u8], any: &[u8]) -> Ordering {
    lower.iter().copied().cmp(any.iter().map(u8::to_ascii_lowercase))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draft::{HeaderSpec, RespondSpec, WhereSpec};
    use crate::sim::facts;

    fn matcher(text: &str) -> Matcher {
        let spec = RouteSpec {
            matches: text.to_owned(),
            also: WhereSpec::default(),
            to: None,
            redirect: None,
            respond: None::<RespondSpec>,
            timeout: None,
            client_timeout: None,
            retries: None,
            fallback: None,
            cache: None,
            group: None,
            vital: false,
            priority: crate::shed::Priority::Normal,
            strip_prefix: None,
            add_prefix: None,
            request_headers: HeaderSpec::default(),
            response_headers: HeaderSpec::default(),
        };
        let mut problems = Vec::new();
        let matcher = Matcher::compile(&spec, "route.r", &mut problems);
        assert_eq!(problems, [], "{text}");
        matcher.unwrap()
    }

    /// From the definition, one matcher at a time.
    fn matches(matcher: &Matcher, facts: &Facts<'_>) -> bool {
        let Pattern { methods, host, segments } = &matcher.pattern;
        let host = match host {
            Host::Any => true,
            Host::Exact(name) => name == facts.host,
            Host::Wildcard(name) => facts
                .host
                .strip_suffix(name.as_str())
                .is_some_and(|h| h.len() > 1 && h.ends_with('.')),
        };
        let parts: Vec<_> = facts.path.split('/').skip(1).collect();
        host && (methods.is_empty() || methods.iter().any(|m| m == facts.method))
            && path_matches(segments, &parts)
    }

    fn path_matches(segments: &[Segment], parts: &[&str]) -> bool {
        match (segments, parts) {
            ([Segment::Rest], _) | ([], []) => true,
            ([Segment::Literal(text), more @ ..], [part, parts @ ..]) => {
                text == part && path_matches(more, parts)
            }
            ([Segment::Param, more @ ..], [part, parts @ ..]) => {
                !part.is_empty() && path_matches(more, parts)
            }
            _ => false,
        }
    }

    fn written() -> impl Strategy<Value = String> {
        let segment = prop_oneof![
            "[ab]",
            Just("abcdefgh1".into()),
            Just("abcdefgh2".into()),
            Just("{x}".into())
        ];
        let path = (prop::collection::vec(segment, 0..4), prop_oneof!["", "/", "/\\{\\*r\\}"]);
        let host = prop_oneof![Just(""), Just("x.test"), Just("*.test"), Just("*.x.test")];
        let method = prop_oneof![Just(""), Just("GET "), Just("GET,PUT ")];
        (method, host, path).prop_map(|(method, host, (segments, end))| {
            let path: String = segments.iter().map(|s| format!("/{s}")).collect();
            let root = if path.is_empty() && end.is_empty() { "/" } else { "" };
            format!("{method}{host}{path}{end}{root}")
        })
    }

    proptest! {
        /// Looking up finds what asking every route in turn finds.
        #[test]
        fn the_table_finds_the_most_specific_of_all_that_match(
            texts in prop::collection::vec(written(), 1..24),
            asked in prop::collection::vec(
                ("(/(a|b|abcdefgh1|abcdefgh2|)){1,5}", 0_usize..4, 0_usize..3), 1..24),
        ) {
            // Routes that tie are refused anyway: keep the first of each.
            let mut kept: Vec<(String, Matcher)> = Vec::new();
            for text in texts {
                let new = matcher(&text);
                let tied = |(_, old): &(String, Matcher)| {
                    old.precedence() == new.precedence() && old.overlaps(&new)
                };
                if !kept.iter().any(tied) {
                    kept.push((text, new));
                }
            }
            let mut problems = Vec::new();
            let table = Table::new(kept.clone(), &mut problems);
            prop_assert_eq!(problems, []);
            for (path, host, method) in asked {
                let host = ["x.test", "a.x.test", "test", "other"][host];
                let facts = Facts { host, method: ["GET", "PUT", "POST"][method], ..facts(&path) };
                let best = kept.iter().enumerate().filter(|(_, (_, m))| matches(m, &facts));
                let best = best.max_by_key(|(_, (_, m))| m.precedence()).map(|(i, _)| i);
                let found = match table.find(&facts) {
                    Hit::Route(id) => Some(id.index()),
                    Hit::Method | Hit::None => None,
                };
                prop_assert_eq!(found, best, "{:?} in {:?}", facts.path, kept);
            }
        }
    }
}
