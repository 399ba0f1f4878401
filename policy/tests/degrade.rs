//! What is answered instead of failing: by cause, by switch, by drill.

mod written;

use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Answer, Decision, Event, Failure};
use sluice_policy::degrade::{Cause, Source, Switches};
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::{GroupKey, RouteKey};
use sluice_policy::sim::facts;
use sluice_policy::time::Now;
use sluice_policy::world::Signal;

const TOML: &str = r#"
[upstream.a]
servers = ["a:1"]
[limit.none]
key = ["ip"]
rate = "1/day"
[route.plain]
match = "/plain"
to = "a"
retries = 0
[route.covered]
match = "/covered"
to = "a"
retries = 0
limits = ["none"]
group = "shop"
fallback = { body = "sorry" }
[route.some]
match = "/some"
to = "a"
retries = 0
vital = true
fallback = { on = ["5xx", "limited"], status = 204 }
"#;

fn policy() -> Policy {
    Policy::new(written::plan(TOML), Arc::new(Ledger::new(8, [0; 16])), 1)
}

/// What comes of a request whose attempt ends so; None: the server's own response.
fn outcome(policy: &mut Policy, path: &str, event: Event) -> Option<Answer> {
    let now = Now::default();
    let mut flight = policy.begin(now, &facts(path));
    let mut decision = policy.decide(now, &facts(path), &mut flight, Event::Arrived);
    if let Decision::Call(_) = decision {
        decision = policy.decide(now, &facts(path), &mut flight, event);
    }
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let record = policy.end(now, flight, ending);
    match decision {
        Decision::Relay => None,
        Decision::Answer(answer) => {
            assert_eq!(record.answer, Some(answer), "it is recorded");
            Some(answer)
        }
        other => panic!("{other:?}"),
    }
}

const fn failed(failure: Failure) -> Event {
    Event::Failed { failure, replayable: true }
}

#[test]
fn a_fallback_stands_in_for_the_causes_it_names_and_no_others() {
    const WELL: Event = Event::Responded { status: 200 };
    const ERROR: Event = Event::Responded { status: 500 };
    let covered = Some((503, Some(Source::Static)));
    for (path, event, expected) in [
        ("/plain", WELL, None),
        ("/plain", ERROR, None),
        ("/plain", failed(Failure::TimedOut), Some((504, None))),
        ("/covered", WELL, None),
        ("/covered", Event::Responded { status: 404 }, None),
        ("/covered", ERROR, covered),
        ("/covered", failed(Failure::TimedOut), covered),
        ("/covered", failed(Failure::Connect), covered),
        ("/covered", failed(Failure::PoolFull), covered),
        ("/some", ERROR, Some((204, Some(Source::Empty)))),
        ("/some", failed(Failure::TimedOut), Some((504, None))),
    ] {
        let found = outcome(&mut policy(), path, event);
        let found = found.map(|answer| (answer.status, answer.degraded));
        assert_eq!(found, expected, "{path} {event:?}");
    }
    let mut policy = policy();
    assert_eq!(outcome(&mut policy, "/covered", WELL), None);
    let refused = outcome(&mut policy, "/covered", WELL).unwrap();
    assert_eq!((refused.status, refused.degraded), (429, None), "a limit is not hidden");
}

#[test]
fn switches_take_routes_away_and_give_them_back() {
    let event = Event::Responded { status: 200 };
    let shop = Switches { off: vec![GroupKey::of(&["shop"])], ..Switches::default() };
    let survival = Switches { survival: true, ..Switches::default() };
    let drill = |route, cause| Switches {
        drills: vec![(RouteKey::of(&[route]), cause)],
        ..Switches::default()
    };
    for (switches, codes) in [
        (Switches::default(), [None, None, None]),
        (shop, [None, Some(("switch.off", true)), None]),
        (survival, [Some(("switch.survival", false)), Some(("switch.survival", true)), None]),
        (drill("plain", Cause::Timeout), [Some(("drill.timeout", false)), None, None]),
        (drill("covered", Cause::Timeout), [None, Some(("drill.timeout", true)), None]),
        (drill("covered", Cause::Limited), [None, Some(("drill.limited", false)), None]),
        (drill("some", Cause::Limited), [None, None, Some(("drill.limited", true))]),
    ] {
        let mut policy = policy();
        policy.signal(Now::default(), Signal::Switches(&switches));
        for (path, expected) in ["/plain", "/covered", "/some"].into_iter().zip(codes) {
            let found = outcome(&mut policy, path, event);
            let found = found.map(|answer| (answer.code, answer.degraded.is_some()));
            assert_eq!(found, expected, "{path} with {switches:?}");
        }
        policy.signal(Now::default(), Signal::Switches(&Switches::default()));
        assert_eq!(outcome(&mut policy, "/plain", event), None, "given back");
    }
}
