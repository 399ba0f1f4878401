//! What a client is told of the limits it counts against: the one encoder of these fields.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::LimitHeaders;
use sluice_policy::flight::{Flight, Limit};
use sluice_policy::plan::Plan;

use super::write::seconds_up;

/// In what form clients are told, and what of it never changes, written ahead.
#[derive(Debug)]
pub(crate) struct Forms {
    headers: LimitHeaders,
    plan: Arc<Plan>,
    wordings: Box<[Wording]>,
}

/// What the policy field says of one limit: its name, a String of RFC 9651, and parameters.
#[derive(Clone, Debug)]
struct Wording {
    text: Box<[u8]>,
    name_len: usize,
    /// Both fields, up to what is left, when no other limit is told of.
    alone: Box<[u8]>,
}

impl Forms {
    pub(crate) fn new(plan: &Arc<Plan>, headers: LimitHeaders) -> Self {
        let item = |(name, (quota, window))| Wording::new(name, quota, window);
        let wordings = plan.limit_names().zip(plan.limit_sizes()).map(item).collect();
        Self { headers, plan: Arc::clone(plan), wordings }
    }

    /// Append the fields; nothing when no limit was asked.
    pub(crate) fn write(&self, out: &mut Vec<u8>, flight: &Flight) {
        match flight.limit().filter(|_| flight.violated().is_none()) {
            Some(tightest) => self.tell(out, flight.plan(), &[tightest]),
            None => self.tell(out, flight.plan(), &flight.limits().collect::<Vec<_>>()),
        }
    }

    fn tell(&self, out: &mut Vec<u8>, plan: &Plan, limits: &[Limit]) {
        match self.headers {
            _ if limits.is_empty() => {}
            LimitHeaders::Draft10 => draft10(out, limits, |limit| self.wording(plan, limit)),
            LimitHeaders::Legacy => legacy(out, limits),
            LimitHeaders::Off => {}
        }
    }

    /// Limits of another plan mean nothing here: the request came before a reload.
    fn wording(&self, plan: &Plan, limit: &Limit) -> Cow<'_, Wording> {
        let ours = std::ptr::eq(plan, &raw const *self.plan);
        match self.wordings.get(usize::from(limit.limit)).filter(|_| ours) {
            Some(item) => Cow::Borrowed(item),
            None => {
                Cow::Owned(Wording::new(plan.limit_name(limit.limit), limit.quota, limit.window))
            }
        }
    }
}

impl Wording {
    fn new(name: &str, quota: u32, window: Duration) -> Self {
        let mut text = Vec::new();
        string(&mut text, name);
        let name_len = text.len();
        number(&mut text, b";q=", u64::from(quota));
        number(&mut text, b";w=", seconds_up(window).max(1));
        let alone = [POLICY, &text, BETWEEN, &text[..name_len], LEFT].concat();
        Self { text: text.into(), name_len, alone: alone.into() }
    }
}

const POLICY: &[u8] = b"RateLimit-Policy: ";
const BETWEEN: &[u8] = b"\r\nRateLimit: ";
const LEFT: &[u8] = b";r=";

/// draft-ietf-httpapi-ratelimit-headers-10, sections 3 and 4: two Lists of RFC 9651.
fn draft10<'a>(out: &mut Vec<u8>, limits: &[Limit], item: impl Fn(&Limit) -> Cow<'a, Wording>) {
    if let [limit] = limits {
        number(out, &item(limit).alone, u64::from(limit.left));
        reset(out, limit);
    } else {
        let mut before = POLICY;
        for limit in limits {
            out.extend_from_slice(before);
            out.extend_from_slice(&item(limit).text);
            before = b", ";
        }
        before = BETWEEN;
        for limit in limits {
            let item = item(limit);
            out.extend_from_slice(before);
            out.extend_from_slice(item.text.get(..item.name_len).unwrap_or_default());
            number(out, LEFT, u64::from(limit.left));
            reset(out, limit);
            before = b", ";
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn reset(out: &mut Vec<u8>, limit: &Limit) {
    if !limit.reset.is_zero() {
        number(out, b";t=", seconds_up(limit.reset));
    }
}

/// The fields that came before the draft, of the limit that makes the client wait longest. Reset
/// is in seconds from now, never a point in time.
fn legacy(out: &mut Vec<u8>, limits: &[Limit]) {
    let Some(limit) = limits.iter().max_by_key(|limit| limit.reset) else { return };
    number(out, b"X-RateLimit-Limit: ", u64::from(limit.quota));
    number(out, b"\r\nX-RateLimit-Remaining: ", u64::from(limit.left));
    number(out, b"\r\nX-RateLimit-Reset: ", seconds_up(limit.reset));
    out.extend_from_slice(b"\r\n");
}

/// A String of RFC 9651 section 3.3.3. Names hold no control or non-ASCII characters.
fn string(out: &mut Vec<u8>, text: &str) {
    let printable = |b: &u8| (0x20..0x7f).contains(b);
    let escaped = |b: &u8| matches!(b, b'"' | b'\\');
    out.push(b'"');
    if text.bytes().all(|b| printable(&b) && !escaped(&b)) {
        out.extend_from_slice(text.as_bytes());
    } else {
        for b in text.bytes().filter(printable) {
            if escaped(&b) {
                out.push(b'\\');
            }
            out.push(b);
        }
    }
    out.push(b'"');
}

fn number(out: &mut Vec<u8>, key: &[u8], n: u64) {
    out.extend_from_slice(key);
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sfv::{BareItem, Item, List, ListEntry, Parser};

    use super::*;

    fn limit(quota: u32, left: u32, reset_ms: u64) -> Limit {
        let (window, reset) = (Duration::from_secs(60), Duration::from_millis(reset_ms));
        Limit { limit: 0, quota, left, window, reset }
    }

    /// The policy of each, by its place among those names.
    fn named<'n>(names: &'n [&'n str]) -> impl Fn(&Limit) -> Cow<'static, Wording> + 'n {
        move |limit| {
            let name = names[usize::from(limit.limit)];
            Cow::Owned(Wording::new(name, limit.quota, limit.window))
        }
    }

    #[test]
    fn every_form_says_it_in_its_own_fields() {
        let limits = [limit(10, 0, 1001), Limit { limit: 1, ..limit(5, 0, 90_000) }];
        let mut out = Vec::new();
        draft10(&mut out, &limits, named(&["a", "b\""]));
        legacy(&mut out, &limits);
        draft10(&mut out, &[limit(3, 3, 0)], named(&["full"]));
        let expected = "RateLimit-Policy: \"a\";q=10;w=60, \"b\\\"\";q=5;w=60\r\n\
                        RateLimit: \"a\";r=0;t=2, \"b\\\"\";r=0;t=90\r\n\
                        X-RateLimit-Limit: 5\r\nX-RateLimit-Remaining: 0\r\n\
                        X-RateLimit-Reset: 90\r\n\
                        RateLimit-Policy: \"full\";q=3;w=60\r\nRateLimit: \"full\";r=3\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    /// A List of Strings with integer parameters, as RFC 9651 has them.
    fn parse(field: &str) -> Vec<(String, Vec<(String, i64)>)> {
        let list: List = Parser::new(field).parse().expect("a structured field");
        let item = |entry: ListEntry| match entry {
            ListEntry::Item(Item { bare_item: BareItem::String(name), params }) => {
                let integer = |value: &BareItem| match value {
                    BareItem::Integer(n) => i64::from(*n),
                    other => panic!("{other:?} is no integer"),
                };
                let params = params.iter().map(|(key, value)| (key.to_string(), integer(value)));
                (name.to_string(), params.collect())
            }
            other => panic!("{other:?} is no string"),
        };
        list.into_iter().map(item).collect()
    }

    proptest! {
        /// What a client reads with a parser that is not ours is what was meant, whatever the
        /// names: nothing is lost, nothing comes in, and spans are whole seconds, rounded up.
        #[test]
        fn a_client_reads_what_was_meant(
            limits in prop::collection::vec(
                ("[ -~]{0,24}", any::<u32>(), any::<u32>(), 0..=u64::from(u32::MAX), any::<u64>()),
                1..8,
            ),
        ) {
            let limits: Vec<_> = limits
                .into_iter()
                .map(|(name, quota, left, window_ms, reset_ns)| {
                    let window = Duration::from_millis(window_ms);
                    let reset = Duration::from_nanos(reset_ns);
                    (name, Limit { limit: 0, quota, left, window, reset })
                })
                .collect();
            let mut out = Vec::new();
            let names: Vec<_> = limits.iter().map(|(name, _)| name.as_str()).collect();
            let told: Vec<_> = (0..)
                .zip(&limits)
                .map(|(place, (_, limit))| Limit { limit: place, ..*limit })
                .collect();
            draft10(&mut out, &told, named(&names));
            let text = String::from_utf8(out).unwrap();
            let lines: Vec<_> = text.split_terminator("\r\n").collect();
            let [policy, rest] = lines[..] else { panic!("{lines:?}") };
            let policies = parse(policy.strip_prefix("RateLimit-Policy: ").unwrap());
            let rests = parse(rest.strip_prefix("RateLimit: ").unwrap());
            prop_assert_eq!(policies.len(), limits.len());
            prop_assert_eq!(rests.len(), limits.len());
            for (((name, limit), policy), rest) in limits.iter().zip(&policies).zip(&rests) {
                let seconds = |span: Duration| {
                    i64::try_from(span.as_nanos().div_ceil(1_000_000_000)).unwrap()
                };
                let meant = |of: &[(&str, i64)]| {
                    let own = of.iter().map(|(key, n)| ((*key).to_owned(), *n)).collect();
                    (name.clone(), own)
                };
                let window = seconds(limit.window).max(1);
                prop_assert_eq!(policy, &meant(&[("q", limit.quota.into()), ("w", window)]));
                let left = ("r", limit.left.into());
                let expected = match seconds(limit.reset) {
                    0 => meant(&[left]),
                    reset => meant(&[left, ("t", reset)]),
                };
                prop_assert_eq!(rest, &expected);
            }
        }

        /// `Retry-After` and `t` are tight to the second: at that many the wait is over, at one
        /// less it is not.
        #[test]
        fn seconds_are_tight(wait_ns in 1_u64..=u64::MAX) {
            let (wait, told) = (Duration::from_nanos(wait_ns), {
                seconds_up(Duration::from_nanos(wait_ns))
            });
            prop_assert!(Duration::from_secs(told) >= wait);
            prop_assert!(Duration::from_secs(told - 1) < wait);
        }
    }
}
