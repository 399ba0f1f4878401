//! What is wrong with a plan is said, all at once, at its place.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use sluice_policy::plan::Problem;

fn problems(text: &str) -> Vec<Problem> {
    written::compile(text.parse().unwrap()).err().unwrap_or_default()
}

const SOUND: &str = r#"
    [upstream.a]
    servers = ["10.0.0.1:80"]
    [limit.fair]
    rate = "100/s"
    [route.r]
    match = "/"
    to = "a"
"#;

/// About thirty mistakes.
const FAULTY: &str = r#"
    [upstream.a]
    servers = ["10.0.0.1:80", "10.0.0.1:80"]
    connections = 0
    timeout = { connect = "0s" }
    [upstream.empty]
    servers = []
    [limit.fair]
    key = ["ip", "usr", "ip/0", "header:", "ip:24"]
    rate = "100/s"
    burst = 0
    [limit.slow]
    rate = "1/day"
    burst = 1000000
    cost = 0
    [limit.dear]
    rate = "1/s"
    cost = 2
    [route.r]
    match = "/"
    to = "b"
    limits = ["fair", "plan", "fair"]
    retries = 9
    timeout = "0s"
    [route.s]
    match = "get /a"
    strip_prefix = "v1"
    redirect = { to = "ftp://x", status = 200 }
    request_headers = { set = { connection = "close" } }
    concurrency = { max = 0, key = ["usr"] }
    size = {}
    addresses = {}
    [route.t]
    match = "/t"
    [route.u]
    match = "/u"
    to = "a"
    respond = { status = 204, body = "x" }
    [route.v]
    match = "/v"
    respond = { status = 100, body = "x", content_type = "a\nb" }
    where = { header = { "a b" = "1" } }
"#;

#[test]
fn every_problem_is_reported_at_its_place() {
    let mut paths: Vec<_> = problems(FAULTY).into_iter().map(|p| p.path).collect();
    paths.sort();
    let expected = [
        "limit.dear.cost",
        "limit.fair.burst",
        "limit.fair.key[1]",
        "limit.fair.key[2]",
        "limit.fair.key[3]",
        "limit.fair.key[4]",
        "limit.slow.cost",
        "limit.slow.rate",
        "route.r.limits[1]",
        "route.r.limits[2]",
        "route.r.retries",
        "route.r.timeout",
        "route.r.to",
        "route.s.addresses",
        "route.s.concurrency.key[0]",
        "route.s.concurrency.max",
        "route.s.match",
        "route.s.redirect.status",
        "route.s.redirect.to",
        "route.s.request_headers.set.connection",
        "route.s.size",
        "route.s.strip_prefix",
        "route.t",
        "route.u",
        "route.v.respond.content_type",
        "route.v.respond.status",
        "route.v.where.header.a b",
        "upstream.a.connections",
        "upstream.a.servers[1]",
        "upstream.a.timeout.connect",
        "upstream.empty.servers",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn names_that_are_not_there_are_told_those_that_are() {
    // (what is written instead, part of the hint)
    let table = [
        ("to = \"b\"", "there are: a"),
        ("to = \"a\"\nlimits = [\"fare\"]", "there are: fair"),
        ("to = \"a\"\nconcurrency = { max = 1, key = [\"usr\"] }", "header:NAME"),
    ];
    for (text, hint) in table {
        let found = problems(&SOUND.replace("to = \"a\"", text));
        let hints: Vec<_> = found.iter().filter_map(|p| p.hint.as_deref()).collect();
        assert!(hints.len() == 1 && hints[0].contains(hint), "{text}: {found:?}");
    }
    assert_eq!(problems(SOUND), []);
}

#[test]
fn a_store_has_nobody_wait_for_a_turn() {
    let table = [
        ("kind = \"leaky\"\nmax_wait = \"1s\"", "limit.fair.kind"),
        ("kind = \"sliding\"\nburst = 5", "limit.fair.burst"),
    ];
    for (text, path) in table {
        let stored = format!("rate = \"100/s\"\nstore = \"redis\"\n{text}");
        let text = format!("nodes = 3\n{}", SOUND.replace("rate = \"100/s\"", &stored));
        let found: Vec<_> = problems(&text).into_iter().map(|p| p.path).collect();
        assert_eq!(found, [path], "{text}");
    }
}

#[test]
fn what_is_meant_is_what_was_written() {
    let plan = written::plan(
        r#"
        [upstream.a]
        servers = ["10.0.0.1:80", { addr = "b:1", weight = 3 }]
        [limit.fair]
        rate = "100/s"
        [route.r]
        match = "/v1/{*rest}"
        to = "a"
        strip_prefix = "/v1/"
        add_prefix = "/api"
        request_headers = { set = { X-Env = "a" }, remove = ["Cookie"] }
        [route.s]
        match = "/s"
        respond = { body = "hi" }
        [route.t]
        match = "/t"
        redirect = { to = "https://x.test{uri}", status = 301 }
    "#,
    );
    let upstream = &plan.upstreams()[0];
    assert_eq!((upstream.name.as_str(), upstream.connections_max), ("a", 64));
    assert_eq!(upstream.keepalive.as_secs(), 30);
    let weights: Vec<_> = upstream.endpoints.iter().map(|e| (&*e.address, e.weight)).collect();
    assert_eq!(weights, [("10.0.0.1:80", 1), ("b:1", 3)]);
    let rewrite = &plan.routes()[0].rewrite;
    assert_eq!(rewrite.strip_prefix.as_deref(), Some("/v1"));
    assert_eq!(rewrite.add_prefix.as_deref(), Some("/api"));
    assert_eq!(rewrite.request_headers.set, [("x-env".to_owned(), "a".to_owned())]);
    assert_eq!(rewrite.request_headers.remove, ["cookie"]);
    let replies: Vec<_> =
        (0..).map_while(|i| plan.reply(sluice_policy::plan::ReplyId(i))).collect();
    let told: Vec<_> =
        replies.iter().map(|r| (r.status, r.location.as_deref(), &*r.body)).collect();
    let expected: [(u16, Option<&str>, &[u8]); 2] =
        [(200, None, b"hi"), (301, Some("https://x.test{uri}"), b"")];
    assert_eq!(told, expected);
    assert_eq!((plan.limit_name(0), plan.limit_name(9)), ("fair", ""));
}

#[test]
fn filters_are_listed_in_their_order() {
    let names: Vec<_> = sluice_policy::admit::FILTERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["addresses", "size", "limits", "concurrency"]);
    assert!(sluice_policy::admit::FILTERS.iter().all(|(_, line)| line.ends_with('.')));
}

#[test]
fn who_cannot_owe_takes_no_cost_from_the_response() {
    let kinds = [
        ("kind = \"bucket\"", true),
        ("kind = \"fixed\"", true),
        ("kind = \"quota\"", true),
        ("kind = \"sliding\"", false),
        ("kind = \"leaky\"\nmax_wait = \"1s\"", false),
        ("store = \"redis\"", false),
    ];
    for (kind, sound) in kinds {
        let limit = format!("[limit.l]\nrate = \"10/h\"\ncost = \"response:x-cost\"\n{kind}");
        let found = problems(&format!("nodes = 1\n{limit}\n{SOUND}"));
        let paths: Vec<_> = found.iter().map(|problem| problem.path.as_str()).collect();
        let expected: &[&str] = if sound { &[] } else { &["limit.l.cost"] };
        assert_eq!(paths, expected, "{kind}");
        assert!(found.iter().all(|problem| problem.hint.is_some()), "{kind}");
    }
}

#[test]
fn what_balancing_cannot_mean_is_refused() {
    for (written, path, message) in [
        (
            r#"balance = { kind = "hash", key = [] }"#,
            "balance.key",
            "every request would be the same",
        ),
        (
            r#"balance = { kind = "hash", key = ["ip", "usr"] }"#,
            "balance.key[1]",
            "`usr` is no part of a key",
        ),
        (r#"balance = { kind = "hash", headroom = "0%" }"#, "balance.headroom", "0% is no room"),
        (
            r#"balance = { kind = "p2c", headroom = "25%" }"#,
            "balance.headroom",
            "it means nothing here",
        ),
        (r#"balance = { kind = "hash", decay = "1s" }"#, "balance.decay", "it means nothing here"),
        (
            r#"balance = { kind = "peak_ewma", decay = "1h" }"#,
            "balance.decay",
            "1h is out of bounds",
        ),
    ] {
        let plan = SOUND.replacen("[limit.fair]", &format!("{written}\n[limit.fair]"), 1);
        let found = problems(&plan);
        let found: Vec<_> = found.iter().map(|p| (p.path.as_str(), p.message.as_str())).collect();
        assert_eq!(found, [(format!("upstream.a.{path}").as_str(), message)], "{written}");
    }
    for (labels, path) in [
        (r#"{ Zone = "a" }"#, "labels.Zone"),
        (r#"{ zone = "" }"#, "labels.zone"),
        (r#"{ "a b" = "a" }"#, "labels.a b"),
    ] {
        let server = format!(r#"{{ addr = "10.0.0.1:80", labels = {labels} }}"#);
        let found = problems(&SOUND.replacen(r#""10.0.0.1:80""#, &server, 1));
        let found: Vec<_> = found.iter().map(|p| p.path.as_str()).collect();
        assert_eq!(found, [format!("upstream.a.servers[0].{path}")], "{labels}");
    }
}

#[test]
fn bounds_that_would_shed_everything_are_refused() {
    let faulty = format!(
        "{SOUND}\n[shed]\nlag = \"0s\"\nin_flight = 0\ncpu = \"0%\"\nload = 0\n\
         [upstream.b]\nservers = [\"b:1\"]\n\
         adaptive = {{ min = 9, max = 5, initial = 7, slow = \"0s\" }}\n"
    );
    let mut paths: Vec<_> = problems(&faulty).into_iter().map(|p| p.path).collect();
    paths.sort();
    let expected = [
        "shed.cpu",
        "shed.in_flight",
        "shed.lag",
        "shed.load",
        "upstream.b.adaptive.initial",
        "upstream.b.adaptive.min",
        "upstream.b.adaptive.slow",
    ];
    assert_eq!(paths, expected);
}
