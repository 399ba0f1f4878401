//! What was spent: costs that the response states, reloads of every kind, thresholds side by side.

use sluice_tests::{Config, Origin, Sluice};

fn limited(origin: &Origin, limits: &str, route: &str) -> Config {
    Config::to(&[origin.addr()]).more(limits).route(route)
}

#[test]
fn a_cost_that_the_response_states_is_charged_into_debt() {
    // The cost is the path: /7 costs 7.
    let origin = Origin::answering(|request| {
        let cost = request.head.line.split(['/', ' ']).nth(2).unwrap_or_default();
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n";
        format!("{head}X-Cost: {cost}\r\n\r\n").into_bytes()
    });
    for (kind, longest) in
        [("rate = \"10/h\"", 2520), ("kind = \"quota\"\nrate = \"10/day\"", 86_400)]
    {
        let limits = format!("[limit.l]\n{kind}\ncost = \"response:x-cost\"\n");
        let sluice = Sluice::start(limited(&origin, &limits, "limits = [\"l\"]"));
        let mut client = sluice.client();
        let mut left = |path: &str| {
            let response = client.get(path);
            let stated = response.field("ratelimit").unwrap_or_default().to_owned();
            let from = stated.find(";r=").map_or(0, |at| at + 3);
            let left: String = stated[from..].chars().take_while(char::is_ascii_digit).collect();
            (response.status(), left, response.field("retry-after").map(str::to_owned))
        };
        assert_eq!(left("/3"), (200, "7".to_owned(), None), "{kind}");
        assert_eq!(left("/none"), (200, "6".to_owned(), None), "{kind}: none is one");
        // 12 are more than the limit, so 10: 4 below zero.
        assert_eq!(left("/12"), (200, "0".to_owned(), None), "{kind}");
        let (status, _, wait) = left("/1");
        assert_eq!(status, 429, "{kind}");
        let wait: u64 = wait.expect("Retry-After").parse().expect("seconds");
        assert!(wait <= longest, "{kind}: {wait}");
        // Five tokens of six minutes each are missing.
        assert!(!kind.contains("10/h") || wait > 1780, "{kind}: {wait}");
    }
}

#[test]
fn the_problem_names_the_limits_that_refused() {
    let origin = Origin::ok("hello");
    let limits = "[limit.a]\nrate = \"1/h\"\n[limit.b]\nrate = \"9/h\"\n\
                  [limit.c]\nkind = \"sliding\"\nrate = \"1/min\"\n";
    let sluice = Sluice::start(limited(&origin, limits, "limits = [\"a\", \"b\", \"c\"]"));
    let mut client = sluice.client();
    assert_eq!(client.get("/a").status(), 200);
    let refused = client.get("/a");
    assert_eq!(refused.status(), 429);
    let body = refused.json();
    assert_eq!(body["violated-policies"], serde_json::json!(["a", "c"]));
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(body["code"], "limit.exceeded");
}

#[test]
fn every_kind_keeps_what_was_spent_over_a_reload_to_another_rate() {
    // (kind, before, how many are spent, after, how many are left then); a bucket keeps the time
    // that it owes: 48 minutes are 16 tokens of 20 an hour.
    let table = [
        ("bucket", "10/h", 8, "20/h", 4),
        ("sliding", "64/h", 64, "10/h", 0),
        ("sliding", "100/h", 80, "70/h", 0),
        ("sliding", "10/h", 8, "64/h", 56),
        ("fixed", "10/h", 8, "5/h", 0),
        ("fixed", "10/h", 8, "12/h", 4),
        ("quota", "10/day", 8, "12/day", 4),
        ("quota", "10/day", 8, "5/day", 0),
    ];
    let origin = Origin::ok("hello");
    let config = |kind: &str, rate: &str| {
        limited(
            &origin,
            &format!("[limit.l]\nkind = \"{kind}\"\nrate = \"{rate}\"\n"),
            "limits = [\"l\"]",
        )
    };
    for (kind, before, spent, after, left) in table {
        let sluice = Sluice::start(config(kind, before).workers(2));
        let mut client = sluice.client();
        for _ in 0..spent {
            assert_eq!(client.get("/a").status(), 200, "{kind} {before}");
        }
        assert_eq!(sluice.reload(config(kind, after).workers(2)).code, Some(0));
        let passed = (0..=left).filter(|_| sluice.client().get("/a").status() == 200).count();
        assert_eq!(passed, left, "{kind}: {spent} of {before} spent, then {after}");
    }
}

#[test]
fn two_thresholds_are_tried_side_by_side_and_neither_is_enforced() {
    let limits = "[limit.tight]\nrate = \"2/h\"\nshadow = true\n\
                  [limit.wide]\nkind = \"sliding\"\nrate = \"4/h\"\nshadow = true\n";
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(limited(&origin, limits, "limits = [\"tight\", \"wide\"]"));
    let mut client = sluice.client();
    for _ in 0..6 {
        let response = client.get("/a");
        assert_eq!((response.status(), response.field("ratelimit")), (200, None));
    }
    for (limit, allowed, refused) in [("tight", 2, 4), ("wide", 4, 2)] {
        for (decision, count) in [("allowed", allowed), ("shadow_refused", refused)] {
            let name = "sluice_limit_decisions_total";
            let line = format!("{name}{{limit=\"{limit}\",decision=\"{decision}\"}}");
            sluice.wait_for_metric(&line, count.into());
        }
    }
}

#[test]
fn an_anonymous_user_is_counted_by_address() {
    let origin = Origin::ok("hello");
    let limits = "[limit.l]\nkey = [\"user|ip\"]\nrate = \"2/h\"\n";
    let config =
        limited(&origin, limits, "limits = [\"l\"]").server("trusted_proxies = [\"127.0.0.0/8\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let mut ask = |from: &str| client.ask("/a", &format!("X-Forwarded-For: {from}\r\n")).status();
    let asked = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];
    assert_eq!(asked.map(&mut ask), [200, 200, 429, 200, 200, 200]);
    // One /64 is one customer.
    assert_eq!(["2001:db8::3", "2001:db8:0:1::1"].map(ask), [429, 200]);
}
