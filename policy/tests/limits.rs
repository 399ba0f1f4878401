//! Limits through the policy API: who is counted apart, who waits, what is given back.

mod written;

use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::{Facts, Identity};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::sim::{Head, facts};
use sluice_policy::time::{Instant, Now, Wall};

fn policy(limits: &str, route: &str) -> Policy {
    let respond = "[route.r]\nmatch = \"/{*rest}\"\nrespond = { body = \"ok\" }\n";
    let plan = written::plan(&format!("{limits}\n{respond}{route}"));
    Policy::new(plan, Arc::new(Ledger::new(1024, [5; 16])), 1)
}

fn now(ms: u64) -> Now {
    Now { at: Instant::from_nanos(ms * 1_000_000), wall: Wall(ms / 1000) }
}

fn ask(policy: &mut Policy, ms: u64, facts: &Facts<'_>) -> (Decision, Flight) {
    let mut flight = policy.begin(now(ms), facts);
    let decision = policy.decide(now(ms), facts, &mut flight, Event::Arrived);
    (decision, flight)
}

fn end(policy: &mut Policy, ms: u64, flight: Flight) {
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    policy.end(now(ms), flight, ending);
}

fn status(policy: &mut Policy, ms: u64, facts: &Facts<'_>) -> u16 {
    let (decision, flight) = ask(policy, ms, facts);
    end(policy, ms, flight);
    match decision {
        Decision::Answer(answer) => answer.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_asks_is_counted_apart_once_it_is_known() {
    let who = |user, tenant, claims| Identity { user, tenant, claims };
    let gold: &[(&str, &str)] = &[("plan", "gold")];
    let free: &[(&str, &str)] = &[("plan", "free")];
    let none: &[(&str, &str)] = &[];
    let (ann, bob) = (who(Some("ann"), None, none), who(Some("bob"), None, none));
    let (acme, init) = (who(Some("ann"), Some("acme"), none), who(Some("ann"), Some("init"), none));
    let (golden, freely) = (who(None, None, gold), who(None, None, free));
    // (key, the first, the second, whether they share a count)
    let table = [
        ("user", Some(ann), Some(ann), true),
        ("user", Some(ann), Some(bob), false),
        ("user", None, None, true),
        ("user|ip", None, None, true),
        ("user|ip", Some(ann), None, false),
        ("tenant", Some(acme), Some(init), false),
        ("claim:plan", Some(golden), Some(freely), false),
        ("claim:plan", Some(golden), Some(golden), true),
        // Tenants never share a count, whatever the key.
        ("ip", Some(acme), Some(init), false),
        ("ip", Some(ann), Some(bob), true),
        ("user", Some(acme), Some(ann), false),
    ];
    for (key, first, second, shared) in table {
        let limits = format!("[limit.l]\nkey = [\"{key}\"]\nrate = \"1/h\"");
        let mut policy = policy(&limits, "limits = [\"l\"]");
        let facts = |who| Facts { identity: who, ..facts("/") };
        assert_eq!(status(&mut policy, 1000, &facts(first.as_ref())), 200, "{key}");
        let expected = if shared { 429 } else { 200 };
        let got = status(&mut policy, 1000, &facts(second.as_ref()));
        assert_eq!(got, expected, "{key}: {first:?} {second:?}");
    }
}

#[test]
fn what_a_route_says_goes_before_what_a_tenant_has_and_that_before_the_default() {
    // Each of them admits another number at once, so the number says which of them counts.
    let limits = "[limit.base]\nrate = \"1/h\"\ndefault = true\n\
                  [limit.gold]\nkind = \"sliding\"\nrate = \"2/h\"\n\
                  [limit.silver]\nrate = \"3/h\"\nkey = [\"user|ip\"]\n\
                  [limit.own]\nkind = \"fixed\"\nrate = \"4/h\"\n";
    let tenants = "[tenant.acme]\nlimits = [\"gold\"]\n[tenant.init]\nlimits = [\"silver\"]\n\
                   [tenant.free]\nlimits = []\n";
    let bare = limits.replace("default = true", "default = false");
    // (all limits, the tenants', the route's, who asks, how many of 9 are admitted)
    for (limits, tenants, route, tenant, admitted) in [
        (limits, "", "", None, 1),
        (limits, "", "", Some("acme"), 1),
        (limits, tenants, "", None, 1),
        (limits, tenants, "", Some("nobody"), 1),
        (limits, tenants, "", Some("acme"), 2),
        (limits, tenants, "", Some("init"), 3),
        (limits, tenants, "", Some("free"), 9),
        (limits, "", "limits = [\"own\"]", Some("acme"), 4),
        (limits, tenants, "limits = [\"own\"]", None, 4),
        (limits, tenants, "limits = [\"own\"]", Some("acme"), 4),
        (limits, tenants, "limits = [\"own\"]", Some("free"), 4),
        (limits, tenants, "limits = [\"own\", \"gold\"]", Some("init"), 2),
        (limits, tenants, "limits = []", Some("acme"), 9),
        (&bare, tenants, "", None, 9),
        (&bare, tenants, "", Some("acme"), 2),
        (&bare, tenants, "limits = [\"own\"]", Some("acme"), 4),
    ] {
        let mut policy = policy(&format!("{limits}{tenants}"), route);
        let who = tenant.map(|_| Identity { user: Some("ann"), tenant, claims: &[] });
        let facts = Facts { identity: who.as_ref(), ..facts("/") };
        let passed = (0..9).filter(|_| status(&mut policy, 7_200_000, &facts) == 200).count();
        assert_eq!(passed, admitted, "{tenants:?} {route:?} {tenant:?}");
    }
}

#[test]
fn what_a_later_filter_refuses_costs_nothing() {
    for kind in ["bucket", "sliding", "fixed", "quota"] {
        let limits = format!(
            "[limit.l]\nkind = \"{kind}\"\nrate = \"3/h\"\n[limit.m]\nrate = \"9/h\"\n\
             [limit.s]\nrate = \"3/h\"\nshadow = true"
        );
        let route = "limits = [\"l\", \"m\", \"s\"]\nconcurrency = { max = 1 }";
        let mut policy = policy(&limits, route);
        let at = 7_200_000;
        let (_, busy) = ask(&mut policy, at, &facts("/"));
        for _ in 0..10 {
            assert_eq!(status(&mut policy, at, &facts("/")), 503, "{kind}");
        }
        end(&mut policy, at, busy);
        let after: Vec<_> = (0..3).map(|_| status(&mut policy, at, &facts("/"))).collect();
        assert_eq!(after, [200, 200, 429], "{kind}");
    }
}

#[test]
fn parts_of_a_key_cannot_trade_bytes() {
    let first: &[(&str, &str)] = &[("a", "x\u{1}y"), ("b", "z")];
    let second: &[(&str, &str)] = &[("a", "x"), ("b", "y\u{1}z")];
    let limits = "[limit.l]\nkey = [\"claim:a\", \"claim:b\"]\nrate = \"1/h\"";
    let mut policy = policy(limits, "limits = [\"l\"]");
    for claims in [first, second] {
        let who = Identity { user: None, tenant: None, claims };
        let facts = Facts { identity: Some(&who), ..facts("/") };
        assert_eq!(status(&mut policy, 1000, &facts), 200, "{claims:?}");
    }
}

#[test]
fn a_field_that_states_the_cost_takes_at_least_one_and_at_most_all() {
    let limits = "[limit.l]\nrate = \"10/h\"\ncost = \"header:x-cost\"";
    // (what it says, left of ten)
    let table = [("3", 7), ("0", 9), ("", 9), ("-2", 9), ("all", 9), ("10", 0), ("11", 0)];
    let long = ("123456789012345678901234567890", 0);
    for (cost, left) in table.into_iter().chain([long]) {
        let mut policy = policy(limits, "limits = [\"l\"]");
        let head = Head::new(&[("x-cost", cost)]);
        let facts = Facts { headers: head.headers(), ..facts("/") };
        let (decision, flight) = ask(&mut policy, 1000, &facts);
        assert!(matches!(decision, Decision::Answer(answer) if answer.status == 200), "{cost}");
        assert_eq!(flight.limit().unwrap().left, left, "{cost}");
        end(&mut policy, 1000, flight);
    }
}

const LEAKY: &str = "[limit.l]\nkind = \"leaky\"\nrate = \"10/s\"\nmax_wait = \"250ms\"";

fn turn(decision: Decision) -> Option<u64> {
    match decision {
        Decision::Wait(until) => Some(until.as_nanos() / 1_000_000),
        Decision::Answer(answer) if answer.status == 200 => Some(0),
        Decision::Answer(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_comes_too_early_waits_for_its_turn_and_no_longer_than_allowed() {
    let mut policy = policy(LEAKY, "limits = [\"l\"]");
    let facts = facts("/");
    let (turns, flights): (Vec<_>, Vec<_>) = (0..4)
        .map(|_| ask(&mut policy, 1000, &facts))
        .map(|(decision, flight)| (turn(decision), flight))
        .unzip();
    assert_eq!(turns, [Some(0), Some(1100), Some(1200), None]);
    let mut flights = flights.into_iter();
    end(&mut policy, 1000, flights.next().unwrap());
    let mut second = flights.next().unwrap();
    let woken = policy.decide(now(1100), &facts, &mut second, Event::Woke);
    assert_eq!(turn(woken), Some(0));
    end(&mut policy, 1100, second);
    // The last in the queue leaves: the next takes its turn. Refused ones had none.
    end(&mut policy, 1100, flights.next().unwrap());
    end(&mut policy, 1100, flights.next().unwrap());
    let (decision, flight) = ask(&mut policy, 1110, &facts);
    assert_eq!(turn(decision), Some(1200));
    end(&mut policy, 1210, flight);
}

#[test]
fn a_queue_lets_one_go_at_a_time_over_any_load() {
    let mut policy = policy(LEAKY, "limits = [\"l\"]");
    let mut turns = Vec::new();
    for ms in 1000..3000 {
        let (decision, flight) = ask(&mut policy, ms, &facts("/"));
        let turn = turn(decision).map(|turn| turn.max(ms));
        if let Some(turn) = turn {
            turns.push(turn);
        }
        // It waits on in another life: give-back is only for who leaves while waiting.
        let mut flight = flight;
        if matches!(decision, Decision::Wait(_)) {
            let _ = policy.decide(now(ms), &facts("/"), &mut flight, Event::Woke);
        }
        end(&mut policy, ms, flight);
    }
    assert!(turns.windows(2).all(|pair| pair[1] >= pair[0] + 100), "{turns:?}");
    assert!(turns.len() >= 20, "{}", turns.len());
}

#[test]
fn an_edge_is_crossed_twice_in_a_fixed_window_and_once_in_a_sliding_one() {
    for (kind, second) in [("fixed", 100), ("sliding", 0)] {
        let limits = format!("[limit.l]\nkind = \"{kind}\"\nrate = \"100/s\"");
        let mut policy = policy(&limits, "limits = [\"l\"]");
        let mut passed =
            |ms| (0..150).filter(|_| status(&mut policy, ms, &facts("/")) == 200).count();
        assert_eq!((passed(5900), passed(6100)), (100, second), "{kind}");
    }
}

#[test]
fn every_violated_limit_is_told_and_a_shadow_never() {
    let limits = "[limit.a]\nrate = \"1/h\"\n[limit.b]\nkind = \"sliding\"\nrate = \"1/min\"\n\
                  [limit.s]\nrate = \"1/h\"\nshadow = true";
    let mut policy = policy(limits, "limits = [\"s\", \"a\", \"b\"]");
    assert_eq!(status(&mut policy, 1000, &facts("/")), 200);
    let (decision, flight) = ask(&mut policy, 1000, &facts("/"));
    let Decision::Answer(answer) = decision else { panic!("{decision:?}") };
    assert_eq!(answer.retry_after, Some(Duration::from_secs(3600)));
    let told: Vec<_> = flight.limits().map(|l| (l.limit, l.quota, l.left)).collect();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|(limit, quota, left)| {
        flight.plan().limit_name(*limit) != "s" && (*quota, *left) == (1, 0)
    }));
    end(&mut policy, 1000, flight);
}

#[test]
fn of_several_that_refuse_the_longest_wait_is_told_in_any_order() {
    let limits = "[limit.hour]\nrate = \"1/h\"\n[limit.minute]\nrate = \"1/min\"";
    for order in ["[\"hour\", \"minute\"]", "[\"minute\", \"hour\"]"] {
        let mut policy = policy(limits, &format!("limits = {order}"));
        assert_eq!(status(&mut policy, 1000, &facts("/")), 200);
        let (decision, flight) = ask(&mut policy, 1000, &facts("/"));
        let Decision::Answer(answer) = decision else { panic!("{decision:?}") };
        assert_eq!(answer.retry_after, Some(Duration::from_secs(3600)), "{order}");
        let told = flight.violated().map(|limit| flight.plan().limit_name(limit));
        assert_eq!(told, Some("hour"), "{order}");
        end(&mut policy, 1000, flight);
    }
}

#[test]
fn what_is_tightest_is_told_and_a_shadow_beside_it_refuses_nobody() {
    let limits = "[limit.wide]\nrate = \"100/h\"\n[limit.tight]\nrate = \"3/h\"\n\
                  [limit.s]\nrate = \"1/h\"\nshadow = true";
    for order in ["[\"s\", \"wide\", \"tight\"]", "[\"tight\", \"wide\", \"s\"]"] {
        let mut policy = policy(limits, &format!("limits = {order}"));
        for left in [2, 1, 0] {
            let (decision, flight) = ask(&mut policy, 1000, &facts("/"));
            assert!(matches!(decision, Decision::Answer(answer) if answer.status == 200));
            let told = flight.limit().unwrap();
            let told = (flight.plan().limit_name(told.limit), told.left);
            assert_eq!(told, ("tight", left), "{order}");
            end(&mut policy, 1000, flight);
        }
    }
}

/// What the response says it has cost, in the field that the limit names.
fn settle(policy: &mut Policy, ms: u64, flight: &mut Flight, cost: &str) {
    let head = Head::new(&[("X-Cost", cost)]);
    policy.settle(now(ms), &facts("/"), flight, head.headers());
}

#[test]
fn a_cost_that_the_response_states_is_paid_in_full_and_into_debt() {
    // (kind, after the debt of 15 of 10: still refused, then admitted, in ms)
    let table = [
        ("rate = \"1/s\"\nburst = 10", 5_999, 6_000),
        ("kind = \"fixed\"\nrate = \"10/min\"", 59_999, 60_000),
    ];
    for (kind, refused, admitted) in table {
        let limits = format!("[limit.l]\n{kind}\ncost = \"response:x-cost\"");
        let mut policy = policy(&limits, "limits = [\"l\"]");
        let at = 600_000;
        let mut flights = Vec::new();
        for (cost, left) in [("5", 5), ("10", 0)] {
            let (_, mut flight) = ask(&mut policy, at, &facts("/"));
            settle(&mut policy, at, &mut flight, cost);
            assert_eq!(flight.limit().unwrap().left, left, "{kind}");
            flights.push(flight);
        }
        flights.into_iter().for_each(|flight| end(&mut policy, at, flight));
        assert_eq!(status(&mut policy, at + refused, &facts("/")), 429, "{kind}");
        assert_eq!(status(&mut policy, at + admitted, &facts("/")), 200, "{kind}");
    }
}

#[test]
fn whatever_responses_cost_what_is_spent_stays_within_the_bound() {
    let limits = "[limit.l]\nrate = \"10/s\"\nburst = 20\ncost = \"response:x-cost\"";
    let mut policy = policy(limits, "limits = [\"l\"]");
    let mut spent = 0;
    // One at a time: each is settled before the next is asked.
    for ms in (1000..31_000).step_by(10) {
        let (decision, mut flight) = ask(&mut policy, ms, &facts("/"));
        if matches!(decision, Decision::Answer(answer) if answer.status == 200) {
            let cost = 1 + ms / 10 % 20;
            settle(&mut policy, ms, &mut flight, &cost.to_string());
            spent += cost;
        }
        end(&mut policy, ms, flight);
    }
    // The burst, the rate, and one request's cost that came to light too late.
    assert!((280..=20 + 300 + 19).contains(&spent), "{spent}");
}

#[test]
fn nonsense_in_the_response_costs_one() {
    let limits = "[limit.l]\nrate = \"10/h\"\ncost = \"response:x-cost\"";
    let mut policy = policy(limits, "limits = [\"l\"]");
    for (cost, left) in [("", 9), ("-3", 8), ("0", 7), ("many", 6), ("1", 5), ("2", 3)] {
        let (_, mut flight) = ask(&mut policy, 1000, &facts("/"));
        settle(&mut policy, 1000, &mut flight, cost);
        assert_eq!(flight.limit().unwrap().left, left, "{cost:?}");
        end(&mut policy, 1000, flight);
    }
}

/// How many of so many at once are admitted, and how many are left for more.
fn burst(policy: &mut Policy, ms: u64, count: usize) -> (usize, Option<u32>) {
    let (mut passed, mut left) = (0, None);
    for _ in 0..count {
        let (decision, flight) = ask(policy, ms, &facts("/"));
        passed += usize::from(matches!(decision, Decision::Answer(answer) if answer.status == 200));
        left = flight.limit().map(|limit| limit.left);
        end(policy, ms, flight);
    }
    (passed, left)
}

#[test]
fn buckets_keep_to_timelines_that_were_worked_out_by_hand() {
    // (the limit, (at ms, asked, admitted, left then))
    let fifty = "rate = \"10/s\"\nburst = 50";
    let timelines: [(_, &[_]); 3] = [
        // 20 left of 50; ten more each second: 40 are there in second 3, 10 in second 4.
        (fifty, &[(1000, 30, 30, 20), (3000, 60, 40, 0), (4000, 10, 10, 0)]),
        // The same 60 in second 2 find 30.
        (fifty, &[(1000, 30, 30, 20), (2000, 60, 30, 0), (3000, 10, 10, 0), (3000, 1, 0, 0)]),
        ("rate = \"1000/s\"\nburst = 2000", &[(1000, 2500, 2000, 0), (1500, 600, 500, 0)]),
    ];
    for (limit, timeline) in timelines {
        let mut policy = policy(&format!("[limit.l]\n{limit}"), "limits = [\"l\"]");
        for &(ms, asked, admitted, left) in timeline {
            let got = burst(&mut policy, ms, asked);
            assert_eq!(got, (admitted, Some(left)), "{limit} at {ms} ms");
        }
    }
}

#[test]
fn one_a_minute_says_so_to_the_second_and_comes_back_on_it() {
    for kind in ["bucket", "sliding"] {
        let limits = format!("[limit.sms]\nkind = \"{kind}\"\nrate = \"1/min\"");
        let mut policy = policy(&limits, "limits = [\"sms\"]");
        let start = 600_000;
        assert_eq!(status(&mut policy, start, &facts("/")), 200, "{kind}");
        let (decision, flight) = ask(&mut policy, start + 20_000, &facts("/"));
        let Decision::Answer(answer) = decision else { panic!("{decision:?}") };
        assert_eq!((answer.status, answer.retry_after), (429, Some(Duration::from_secs(40))));
        let told = flight.limit().unwrap();
        assert_eq!((told.left, told.reset), (0, Duration::from_secs(40)), "{kind}");
        end(&mut policy, start + 20_000, flight);
        for (after_us, expected) in [(59_999_999, 429), (60_000_000, 200), (60_000_001, 429)] {
            let at = Instant::from_nanos(start * 1_000_000 + after_us * 1000);
            let now = Now { at, wall: Wall(1) };
            let mut flight = policy.begin(now, &facts("/"));
            let decision = policy.decide(now, &facts("/"), &mut flight, Event::Arrived);
            end(&mut policy, start + 20_000, flight);
            let Decision::Answer(answer) = decision else { panic!("{decision:?}") };
            assert_eq!(answer.status, expected, "{kind} after {after_us} us");
        }
    }
}
