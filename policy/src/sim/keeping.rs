//! Bytes read as the fields that say what may be kept: `Cache-Control`, `Vary`, `Age` and their
//! like. For the fuzzer, and for tests that throw random bytes.

use core::time::Duration;
use std::sync::Arc;

use crate::Policy;
use crate::cache::{Heard, Keep, Lookup, Wanted, vary};
use crate::decision::{Decision, Event};
use crate::facts::{Facts, Field, Headers};
use crate::flight::{Ending, Finish};
use crate::ledger::Ledger;
use crate::sim::facts;
use crate::sim::script::plan;
use crate::time::Now;

/// A field of what is asked or of what is said, by the first byte of its line.
const NAMES: [&str; 8] =
    ["cache-control", "cache-control", "vary", "age", "set-cookie", "cookie", "pragma", "x"];

/// Lines, the first half of them asked, the others said, and panics when a law is broken. Whether
/// the response would be kept.
pub fn keeping(bytes: &[u8]) -> bool {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').take(32).collect();
    let (asked, said) = lines.split_at(lines.len() / 2);
    let (asked, said) = (Lines::read(asked), Lines::read(said));
    let expires = match bytes.first().map_or(0, |first| first % 3) {
        0 => None,
        1 => Some(Duration::ZERO),
        _ => Some(Duration::from_secs(60)),
    };
    let heard = Heard { status: 200, headers: said.headers(), expires };
    let keep = judged(asked.headers(), &heard);
    if let Some(keep) = &keep {
        lawful(keep, &said, asked.headers(), heard.headers);
    }
    keep.is_some()
}

fn judged(asked: Headers<'_>, heard: &Heard<'_>) -> Option<Keep> {
    let plan = Arc::new(plan("/{*rest}")?);
    let mut policy = Policy::new(plan, Arc::new(Ledger::new(8, [3; 16])), 1);
    let now = Now::default();
    let facts = Facts { headers: asked, host: "", ..facts("/a") };
    let mut flight = policy.begin(now, &facts);
    let mut decision = policy.decide(now, &facts, &mut flight, Event::Arrived);
    if let Decision::Serve(_) = decision {
        decision = policy.decide(now, &facts, &mut flight, Event::Missed);
    }
    let keep = matches!(decision, Decision::Call(_)).then(|| {
        let responded = Event::Responded { status: heard.status };
        let relayed = policy.decide(now, &facts, &mut flight, responded);
        assert_eq!(relayed, Decision::Relay);
        flight.keep(heard)
    });
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let _ = policy.end(now, flight, ending);
    keep.flatten()
}

fn lawful(keep: &Keep, said: &Lines, asked: Headers<'_>, headers: Headers<'_>) {
    let terms = keep.terms;
    for value in headers.all("cache-control") {
        let words = plain(value).expect("a quote that is not closed may hide anything");
        for ban in ["no-store", "no-cache", "private"] {
            assert!(!words.iter().any(|word| word == ban), "kept, although it says {ban}");
        }
        let forbids = |word: &String| matches!(&**word, "must-revalidate" | "proxy-revalidate");
        assert!(terms.stale.is_zero() || !words.iter().any(forbids), "stale, although forbidden");
    }
    assert!(headers.get("set-cookie").is_none(), "kept with a cookie");
    assert!(terms.fresh <= Duration::from_secs(1 << 31));
    assert!(terms.age < terms.fresh.saturating_add(terms.stale), "kept, and of no use");
    let names: Vec<&[u8]> = vary(headers).collect();
    assert!(names.iter().all(|name| !name.is_empty() && *name != b"*" && !name.contains(&b',')));
    // Which variant it is depends on the request alone, and on nothing that is not named.
    let variant = |request| keep.key.variant(names.iter().copied(), request);
    assert_eq!(variant(asked), variant(asked));
    if !names.iter().any(|name| name.eq_ignore_ascii_case(b"x-new")) {
        let more = said.with_one_more(asked);
        assert_eq!(variant(asked), variant(more.headers()), "by a field that nobody names");
    }
    // A copy only gets worse.
    let lookup = |wanted| Lookup { key: keep.key, wanted, personal: false };
    let fresh = lookup(Wanted::Fresh { age_max: Duration::MAX });
    let mut was = (true, true);
    for held in [0, 1, 59, 60, 3600, 1 << 31, u64::MAX] {
        let held = Duration::from_secs(held);
        let now = (terms.answers(&fresh, held), terms.answers(&lookup(Wanted::Any), held));
        assert!(now <= was && (!now.0 || now.1), "{terms:?} after {held:?}");
        was = now;
    }
}

/// The directives of a list without their arguments, read letter by letter; None when a quote is
/// not closed.
fn plain(list: &[u8]) -> Option<Vec<String>> {
    let (mut words, mut word, mut quoted) = (Vec::new(), Vec::new(), false);
    let mut bytes = list.iter();
    while let Some(byte) = bytes.next() {
        match (byte, quoted) {
            (b'"', _) => {
                quoted = !quoted;
                word.push(b'"');
            }
            (b'\\', true) => {
                bytes.next()?;
                word.push(b'.');
            }
            (b',', false) => words.push(core::mem::take(&mut word)),
            (byte, _) => word.push(*byte),
        }
    }
    words.push(word);
    let name = |word: Vec<u8>| {
        let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
        String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase()
    };
    (!quoted).then(|| words.into_iter().map(name).collect())
}

/// Field lines, owned.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    fields: Vec<Field>,
}

impl Lines {
    fn read(lines: &[&[u8]]) -> Self {
        let mut all = Self::default();
        for line in lines {
            let Some((first, value)) = line.split_first() else { continue };
            all.push(NAMES[usize::from(*first) % NAMES.len()].as_bytes(), value);
        }
        all
    }

    fn with_one_more(&self, headers: Headers<'_>) -> Self {
        let mut all = Self::default();
        headers.iter().for_each(|(name, value)| all.push(name, value));
        all.push(b"x-new", &self.text);
        all
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        let mut put = |bytes: &[u8]| {
            let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            let start = place(self.text.len());
            self.text.extend_from_slice(bytes);
            (start, place(self.text.len()))
        };
        let (name, value) = (put(name), put(value));
        self.fields.push(Field { name, value });
    }

    fn headers(&self) -> Headers<'_> {
        Headers::new(&self.text, &self.fields)
    }
}
