//! Bytes played as a script: arbitrary facts, events, times and reloads, in any order. For the
//! fuzzer, and for tests that throw random bytes.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Policy;
use crate::admit::Specs;
use crate::admit::concurrency::ConcurrencySpec;
use crate::admit::rate_limit::{Kind, LimitSpec};
use crate::admit::size::SizeSpec;
use crate::cache::CacheSpec;
use crate::decision::{Decision, Event, Failure};
use crate::degrade::FallbackSpec;
use crate::draft::balance::{Balance, BalanceSpec};
use crate::draft::breaker::BreakerSpec;
use crate::draft::retry::RetrySpec;
use crate::draft::{
    Draft, HeaderSpec, RouteSpec, ServerSpec, TimeoutSpec, UpstreamSpec, WhereSpec,
};
use crate::facts::{Body, Facts, Field, Headers};
use crate::flight::{Ending, Finish, Flight};
use crate::health::HealthSpec;
use crate::ledger::Ledger;
use crate::plan::{EndpointKey, Plan};
use crate::shed::Priority;
use crate::shed::adaptive::{AdaptiveSpec, Bounds};
use crate::time::{Instant, Now, Wall};
use crate::unit::{ByteSize, Rate, Span};
use crate::world::Signal;

const RETRIES: u8 = 2;
const OPEN_MAX: usize = 64;

/// Plays the bytes and panics when a law is broken. How many attempts came of it.
pub fn play(bytes: &[u8]) -> u64 {
    let mut script = Script(bytes);
    let first = script.text();
    let ledger = Arc::new(Ledger::new(8, [3; 16]));
    let Some(plan) = plan(&first).or_else(|| plan("/{*rest}")).map(Arc::new) else {
        unreachable!("that is a match text");
    };
    let worker = |seed| Policy::new(Arc::clone(&plan), Arc::clone(&ledger), seed);
    let mut workers = [worker(1), worker(2)];
    let mut open: Vec<(usize, Flight)> = Vec::new();
    let mut now = Now::default();
    let mut calls = 0;
    while !script.0.is_empty() {
        let pick = usize::from(script.byte());
        let facts = Written::read(&mut script);
        match script.byte() % 8 {
            0 | 1 if open.len() < OPEN_MAX => {
                let worker = pick % workers.len();
                open.push((worker, workers[worker].begin(now, &facts.facts())));
            }
            2..=4 if !open.is_empty() => {
                let at = pick % open.len();
                let (worker, flight) = &mut open[at];
                let event = script.event();
                let decision = workers[*worker].decide(now, &facts.facts(), flight, event);
                calls += u64::from(matches!(decision, Decision::Call(_)));
                assert!(flight.tries.calls <= 3 + RETRIES, "too many calls");
            }
            5 if !open.is_empty() => {
                let (worker, flight) = open.swap_remove(pick % open.len());
                end(&mut workers[worker], now, flight);
            }
            6 => now = Now { at: Instant::from_nanos(script.number()), wall: Wall(0) },
            7 if pick % 8 > 0 => {
                let step = core::time::Duration::from_micros(script.byte().into());
                now = Now { at: now.at + step, wall: Wall(0) };
            }
            7 => {
                if let Some(plan) = self::plan(&facts.path) {
                    workers[pick % workers.len()].adopt(Arc::new(plan));
                }
            }
            _ => {
                let servers = [["a", "10.0.0.1:80"], ["a", "10.0.0.2:80"]];
                let keys = servers.map(|names| EndpointKey::of(&names));
                let out = keys.get(..pick % 3).unwrap_or_default();
                workers[pick % workers.len()].signal(now, Signal::Vitals { out });
            }
        }
        assert!(ledger.permits() <= open.len() as u64, "a permit nobody holds");
        assert!(ledger.keys() <= ledger.capacity() as u64, "more keys than there is room for");
    }
    for (worker, flight) in open {
        end(&mut workers[worker], now, flight);
    }
    assert_eq!(ledger.permits(), 0, "permits go back");
    for worker in &workers {
        let snapshot = worker.inspect(now);
        assert_eq!(snapshot.in_flight, 0, "flights are counted");
        assert!(snapshot.endpoints.iter().all(|(_, taken)| *taken == 0), "seats go back");
    }
    calls
}

fn end(worker: &mut Policy, now: Now, flight: Flight) {
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::ClientGone };
    let record = worker.end(now, flight, ending);
    assert!(record.attempts <= 3 + RETRIES, "too many calls");
}

/// An upstream with every mechanism on.
fn upstream() -> UpstreamSpec {
    let server = |addr: &str, weight| ServerSpec {
        addr: addr.to_owned(),
        weight,
        labels: BTreeMap::from([("zone".to_owned(), addr.to_owned())]),
    };
    let key = Some(vec!["header:x".to_owned()]);
    UpstreamSpec {
        servers: vec![server("10.0.0.1:80", 1), server("10.0.0.2:80", 3)],
        balance: BalanceSpec { kind: Balance::Hash, key, ..BalanceSpec::default() },
        prefer_zone: true,
        connections: None,
        queue: None,
        keepalive: None,
        timeout: TimeoutSpec::default(),
        breaker: Some(BreakerSpec {
            min_requests: Some(3),
            probes: Some(2),
            ..BreakerSpec::default()
        }),
        eject: None,
        adaptive: Some(AdaptiveSpec::On(Bounds::default())),
        backend: None,
        health: Some(HealthSpec::default()),
    }
}

/// A plan with every filter on a route of that match text; None when the text is not one.
pub(super) fn plan(matches: &str) -> Option<Plan> {
    let kept = CacheSpec { key: vec!["header:x".to_owned()], ..CacheSpec::default() };
    let route = RouteSpec {
        matches: matches.to_owned(),
        also: WhereSpec::default(),
        to: Some("a".to_owned()),
        redirect: None,
        respond: None,
        timeout: None,
        client_timeout: None,
        retries: Some(RetrySpec {
            max: Some(RETRIES),
            on: Some(vec!["5xx".to_owned(), "reset".to_owned()]),
            hedge: true,
            ..RetrySpec::default()
        }),
        fallback: Some(FallbackSpec::default()),
        cache: Some(CacheSpec { stale: Some(Span(core::time::Duration::MAX)), ..kept }),
        group: None,
        vital: false,
        priority: Priority::Normal,
        strip_prefix: None,
        add_prefix: None,
        request_headers: HeaderSpec::default(),
        response_headers: HeaderSpec::default(),
    };
    let rate = Rate::new(core::num::NonZeroU64::MIN, core::time::Duration::from_millis(1))?;
    let keys = ["ip", "header:x", "path", "method", "route"].map(str::to_owned).to_vec();
    let limit = |key| LimitSpec { key, burst: Some(20), ..LimitSpec::bucket(rate) };
    let slide = LimitSpec { kind: Kind::Sliding, ..LimitSpec::bucket(rate) };
    let wait = Some(Span(core::time::Duration::from_millis(2)));
    let queue = LimitSpec { kind: Kind::Leaky, max_wait: wait, ..LimitSpec::bucket(rate) };
    let specs = Specs {
        size: Some(SizeSpec { body: Some(ByteSize(1 << 32)), ..SizeSpec::default() }),
        limits: Some(["fine", "ip", "slide", "queue"].map(str::to_owned).to_vec()),
        concurrency: Some(five_at_once()),
        ..Specs::default()
    };
    let draft = Draft {
        zone: Some("10.0.0.1:80".to_owned()),
        upstreams: vec![("a".to_owned(), upstream())],
        limits: vec![
            ("fine".to_owned(), limit(keys)),
            ("ip".to_owned(), limit(Vec::new())),
            ("slide".to_owned(), slide),
            ("queue".to_owned(), queue),
        ],
        routes: vec![("r".to_owned(), route, specs)],
        ..Draft::default()
    };
    Plan::compile(draft).ok()
}

fn five_at_once() -> ConcurrencySpec {
    ConcurrencySpec { max: 5, key: vec!["ip".to_owned()], ..ConcurrencySpec::default() }
}

/// What is left of the bytes. Read past the end, it is zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        // Small and huge ones both come up.
        let shift = u32::from(self.byte() % 64);
        let bytes: [u8; 8] = core::array::from_fn(|_| self.byte());
        u64::from_le_bytes(bytes) >> shift
    }

    /// Up to fifteen bytes of text; half of the time something that means something.
    fn text(&mut self) -> String {
        const KNOWN: [&str; 8] =
            ["/", "/{*rest}", "/a", "/a/b", "example.test", "GET", "*", "GET *.b/{x}/{*y}"];
        let kind = self.byte();
        if kind.is_multiple_of(2) {
            return KNOWN[usize::from(kind / 2) % KNOWN.len()].to_owned();
        }
        let (text, rest) = self.0.split_at(self.0.len().min(usize::from(kind / 2 % 16)));
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }

    fn event(&mut self) -> Event {
        let (kind, replayable) = (self.byte(), self.byte().is_multiple_of(2));
        let failed = |failure| Event::Failed { failure, replayable };
        match kind % 31 {
            0..=9 => Event::Arrived,
            10 => Event::Learned,
            11 => Event::Woke,
            12 => Event::Missed,
            13 | 14 => Event::Responded { status: u16::from(kind) * 7 },
            15 | 16 => failed(Failure::PoolFull),
            17 | 18 => failed(Failure::Connect),
            19 => failed(Failure::ConnectTimeout),
            20 | 21 => failed(Failure::Stale),
            22 => failed(Failure::Broken),
            23 => failed(Failure::Malformed),
            24 => Event::Slow,
            25 => Event::Overtaken { status: 200 },
            26 => Event::Fell { second: replayable, failure: Failure::Broken },
            27 => failed(Failure::Cut),
            28 => failed(Failure::Stalled),
            _ => failed(Failure::TimedOut),
        }
    }
}

/// Facts, owned.
struct Written {
    client: IpAddr,
    method: String,
    host: String,
    path: String,
    query: String,
    text: String,
    fields: [Field; 2],
    head_bytes: u32,
    body: Body,
}

impl Written {
    fn read(script: &mut Script<'_>) -> Self {
        let mut place = || (u32::from(script.byte() % 20), u32::from(script.byte() % 20));
        let fields = core::array::from_fn(|_| Field { name: place(), value: place() });
        let client = match script.byte() {
            odd if odd % 2 == 1 => IpAddr::V4(u32::from(odd).into()),
            even => IpAddr::V6(u128::from(even).into()),
        };
        let body = match script.byte() % 3 {
            0 => Body::Empty,
            1 => Body::Unknown,
            _ => Body::Length(script.number()),
        };
        Self {
            client,
            method: script.text(),
            host: script.text(),
            path: script.text(),
            query: script.text(),
            text: script.text(),
            fields,
            head_bytes: u32::from(script.byte()) << 24,
            body,
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            peer: self.client,
            client: self.client,
            method: &self.method,
            host: &self.host,
            path: &self.path,
            query: &self.query,
            headers: Headers::new(self.text.as_bytes(), &self.fields),
            head_bytes: self.head_bytes,
            body: self.body,
            patience: None,
            identity: None,
        }
    }
}
