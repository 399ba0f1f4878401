//! Bound the size of a request.

use serde::Deserialize;

use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::facts::Body;
use crate::flight::Flight;
use crate::unit::ByteSize;

#[derive(Debug, Default)]
pub struct Size;

/// `size = { body = "10MiB" }`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SizeSpec {
    /// The largest body, as it is sent. Larger ones are answered 413; one of unknown length is
    /// passed on until it grows past this.
    pub body: Option<ByteSize>,
    /// The largest head, request line included. Larger ones are answered 431.
    pub head: Option<ByteSize>,
    /// The longest path with its query. Longer ones are answered 414.
    pub uri: Option<ByteSize>,
}

#[derive(Debug)]
pub struct Rule {
    body_bytes_max: Option<u64>,
    head_bytes_max: Option<u64>,
    uri_bytes_max: Option<u64>,
}

impl Filter for Size {
    type Spec = SizeSpec;
    type Rule = Rule;

    fn compile(spec: SizeSpec, context: &mut Context<'_>) -> Option<Rule> {
        if spec.body.is_none() && spec.head.is_none() && spec.uri.is_none() {
            let hint =
                Some("write `body`, `head` or `uri`, like `{ body = \"10MiB\" }`".to_owned());
            context.problem("", "bounds nothing".to_owned(), hint);
        }
        let bytes = |size: Option<ByteSize>| size.map(|s| s.0);
        Some(Rule {
            body_bytes_max: bytes(spec.body),
            head_bytes_max: bytes(spec.head),
            uri_bytes_max: bytes(spec.uri),
        })
    }

    fn check(&mut self, ask: &Ask<'_>, rule: &Rule, flight: &mut Flight) -> Verdict {
        let facts = ask.facts;
        let mark = usize::from(!facts.query.is_empty());
        let uri_bytes = facts.path.len().saturating_add(facts.query.len()).saturating_add(mark);
        let body_bytes = match facts.body {
            Body::Length(bytes) => bytes,
            Body::Empty | Body::Unknown => 0,
        };
        let over = |size: u64, max: Option<u64>| max.is_some_and(|max| size > max);
        flight.body_bytes_max = rule.body_bytes_max;
        let verdict = if over(u64::try_from(uri_bytes).unwrap_or(u64::MAX), rule.uri_bytes_max) {
            Verdict::Deny(Answer::problem(414, "size.uri"))
        } else if over(facts.head_bytes.into(), rule.head_bytes_max) {
            Verdict::Deny(Answer::problem(431, "size.head"))
        } else if over(body_bytes, rule.body_bytes_max) {
            Verdict::Deny(Answer::problem(413, "size.body"))
        } else {
            Verdict::Pass
        };
        verdict.noted(flight, "size")
    }
}
