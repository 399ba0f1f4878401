//! Every way to count, through the binary: what clients get and what operators see.

use std::time::Instant;

use sluice_tests::{Config, Origin, Response, Sluice};

fn limited(limit: &str, route: &str) -> (Origin, Sluice) {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]).more(limit).route(route);
    let sluice = Sluice::start(config);
    (origin, sluice)
}

#[test]
fn each_kind_admits_its_number_and_says_when_there_is_more() {
    let cases = [
        ("kind = \"sliding\"\nrate = \"3/min\"", 3, 60),
        ("kind = \"sliding\"\nrate = \"100/min\"", 100, 60),
        ("kind = \"fixed\"\nrate = \"3/h\"", 3, 3600),
        ("kind = \"quota\"\nrate = \"4/day\"", 4, 86_400),
        ("kind = \"quota\"\nrate = \"4/month\"", 4, 31 * 86_400),
        ("kind = \"bucket\"\nrate = \"2/h\"\nburst = 3", 3, 1800),
    ];
    for (limit, quota, longest) in cases {
        let (origin, sluice) = limited(&format!("[limit.l]\n{limit}\n"), "limits = [\"l\"]");
        let mut client = sluice.client();
        for _ in 0..quota {
            assert_eq!(client.get("/a").status(), 200, "{limit}");
        }
        let refused = client.get("/a");
        assert_eq!(refused.status(), 429, "{limit}");
        let wait: u64 = refused.field("retry-after").expect("Retry-After").parse().unwrap();
        assert!((1..=longest).contains(&wait), "{limit}: {wait}");
        let policy = format!("q={quota};");
        assert!(refused.field("ratelimit-policy").is_some_and(|p| p.contains(&policy)), "{limit}");
        assert_eq!(refused.field("cache-control"), Some("no-store"));
        assert_eq!(origin.requests().len(), quota);
    }
}

#[test]
fn a_leaky_bucket_makes_them_wait_and_turns_away_who_would_wait_too_long() {
    let limit = "[limit.l]\nkind = \"leaky\"\nrate = \"10/s\"\nmax_wait = \"150ms\"\n";
    let (_origin, sluice) = limited(limit, "limits = [\"l\"]");
    let began = Instant::now();
    let ask = || sluice.client().get("/a").status();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|client| client.join().expect("a status")).collect()
    });
    let passed = statuses.iter().filter(|status| **status == 200).count();
    // One at once, one after 100 ms; and one more for each 100 ms that asking took.
    let took = began.elapsed().as_millis();
    assert!(passed >= 2 && took >= 100, "{statuses:?} in {took} ms");
    assert!(passed as u128 <= 2 + took / 100, "{statuses:?} in {took} ms");
}

#[test]
fn a_shadow_limit_counts_and_refuses_nobody() {
    let limit = "[limit.s]\nrate = \"1/h\"\nshadow = true\n[limit.l]\nrate = \"3/h\"\n";
    let (_origin, sluice) = limited(limit, "limits = [\"s\", \"l\"]");
    let mut client = sluice.client();
    let statuses: Vec<_> = (0..4).map(|_| client.get("/a").status()).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    for (limit, decision, count) in [
        ("s", "allowed", 1.0),
        ("s", "refused", 0.0),
        ("s", "shadow_refused", 2.0),
        ("l", "refused", 1.0),
    ] {
        let name = "sluice_limit_decisions_total";
        let labels = format!("{{limit=\"{limit}\",decision=\"{decision}\"}}");
        sluice.wait_for_metric(&format!("{name}{labels}"), count);
    }
}

#[test]
fn a_default_limit_holds_where_a_route_names_none() {
    let limit = "[limit.base]\nrate = \"1/h\"\ndefault = true\n[limit.more]\nrate = \"2/h\"\n\
                 [route.own]\nmatch = \"/own\"\nto = \"app\"\nlimits = [\"more\"]\n\
                 [route.free]\nmatch = \"/free\"\nto = \"app\"\nlimits = []\n";
    let (_origin, sluice) = limited(limit, "");
    let mut client = sluice.client();
    let paths = ["/a", "/a", "/own", "/own", "/own", "/free", "/free", "/free"];
    let statuses = paths.map(|path| client.get(path).status());
    assert_eq!(statuses, [200, 429, 200, 200, 429, 200, 200, 200]);
}

#[test]
fn a_request_costs_what_its_field_says_within_bounds() {
    let limit = "[limit.l]\nrate = \"10/h\"\ncost = \"header:x-cost\"\n";
    let (_origin, sluice) = limited(limit, "limits = [\"l\"]");
    let mut client = sluice.client();
    let mut left = |cost: &str| -> String {
        let response: Response = client.ask("/a", cost);
        let stated = response.field("ratelimit").unwrap_or_default();
        let from = stated.find(";r=").map_or(0, |at| at + 3);
        stated[from..].chars().take_while(char::is_ascii_digit).collect()
    };
    let asked = ["", "X-Cost: 3\r\n", "X-Cost: -5\r\n", "X-Cost: 0\r\n", "X-Cost: 99\r\n"];
    assert_eq!(asked.map(&mut left), ["9", "6", "5", "4", "4"]);
}

#[test]
fn every_violated_limit_is_told_and_older_fields_on_request() {
    let limits = "[limit.a]\nrate = \"1/h\"\n[limit.b]\nkind = \"sliding\"\nrate = \"1/min\"\n";
    let told = |server: &str| {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()])
            .server(server)
            .more(limits)
            .route("limits = [\"a\", \"b\"]");
        let sluice = Sluice::start(config);
        let mut client = sluice.client();
        client.get("/a");
        client.get("/a")
    };
    let draft = told("");
    assert_eq!(draft.field("ratelimit-policy"), Some("\"a\";q=1;w=3600, \"b\";q=1;w=60"));
    let stated = draft.field("ratelimit").expect("RateLimit");
    assert!(stated.starts_with("\"a\";r=0;t=3600, \"b\";r=0;t="), "{stated}");
    assert_eq!(draft.field("retry-after"), Some("3600"));
    let legacy = told("limit_headers = \"legacy\"");
    assert_eq!(legacy.field("ratelimit"), None);
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(names.map(|n| legacy.field(n)), [Some("1"), Some("0"), Some("3600")]);
    let off = told("limit_headers = \"off\"");
    assert!(off.field("ratelimit").is_none() && off.field("x-ratelimit-limit").is_none());
    assert_eq!(off.field("retry-after"), Some("3600"));
}

#[test]
fn operators_see_the_bound_of_every_limit() {
    let limits = "[limit.a]\nrate = \"10/s\"\nburst = 50\n[limit.b]\nkind = \"fixed\"\n\
                  rate = \"5/min\"\n[limit.c]\nkind = \"quota\"\nrate = \"9/day\"\nshadow = true\n";
    let (_origin, sluice) = limited(limits, "limits = [\"a\", \"b\", \"c\"]");
    assert_eq!(sluice.client().get("/a").status(), 200);
    sluice.wait_for_metric("sluice_limit_decisions_total{limit=\"a\",decision=\"allowed\"}", 1.0);
    let seen = sluice.admin("/v1/limits").json();
    let bounds: Vec<_> = (0..3).map(|i| seen["limits"][i]["bound"].as_str().unwrap()).collect();
    for (bound, words) in bounds.iter().zip([
        "at most 50 at once and 60 in any 1s",
        "at most 5 in each 1min, 10 in 1min across an edge",
        "not enforced: at most 9 in each day (UTC)",
    ]) {
        assert!(bound.starts_with(words), "{bound}");
    }
    assert_eq!(seen["limits"][0]["allowed"], 1);
    assert_eq!(seen["tables"]["counts"]["held"], 3);
}
