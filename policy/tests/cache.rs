//! Which requests a copy answers, which responses are kept, and when a copy stands in for a
//! failure.

mod written;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluice_policy::Policy;
use sluice_policy::cache::{Heard, Lookup, Terms, Use, Wanted, vary};
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::degrade::{Cause, Source, Switches};
use sluice_policy::facts::{Body, Facts, Identity};
use sluice_policy::flight::{Ending, Finish, Record};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::{CacheKey, GroupKey, RouteKey};
use sluice_policy::sim::{self, Head};
use sluice_policy::time::Now;
use sluice_policy::world::Signal;

const TOML: &str = r#"
[upstream.a]
servers = ["a:1"]
[limit.once]
key = ["ip"]
rate = "1/day"
[route.fresh]
match = "/fresh"
to = "a"
retries = 0
cache = { ttl = "10s" }
[route.stale]
match = "/stale"
to = "a"
retries = 0
cache = { stale = "1min" }
fallback = { body = "sorry" }
[route.bare]
match = "/bare"
to = "a"
retries = 0
group = "shop"
cache = { stale = "1min", stale_on = ["5xx", "limited", "off"] }
limits = ["once"]
addresses = { deny = ["10.9.0.0/16"] }
[route.user]
match = "/user"
to = "a"
cache = { ttl = "10s", key = ["header:authorization", "user", "header:cookie"] }
[route.none]
match = "/none"
to = "a"
"#;

/// A plain GET that names no host.
fn facts(path: &str) -> Facts<'_> {
    Facts { host: "", ..sim::facts(path) }
}

fn policy() -> Policy {
    Policy::new(written::plan(TOML), Arc::new(Ledger::new(64, [0; 16])), 1)
}

/// What a world with these copies makes of a request whose attempt ends so.
struct World {
    fresh: bool,
    any: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Copy,
    Relay,
    Answer(u16, Option<Source>),
}

impl World {
    fn run(&self, policy: &mut Policy, facts: &Facts<'_>, event: Event) -> (Outcome, Record) {
        let now = Now::default();
        let mut flight = policy.begin(now, facts);
        let mut decision = policy.decide(now, facts, &mut flight, Event::Arrived);
        let mut looks = 0;
        let outcome = loop {
            let next = match decision {
                Decision::Serve(Lookup { wanted, .. }) => {
                    looks += 1;
                    let found = match wanted {
                        Wanted::Fresh { .. } => self.fresh,
                        Wanted::Any => self.fresh || self.any,
                    };
                    if found {
                        break Outcome::Copy;
                    }
                    Event::Missed
                }
                Decision::Call(_) => event,
                Decision::Relay => break Outcome::Relay,
                Decision::Answer(answer) => {
                    break Outcome::Answer(answer.status, answer.degraded);
                }
                Decision::Wait(_) | Decision::Learn(_) | Decision::Hedge(_) | Decision::Await => {
                    panic!("{decision:?}")
                }
            };
            decision = policy.decide(now, facts, &mut flight, next);
        };
        assert!(looks <= 2, "{looks} looks");
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        (outcome, policy.end(now, flight, ending))
    }
}

const WELL: Event = Event::Responded { status: 200 };
const ERROR: Event = Event::Responded { status: 502 };
const SLOW: Event = Event::Failed { failure: Failure::TimedOut, replayable: true };
const REFUSED: Event = Event::Failed { failure: Failure::Connect, replayable: true };

#[test]
fn the_best_there_is_answers() {
    const NOTHING: World = World { fresh: false, any: false };
    const STALE: World = World { fresh: false, any: true };
    const FRESH: World = World { fresh: true, any: true };
    let sorry = Outcome::Answer(503, Some(Source::Static));
    let copy = Outcome::Copy;
    for (path, world, event, expected, used) in [
        ("/fresh", FRESH, WELL, &copy, Some(Use::Hit)),
        ("/fresh", STALE, WELL, &Outcome::Relay, Some(Use::Miss)),
        ("/fresh", STALE, SLOW, &Outcome::Answer(504, None), Some(Use::Miss)),
        ("/fresh", STALE, ERROR, &Outcome::Relay, Some(Use::Miss)),
        ("/stale", FRESH, WELL, &copy, Some(Use::Hit)),
        ("/stale", STALE, WELL, &Outcome::Relay, Some(Use::Miss)),
        ("/stale", STALE, SLOW, &copy, Some(Use::Stale)),
        ("/stale", STALE, REFUSED, &copy, Some(Use::Stale)),
        ("/stale", STALE, ERROR, &copy, Some(Use::Stale)),
        ("/stale", STALE, Event::Responded { status: 404 }, &Outcome::Relay, Some(Use::Miss)),
        ("/stale", NOTHING, SLOW, &sorry, Some(Use::Miss)),
        ("/stale", NOTHING, ERROR, &sorry, Some(Use::Miss)),
        ("/bare", STALE, ERROR, &copy, Some(Use::Stale)),
        ("/bare", STALE, SLOW, &Outcome::Answer(504, None), Some(Use::Miss)),
        ("/bare", NOTHING, ERROR, &Outcome::Relay, Some(Use::Miss)),
        ("/none", FRESH, SLOW, &Outcome::Answer(504, None), None),
    ] {
        let (found, record) = world.run(&mut policy(), &facts(path), event);
        assert_eq!((&found, record.cache), (expected, used), "{path} {event:?}");
        let degraded = record.degraded().map(|(_, source)| source);
        let marked = match found {
            Outcome::Copy if used == Some(Use::Stale) => Some("stale"),
            Outcome::Answer(_, Some(source)) => Some(source.name()),
            Outcome::Copy | Outcome::Relay | Outcome::Answer(..) => None,
        };
        assert_eq!(degraded, marked, "{path} {event:?}");
        assert_eq!(record.answer.is_some(), found != Outcome::Relay && used != Some(Use::Hit));
    }
}

#[test]
fn a_copy_is_not_for_whom_a_filter_refuses() {
    let shop = Switches { off: vec![GroupKey::of(&["shop"])], ..Switches::default() };
    let mut policy = policy();
    policy.signal(Now::default(), Signal::Switches(&shop));
    let stale = World { fresh: false, any: true };
    let denied = Facts { client: [10, 9, 0, 1].into(), ..facts("/bare") };
    assert_eq!(stale.run(&mut policy, &denied, WELL).0, Outcome::Answer(403, None));
    let (found, record) = stale.run(&mut policy, &facts("/bare"), WELL);
    assert_eq!((found, record.degraded()), (Outcome::Copy, Some(("off", "stale"))));
    // The second of a day: the limit, which opted in, comes before the switch.
    let (found, record) = stale.run(&mut policy, &facts("/bare"), WELL);
    assert_eq!((found, record.degraded()), (Outcome::Copy, Some(("limited", "stale"))));
}

#[test]
fn a_drill_takes_the_path_of_its_cause_also_past_a_fresh_copy() {
    for cause in Cause::ALL {
        let mut policy = policy();
        let drills = vec![(RouteKey::of(&["stale"]), cause)];
        policy
            .signal(Now::default(), Signal::Switches(&Switches { drills, ..Switches::default() }));
        let fresh = World { fresh: true, any: true };
        let (found, record) = fresh.run(&mut policy, &facts("/stale"), WELL);
        let expected = match cause {
            Cause::Limited => (Outcome::Answer(429, None), None),
            _ => (Outcome::Copy, Some((cause.name(), "stale"))),
        };
        assert_eq!((found, record.degraded()), expected, "{cause:?}");
        let nothing = World { fresh: false, any: false };
        let (found, record) = nothing.run(&mut policy, &facts("/stale"), WELL);
        let expected = match cause {
            Cause::Limited => (Outcome::Answer(429, None), None),
            _ => (Outcome::Answer(503, Some(Source::Static)), Some((cause.name(), "static"))),
        };
        assert_eq!((found, record.degraded()), expected, "{cause:?}");
    }
}

/// The first look of a request, if it is answered by copies at all.
fn look(policy: &mut Policy, facts: &Facts<'_>) -> Option<Lookup> {
    let now = Now::default();
    let mut flight = policy.begin(now, facts);
    let found = match policy.decide(now, facts, &mut flight, Event::Arrived) {
        Decision::Serve(lookup) => Some(lookup),
        Decision::Call(_) => None,
        other => panic!("{other:?}"),
    };
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let _ = policy.end(now, flight, ending);
    found
}

#[test]
fn what_a_request_says_may_keep_copies_from_it() {
    let mut policy = policy();
    for (path, fields, looks) in [
        ("/fresh", &[][..], true),
        ("/fresh", &[("Cookie", "a=1")], true),
        ("/fresh", &[("Range", "bytes=0-1")], false),
        ("/fresh", &[("If-Range", "\"a\"")], false),
        ("/fresh", &[("If-Match", "\"a\"")], false),
        ("/fresh", &[("If-Unmodified-Since", "x")], false),
        ("/fresh", &[("If-None-Match", "\"a\"")], true),
        ("/fresh", &[("Authorization", "Basic x")], false),
        ("/fresh", &[("X-Api-Key", "k")], false),
        ("/fresh", &[("Cache-Control", "no-store")], false),
        ("/fresh", &[("Cache-Control", "no-cache")], false),
        ("/fresh", &[("Cache-Control", "max-age=0")], false),
        ("/fresh", &[("Cache-Control", "max-age=5")], true),
        ("/fresh", &[("Pragma", "no-cache")], false),
        ("/fresh", &[("Pragma", "no-cache"), ("Cache-Control", "max-age=5")], true),
        ("/user", &[("Authorization", "Basic x")], true),
        ("/user", &[("Authorization", "Basic x"), ("authorization", "Basic y")], false),
        ("/user", &[("Cookie", "a=1"), ("Cookie", "b=2")], false),
        ("/none", &[], false),
    ] {
        let head = Head::new(fields);
        let facts = Facts { headers: head.headers(), host: "", ..facts(path) };
        assert_eq!(look(&mut policy, &facts).is_some(), looks, "{path} {fields:?}");
    }
    let plain = Facts { host: "", ..facts("/fresh") };
    for (facts, looks) in [
        (Facts { method: "HEAD", ..plain }, true),
        (Facts { method: "POST", ..plain }, false),
        (Facts { method: "DELETE", ..plain }, false),
        (Facts { body: Body::Length(1), ..plain }, false),
        (Facts { body: Body::Unknown, ..plain }, false),
        (Facts { host: "in.the.target", ..plain }, false),
        (Facts { identity: Some(&ANNA), ..plain }, false),
        (Facts { identity: Some(&ANNA), path: "/user", ..plain }, true),
    ] {
        assert_eq!(look(&mut policy, &facts).is_some(), looks, "{facts:?}");
    }
}

const ANNA: Identity<'static> = Identity { user: Some("anna"), tenant: None, claims: &[] };

#[test]
fn copies_are_told_apart_by_all_that_a_server_sees() {
    let mut policy = policy();
    let mut keys = Vec::new();
    let heads = [
        vec![("Host", "a.example")],
        vec![("Host", "a.example:81")],
        vec![("Host", "b.example")],
        vec![("Host", "a.example"), ("X-Forwarded-Proto", "https")],
        vec![("Host", "a.example"), ("X-Forwarded-Host", "c.example")],
        vec![("Host", "a.example"), ("Authorization", "one")],
        vec![("Host", "a.example"), ("Authorization", "two")],
        vec![("Host", "a.example"), ("Cookie", "one")],
    ];
    let bob = Identity { user: Some("bob"), ..ANNA };
    let acme = Identity { tenant: Some("acme"), ..ANNA };
    for head in &heads {
        let head = Head::new(head);
        for query in ["", "a=1", "a=2"] {
            for identity in [None, Some(&ANNA), Some(&bob), Some(&acme)] {
                let facts = Facts { headers: head.headers(), query, identity, ..facts("/user") };
                keys.push(look(&mut policy, &facts).expect("a look").key);
            }
        }
    }
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), count), (96, 96));
    let plain = look(&mut policy, &Facts { host: "", ..facts("/fresh") }).unwrap().key;
    let head = look(&mut policy, &Facts { host: "", method: "HEAD", ..facts("/fresh") });
    assert_eq!(head.unwrap().key, plain, "HEAD is answered from what GET brought");
    let mut other = Policy::new(written::plan(TOML), Arc::new(Ledger::new(64, [1; 16])), 1);
    let theirs = look(&mut other, &Facts { host: "", ..facts("/fresh") }).unwrap().key;
    assert_ne!(theirs, plain, "keys are this process's own");
}

/// On what terms a response is kept.
fn terms(path: &str, asked: &[(&str, &str)], status: u16, said: &[(&str, &str)]) -> Option<Terms> {
    let (mut policy, now) = (policy(), Now::default());
    let (asked, said) = (Head::new(asked), Head::new(said));
    let facts = Facts { headers: asked.headers(), host: "", ..facts(path) };
    let mut flight = policy.begin(now, &facts);
    let mut decision = policy.decide(now, &facts, &mut flight, Event::Arrived);
    if let Decision::Serve(_) = decision {
        decision = policy.decide(now, &facts, &mut flight, Event::Missed);
    }
    assert!(matches!(decision, Decision::Call(_)), "{decision:?}");
    decision = policy.decide(now, &facts, &mut flight, Event::Responded { status });
    assert_eq!(decision, Decision::Relay);
    let keep = flight.keep(&Heard { status, headers: said.headers(), expires: None });
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let _ = policy.end(now, flight, ending);
    keep.map(|keep| keep.terms)
}

#[test]
fn responses_are_kept_as_they_say() {
    let s = Duration::from_secs;
    let kept = |fresh, stale| Some((s(fresh), s(stale)));
    for (path, status, said, expected) in [
        // What says nothing: the route's own ttl, for what is final.
        ("/fresh", 200, &[][..], kept(10, 0)),
        ("/fresh", 204, &[], kept(10, 0)),
        ("/fresh", 301, &[], kept(10, 0)),
        ("/fresh", 404, &[], kept(10, 0)),
        ("/fresh", 201, &[], None),
        ("/fresh", 206, &[], None),
        ("/fresh", 302, &[], None),
        ("/fresh", 304, &[], None),
        ("/fresh", 403, &[], None),
        ("/fresh", 500, &[], None),
        ("/fresh", 503, &[("Cache-Control", "max-age=60")], None),
        // The server's word goes before.
        ("/fresh", 302, &[("Cache-Control", "max-age=60")], kept(60, 0)),
        ("/fresh", 200, &[("Cache-Control", "max-age=60")], kept(60, 0)),
        ("/fresh", 200, &[("Cache-Control", "max-age=60, s-maxage=5")], kept(5, 0)),
        ("/fresh", 200, &[("Cache-Control", "max-age=0")], None),
        ("/fresh", 200, &[("Cache-Control", "max-age=60"), ("Age", "60")], None),
        ("/fresh", 200, &[("Cache-Control", "no-store")], None),
        ("/fresh", 200, &[("Cache-Control", "private, max-age=60")], None),
        ("/fresh", 200, &[("Cache-Control", "no-cache, max-age=60")], None),
        ("/fresh", 200, &[("Cache-Control", "max-age=60"), ("cache-control", "private")], None),
        ("/fresh", 200, &[("Set-Cookie", "a=1"), ("Cache-Control", "public, max-age=9")], None),
        ("/fresh", 200, &[("Vary", "Accept, *")], None),
        ("/fresh", 200, &[("Vary", "Accept")], kept(10, 0)),
        // Staleness: the route's and the server's, whichever is shorter.
        ("/stale", 200, &[], kept(0, 60)),
        ("/stale", 200, &[("Cache-Control", "max-age=5")], kept(5, 60)),
        ("/stale", 200, &[("Cache-Control", "max-age=5, stale-if-error=7")], kept(5, 7)),
        ("/stale", 200, &[("Cache-Control", "max-age=5, stale-if-error=900")], kept(5, 60)),
        ("/stale", 200, &[("Cache-Control", "max-age=5, must-revalidate")], kept(5, 0)),
        ("/stale", 200, &[("Cache-Control", "s-maxage=5")], kept(5, 0)),
        ("/stale", 200, &[("Cache-Control", "s-maxage=5, stale-if-error=7")], kept(5, 7)),
    ] {
        let found = terms(path, &[], status, said).map(|terms| (terms.fresh, terms.stale));
        assert_eq!(found, expected, "{path} {status} {said:?}");
    }
}

#[test]
fn what_may_be_one_users_own_is_for_nobody_else() {
    let cookie = [("Cookie", "session=1")];
    assert_eq!(terms("/fresh", &cookie, 200, &[]), None, "a cookie, and not said to be public");
    let public = terms("/fresh", &cookie, 200, &[("Cache-Control", "public, max-age=5")]).unwrap();
    assert!(public.shared);
    assert!(terms("/user", &cookie, 200, &[]).is_some(), "the key holds it");
    assert_eq!(
        terms("/fresh", &[("Authorization", "x")], 200, &[("Cache-Control", "public")]),
        None
    );
    assert!(terms("/user", &[("Authorization", "x")], 200, &[]).is_some(), "the key holds it");
    assert_eq!(terms("/user", &[("Authorization", "x")], 200, &[("Set-Cookie", "a=1")]), None);

    let plain = terms("/fresh", &[], 200, &[]).unwrap();
    let head = Head::new(&cookie);
    let asks = Facts { headers: head.headers(), host: "", ..facts("/fresh") };
    let lookup = look(&mut policy(), &asks).unwrap();
    assert!(!plain.answers(&lookup, Duration::ZERO), "what anonymous clients get may differ");
    assert!(public.answers(&lookup, Duration::ZERO));
}

#[test]
fn variants_differ_by_what_vary_names_and_nothing_else() {
    let said = Head::new(&[("Vary", "Accept-Language, accept"), ("vary", "X-A,")]);
    let names: Vec<&[u8]> = vary(said.headers()).collect();
    assert_eq!(names, [&b"Accept-Language"[..], b"accept", b"X-A"]);
    let of = |fields: &[(&str, &str)]| {
        let head = Head::new(fields);
        CacheKey(7).variant(names.iter().copied(), head.headers())
    };
    let plain = of(&[("Accept", "a, b"), ("Accept-Language", "en")]);
    for same in [
        &[("accept-language", "en"), ("ACCEPT", "a,b"), ("User-Agent", "x")][..],
        &[("Accept", "a"), ("Accept", "b"), ("Accept-Language", "en")],
    ] {
        assert_eq!(of(same), plain, "{same:?}");
    }
    for other in [
        &[("Accept", "a, b"), ("Accept-Language", "de")][..],
        &[("Accept", "b, a"), ("Accept-Language", "en")],
        &[("Accept-Language", "en")],
        &[("Accept", "en"), ("Accept-Language", "a, b")],
        &[("Accept", "a, b"), ("Accept-Language", "en"), ("X-A", "1")],
    ] {
        assert_ne!(of(other), plain, "{other:?}");
    }
    assert_ne!(of(&[("Accept", "en")]), of(&[("Accept-Language", "en")]));
}

proptest! {
    /// Whatever is there and whatever happens: what is served is the best that the route allows,
    /// and nothing is looked for twice.
    #[test]
    fn decisions_follow_the_order_of_quality(
        route in 0..4_usize, fresh in any::<bool>(), any in any::<bool>(), event in 0..6_usize,
        head in any::<bool>(), renew in any::<bool>(),
    ) {
        let path = ["/fresh", "/stale", "/bare", "/none"][route];
        let event = [WELL, ERROR, SLOW, REFUSED, Event::Responded { status: 404 },
            Event::Failed { failure: Failure::PoolFull, replayable: true }][event];
        let cause = match event {
            Event::Responded { status: 502 } => Some(Cause::Status),
            SLOW => Some(Cause::Timeout),
            REFUSED => Some(Cause::Connect),
            Event::Failed { .. } => Some(Cause::Shed),
            _ => None,
        };
        let fields = if renew { &[("Cache-Control", "no-cache")][..] } else { &[] };
        let sent = Head::new(fields);
        let method = if head { "HEAD" } else { "GET" };
        let asks = Facts { headers: sent.headers(), host: "", method, ..facts(path) };
        let world = World { fresh, any };
        let (found, record) = world.run(&mut policy(), &asks, event);
        let stands_in = match path {
            "/stale" => cause.is_some(),
            "/bare" => cause == Some(Cause::Status),
            _ => false,
        };
        let copy = path != "/none" && (fresh && !renew || stands_in && (fresh || any));
        prop_assert_eq!(found == Outcome::Copy, copy);
        if !copy {
            let expected = match (event, path) {
                (_, "/stale") if cause.is_some() => Outcome::Answer(503, Some(Source::Static)),
                (Event::Responded { .. }, _) => Outcome::Relay,
                (SLOW, _) => Outcome::Answer(504, None),
                (REFUSED, _) => Outcome::Answer(502, None),
                (_, _) => Outcome::Answer(503, None),
            };
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(record.cache.is_none(), path == "/none");
    }

    /// A copy answers while it is fresh, stands in while it is stale, and no longer; and time
    /// never makes it better.
    #[test]
    fn a_copy_only_gets_worse(
        age in 0..100_u64, fresh in 0..100_u64, stale in 0..100_u64, shared in any::<bool>(),
        held in 0..300_u64, age_max in 0..100_u64,
    ) {
        let s = Duration::from_secs;
        let terms = Terms { age: s(age), fresh: s(fresh), stale: s(stale), shared };
        let looked = look(&mut policy(), &Facts { host: "", ..facts("/fresh") }).unwrap();
        let want = |wanted, held| terms.answers(&Lookup { wanted, ..looked }, s(held));
        let bounded = Wanted::Fresh { age_max: s(age_max) };
        let old = age + held;
        prop_assert_eq!(want(Wanted::Any, held), old < fresh + stale);
        prop_assert_eq!(want(bounded, held), old < fresh && old <= age_max);
        prop_assert!(want(Wanted::Any, held) || !want(Wanted::Any, held + 1));
        prop_assert!(!want(bounded, held) || want(Wanted::Any, held));
    }
}
