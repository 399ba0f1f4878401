//! Every mistake of a file is found in one run, where it is, with what would be right.

use sluice_config::{Problems, parse};

const BAD: &str = include_str!("../../examples/bad.toml");

#[test]
fn the_bad_example_has_exactly_its_ten_mistakes() {
    let problems = parse(BAD).unwrap_err();
    let found = places(BAD, &problems);
    let expected = [
        "6:9 \"30\" | write \"30s\"",
        "9:30 \"10.0.0.12\" | write the port",
        "10:11 \"p2cc\" | did you mean \"p2c\"?",
        "13:1 severs | did you mean \"servers\"?",
        "16:14 \"usr\" | ",
        "17:8 \"100 per second\" | write \"100/s\"",
        "21:6 \"order\" | did you mean \"orders\"?",
        "22:1 timout | did you mean \"timeout\"?",
        "23:40 \"110%\" | a share is between \"0%\" and \"100%\"",
        "24:19 \"plan\" | \"fair\" is the only one there is",
    ];
    assert_eq!(found.len(), expected.len(), "{}", problems.render("bad.toml", BAD, false));
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} instead of {expected}");
    }
}

/// `line:column text | hint` of each problem.
fn places(text: &str, problems: &Problems) -> Vec<String> {
    let place = |problem: &sluice_config::Problem| {
        let hint = problem.hint.as_deref().unwrap_or_default();
        let underlined = &text[problem.span.clone()];
        format!("{}:{} {underlined} | {hint}", problem.line, problem.column)
    };
    problems.iter().map(place).collect()
}

/// Each text is put behind a configuration that holds, which is 9 lines long.
#[test]
fn every_kind_of_mistake_is_named_where_it_is() {
    let mut wrong = String::new();
    for (mistake, expected) in MISTAKES {
        let text = format!("{HOLDS}{mistake}\n");
        let found = match parse(&text) {
            Ok(_) => Vec::new(),
            Err(problems) => problems
                .iter()
                .map(|p| format!("{}:{} {} {}", p.line, p.column, p.path, p.message))
                .collect(),
        };
        if found != *expected {
            wrong += &format!("{mistake}\n  found    {found:#?}\n  expected {expected:#?}\n\n");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

const HOLDS: &str = r#"version = 1
[upstream.app]
servers = ["127.0.0.1:3000"]
[limit.fair]
rate = "10/s"
[route.all]
match = "/{*rest}"
to = "app"

"#;

/// What is written from line 10 on, and the problems of it.
const MISTAKES: &[(&str, &[&str])] = &[
    ("", &[]),
    // Keys.
    ("[sever]", &["10:2 sever unknown key `sever`"]),
    ("[server]\nlisen = []", &["11:1 server.lisen unknown key `lisen`"]),
    (
        "[log.access]\nsample = { okay = \"1%\" }",
        &["11:12 log.access.sample.okay unknown key `okay`"],
    ),
    (
        "[server]\nlisten = [{ addr = \":1\", port = 1 }]",
        &["11:26 server.listen[0].port unknown key `port`"],
    ),
    (
        "[upstream.b]\nservers = [{ addr = \"b:1\", wieght = 2 }]\n[route.b]\nmatch = \"/b\"\nto = \"b\"",
        &["11:28 upstream.b.servers[0].wieght unknown key `wieght`"],
    ),
    (
        "[route.b]\nmatch = \"/b\"\nto = \"app\"\nlimit = [\"fair\"]",
        &["13:1 route.b.limit unknown key `limit`"],
    ),
    (
        "[route.b]\nmatch = \"/b\"\nto = \"app\"\nsize = { bodies = \"1MiB\" }",
        &["13:10 route.b.size.bodies unknown key `bodies`"],
    ),
    // What is missing, and what only follows from another mistake.
    ("[route.b]\nto = \"app\"", &["10:8 route.b.match `match` is missing"]),
    // Limits: what belongs to which kind.
    (
        "[limit.l]\nkind = \"slidng\"\nrate = \"1/s\"",
        &["11:8 limit.l.kind \"slidng\" is not known here"],
    ),
    (
        "[limit.l]\nkind = \"fixed\"\nrate = \"1/min\"\nburst = 5",
        &["13:9 limit.l.burst only a bucket has a burst, and this is `fixed`"],
    ),
    (
        "[limit.l]\nkind = \"leaky\"\nrate = \"1/s\"",
        &["10:8 limit.l a leaky bucket needs `max_wait`"],
    ),
    (
        "[limit.l]\nrate = \"1/s\"\nmax_wait = \"1s\"",
        &["12:12 limit.l.max_wait nobody waits at a limit of kind `bucket`"],
    ),
    (
        "[limit.l]\nkind = \"leaky\"\nrate = \"1/s\"\nmax_wait = \"2min\"",
        &["13:12 limit.l.max_wait out of bounds"],
    ),
    (
        "[limit.l]\nkind = \"quota\"\nrate = \"5/2h\"",
        &["12:8 limit.l.rate a quota is by the hour, the day or the month"],
    ),
    (
        "[limit.l]\nkind = \"fixed\"\nrate = \"5/100ms\"",
        &["12:8 limit.l.rate a fixed window lasts 1s at least"],
    ),
    (
        "[limit.l]\nkind = \"sliding\"\nrate = \"600000/s\"",
        &["12:8 limit.l.rate a sliding window is 1ms at least and admits at most 524224"],
    ),
    (
        "[limit.l]\nkind = \"sliding\"\nrate = \"5/s\"\ncost = 6",
        &["13:8 limit.l.cost a request costs 6, but the limit holds 5"],
    ),
    ("[limit.l]\nrate = \"5/s\"\ncost = \"x-cost\"", &["12:8 limit.l.cost \"x-cost\" is no cost"]),
    (
        "[limit.l]\nrate = \"5/s\"\nkey = [\"ip\", \"user\", \"user|ip\", \"claim:plan\"]",
        &[
            "12:14 limit.l.key[1] `user` needs to know who asks: not in this version",
            "12:33 limit.l.key[3] `claim:plan` needs to know who asks: not in this version",
        ],
    ),
    (
        "[limit.l]\nrate = \"5/s\"\nheaviest = 0\ntop = 101",
        &["12:12 limit.l.heaviest out of bounds", "13:7 limit.l.top out of bounds"],
    ),
    (
        "[limit.l]\nrate = \"5/s\"\nwhile = { route = \"al\", above = \"1/day\" }",
        &[
            "12:19 limit.l.while.route there is no route named \"al\"",
            "12:33 limit.l.while.above out of bounds",
        ],
    ),
    (
        "[limit.l]\nrate = \"5/s\"\ncost = \"response:x-cost\"\n\
         while = { route = \"all\", above = \"1/s\" }\nheaviest = 5",
        &[
            "13:1 limit.l.while this limit can't have `while`",
            "14:12 limit.l.heaviest this limit can't have `heaviest`",
        ],
    ),
    ("[limit.slow]\nrate = 3", &["11:8 limit.slow.rate a rate needs a period"]),
    ("[limit.slow]\nrat = \"3/s\"", &["11:1 limit.slow.rat unknown key `rat`"]),
    (
        "[upstream.b]\nservers = 5\n[route.b]\nmatch = \"/b\"\nto = \"b\"",
        &["11:11 upstream.b.servers wanted a list, found a whole number"],
    ),
    (
        "[route.b]\nmatch = \"/b\"\nredirect = { status = 301 }",
        &["12:1 route.b.redirect.to `to` is missing"],
    ),
    // Types.
    ("server = 5", &["10:1 route.all.server unknown key `server`"]),
    ("[upstream]\nb = 5", &["11:5 upstream.b wanted a table, found a whole number"]),
    ("[[route]]\nmatch = \"/b\"", &["10:3  duplicate key"]),
    ("[admin]\nlisten = 9901", &["11:10 admin.listen wanted text in quotes, found a whole number"]),
    ("[server]\nheaders = \"100\"", &["11:11 server.headers wanted a whole number, found text"]),
    ("[server]\nheaders = -1", &["11:11 server.headers -1 is out of bounds"]),
    (
        "[server]\nheaders = 1979-05-27",
        &["11:11 server.headers wanted a whole number, found a date"],
    ),
    (
        "[server]\nconnections = 99999999999999999999999",
        &["11:15 server.connections the number is too large"],
    ),
    (
        "[route.b]\nmatch = \"/b\"\nto = \"app\"\nlimits = \"fair\"",
        &["13:10 route.b.limits wanted a list, found text"],
    ),
    // Units and values.
    ("[server]\ndrain = 30", &["11:9 server.drain a number needs a unit"]),
    ("[server]\ndrain = 0.5", &["11:9 server.drain a number needs a unit"]),
    (
        "[server]\nheader_bytes = \"64KB\"",
        &["11:16 server.header_bytes \"KB\" is no unit of size here"],
    ),
    ("[server]\nworkers = 0", &["11:11 server.workers 0 is no number of workers"]),
    ("[server]\nworkers = \"many\"", &["11:11 server.workers \"many\" is no number of workers"]),
    (
        "[server]\nlisten = [\"8080\"]",
        &["11:11 server.listen[0] \"8080\" is not an address to listen on"],
    ),
    ("[server]\nlisten = []", &["11:10 server.listen there is no address to listen on"]),
    ("[server]\nio = \"iouring\"", &["11:6 server.io \"iouring\" is not known here"]),
    (
        "[server]\nheader_bytes = \"1MiB\"\nheaders = 0\nread_timeout = \"0s\"",
        &[
            "11:16 server.header_bytes out of bounds",
            "12:11 server.headers out of bounds",
            "13:16 server.read_timeout out of bounds",
        ],
    ),
    ("[server]\nbusy_poll = \"10001us\"", &["11:13 server.busy_poll out of bounds"]),
    (
        "[server]\ntrusted_proxies = [\"10.0.0.1/8\", \"::1\", \"me\"]",
        &[
            "11:20 server.trusted_proxies[0] \"10.0.0.1/8\" has bits set past its prefix",
            "11:41 server.trusted_proxies[2] \"me\" is not a network",
        ],
    ),
    (
        "[log.access]\nto = \"stdot\"\nhide = [\"authorization\"]",
        &[
            "11:6 log.access.to a log cannot be written to \"stdot\"",
            "12:9 log.access.hide[0] \"authorization\" names nothing that could be hidden",
        ],
    ),
    (
        "[admin]\ntoken = \"hunter2\"",
        &["11:9 admin.token a secret does not stand in the file itself"],
    ),
    (
        "[server]\nlisten = [\":80\", \":0\", \":0\", \"0.0.0.0:80\"]\n[admin]\nlisten = \":80\"",
        &[
            "11:30 server.listen[3] :80 is taken by server.listen[0]",
            "13:10 admin.listen :80 is taken by server.listen[0]",
        ],
    ),
    // Names and references.
    ("[limit.\"a b\"]\nrate = \"1/s\"", &["10:8 limit.a b \"a b\" cannot be the name of a limit"]),
    (
        "[route.b]\nmatch = \"/b\"\nto = \"ap\"\nlimits = [\"fare\"]",
        &[
            "12:6 route.b.to there is no upstream named \"ap\"",
            "13:11 route.b.limits[0] there is no limit named \"fare\"",
        ],
    ),
    // What the plan finds.
    (
        "[limit.b]\nkey = [\"ip\", \"usr\"]\nrate = \"1 per s\"",
        &[
            "11:14 limit.b.key[1] nothing is called `usr`",
            "12:8 limit.b.rate \"1 per s\" is not a rate",
        ],
    ),
    ("[route.b]\nmatch = \"/b\"", &["10:8 route.b nothing becomes of its requests"]),
    // What this version does not have.
    (
        "[tls.edge]\n[auth.staff]\n[auth.other]",
        &["10:2 tls TLS is not in this version", "11:2 auth authentication is not in this version"],
    ),
    (
        "[server]\nlisten = [{ addr = \":1\", tls = \"edge\" }]",
        &["11:26 server.listen[0].tls TLS is not in this version"],
    ),
    (
        "[route.b]\nmatch = \"/b\"\nto = \"app\"\ncanary = { to = \"app\", share = \"5%\" }",
        &["13:1 route.b.canary sending a share to a canary is not in this version"],
    ),
    // TOML itself.
    ("[server]\ndrain = ", &["11:9  string values must be quoted"]),
    (
        "[server]\ndrain = \"1s\"\ndrain = \"2s\"\nworkers = 0",
        &["12:1  duplicate key", "13:11 server.workers 0 is no number of workers"],
    ),
    (
        "[upstream.b]\nservers = [\"b:1\"\nbalance = \"p2\"\n[route.b]\nmatch = \"/b\"\nto = \"c\"\nretries = ten",
        &[
            "11:17  unclosed array",
            "12:11 upstream.b.balance \"p2\" is not known here",
            "15:6 route.b.to there is no upstream named \"c\"",
            "16:11  invalid boolean",
        ],
    ),
    (
        "[upstream.b\nservers = [\"b:1\"]\n[route.b]\nmatch = \"/b\"\nto = \"b\"",
        &["10:12  unclosed table"],
    ),
    ("[server\ndrain = 5\nunknown = 1", &["10:8  unclosed table"]),
];

#[test]
fn a_version_that_is_not_known_is_refused() {
    let problems = parse(&HOLDS.replace("version = 1", "version = 2")).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "1:11: this version of Sluice reads version 1 only (write version = 1)"
    );
}

#[test]
fn a_secret_in_the_file_is_never_shown() {
    for admin in
        ["[admin]\ntoken = \"hunter2\"", "[admin]\ntoken = hunter2", "[admin\ntoken = 'hunter2"]
    {
        let text = &format!("{HOLDS}{admin}\n");
        let problems = parse(text).unwrap_err();
        let json = serde_json::to_string(&problems).unwrap();
        for shown in [json, problems.to_string(), problems.render("a.toml", text, true)] {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}

#[test]
fn problems_are_data_for_machines() {
    let text = format!("{HOLDS}[server]\ndrain = 30\n");
    let problems = parse(&text).unwrap_err();
    assert_eq!(
        serde_json::to_value(&problems).unwrap(),
        serde_json::json!([{
            "severity": "error",
            "line": 11,
            "column": 9,
            "end": { "line": 11, "column": 11 },
            "path": "server.drain",
            "message": "a number needs a unit",
            "hint": "write \"30s\" if seconds are meant; the units are ms, s, min, h and day",
        }])
    );
}

#[test]
fn a_problem_is_shown_under_its_line() {
    let text = format!("{HOLDS}[server]\ndrain = 30\n");
    let shown = parse(&text).unwrap_err().render("a.toml", &text, false);
    for part in ["error: a number needs a unit", "a.toml:11:9", "drain = 30", "━━", "help: write"]
    {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
}

#[test]
fn what_deserves_a_second_look_is_a_warning() {
    for (text, expected) in [
        (HOLDS.to_owned(), vec!["4:8 no route uses this limit"]),
        (
            format!(
                "{HOLDS}[admin]\nlisten = \":9901\"\n[route.b]\nmatch = \"/b\"\nto = \"app\"\nlimits = [\"fair\"]\n"
            ),
            vec!["11:10 the admin API can be read from other machines"],
        ),
        (
            format!("{HOLDS}limits = [\"fair\"]\n[route.b]\nmatch = \"/b\"\nrespond = {{}}\nretries = 3\n").replace("\n\n", "\n"),
            vec!["13:11 without `to` this does nothing"],
        ),
        (
            "version = 1\n".to_owned(),
            vec!["1:1 there is no route, so every request is answered 404"],
        ),
    ] {
        let warnings = parse(&text).unwrap().warnings;
        let found: Vec<String> =
            warnings.iter().map(|w| format!("{}:{} {}", w.line, w.column, w.message)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_will_hurt_on_a_bad_night_is_a_warning() {
    let storm = "a server that fails gets more requests, and nothing stops them";
    let upstream = "[upstream.a]\nservers = [\"a:1\", \"b:1\"]\n";
    let route = "[route.r]\nmatch = \"/\"\nto = \"a\"\n";
    for (of_upstream, of_route, expected) in [
        ("", "retries = 3", vec![]),
        ("", "retries = { on = [\"5xx\"] }", vec![storm]),
        ("breaker = \"classic\"", "retries = { on = [\"5xx\"] }", vec![]),
        ("eject = \"on\"", "retries = {}", vec![]),
        ("breaker = { min_requests = 19 }", "", vec!["a share of 19 calls is mostly chance"]),
        ("breaker = { min_requests = 20 }", "", vec![]),
        (
            "eject = { breaker = { min_requests = 2 } }",
            "",
            vec!["a share of 2 calls is mostly chance"],
        ),
        (
            "timeout = { connect = \"3s\", first_byte = \"11s\" }",
            "",
            vec!["11s never pass: route.r gives up after 10s"],
        ),
        (
            "timeout = { connect = \"3s\" }",
            "timeout = \"2s\"",
            vec!["3s never pass: route.r gives up after 2s"],
        ),
        (
            "breaker = \"node\"",
            "timeout = \"2s\"\nretries = { per_try = \"3s\" }",
            vec!["3s never pass: route.r gives up after 2s"],
        ),
    ] {
        let text = format!("{upstream}{of_upstream}\n{route}{of_route}\n");
        let warnings = parse(&text).unwrap().warnings;
        let found: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn who_stands_further_out_should_wait_longer_and_pools_should_fit_their_servers() {
    let early = "a works on for 5s, when nobody waits after 5s";
    for (server, of_upstream, of_route, expected) in [
        ("", "backend = { timeout = \"5s\" }", "", vec![]),
        ("", "backend = { timeout = \"5s\" }", "timeout = \"5s\"", vec![early]),
        (
            "",
            "backend = { timeout = \"10s\" }",
            "",
            vec!["a works on for 10s, when nobody waits after 10s"],
        ),
        (
            "",
            "eject = \"on\"\nbackend = { timeout = \"5s\" }",
            "retries = { per_try = \"2s\" }",
            vec!["a works on for 5s, when nobody waits after 2s"],
        ),
        ("", "", "client_timeout = \"11s\"", vec![]),
        (
            "",
            "",
            "client_timeout = \"10s\"",
            vec!["clients give up after 10s, route.r only after 10s"],
        ),
        ("workers = 2", "backend = { workers = 128 }", "", vec![]),
        (
            "workers = 3",
            "backend = { workers = 128 }",
            "",
            vec!["3 workers of 64 connections each, and each server works on 128 requests at once"],
        ),
        ("workers = 3", "connections = 40\nbackend = { workers = 128 }", "", vec![]),
        (
            "",
            "backend = { workers = 8 }",
            "",
            vec!["64 connections for each core, and each server works on 8 requests at once"],
        ),
        ("", "eject = \"on\"", "retries = { hedge = true }", vec![]),
    ] {
        let text = format!(
            "[server]\n{server}\n[upstream.a]\nservers = [\"a:1\", \"b:1\"]\n{of_upstream}\n\
             [route.r]\nmatch = \"/\"\nto = \"a\"\n{of_route}\n"
        );
        let warnings = parse(&text).unwrap().warnings;
        let found: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
        assert_eq!(found, expected, "{text}");
        let alone = parse(&text.replace(", \"b:1\"", "")).unwrap().warnings;
        let hedge = alone.iter().any(|w| w.message.contains("none to hedge with"));
        assert_eq!(hedge, text.contains("hedge"), "{text}");
    }
}

#[test]
fn breakers_and_retries_are_refused_where_they_are_wrong() {
    for (of_upstream, of_route, expected) in [
        ("breaker = \"fuse\"", "", "3:11 there is no breaker called \"fuse\""),
        ("breaker = { erors = \"5%\" }", "", "3:13 unknown key `erors`"),
        ("breaker = { errors = \"0%\" }", "", "3:22 no share to open at"),
        ("breaker = { probes = 64 }", "", "3:22 out of bounds"),
        ("breaker = { slow_share = \"5%\" }", "", "3:26 a share of nothing"),
        ("breaker = { failures = [\"6xx\"] }", "", "3:25 not a kind of failure"),
        ("eject = \"maybe\"", "", "3:9 \"maybe\" is not a way to take servers out"),
        ("", "retries = 9", "7:11 9 retries"),
        ("", "retries = { on = [\"5\"] }", "7:19 not a kind of failure"),
        ("", "retries = { body = \"65KiB\" }", "7:20 too much to be kept"),
        ("", "retries = { hold = \"65KiB\" }", "7:20 too much to be held"),
        ("", "retries = \"often\"", "7:11 "),
    ] {
        let text = format!(
            "[upstream.a]\nservers = [\"a:1\"]\n{of_upstream}\n[route.r]\nmatch = \"/\"\nto = \"a\"\n{of_route}\n"
        );
        let problems = parse(&text).unwrap_err();
        let found: Vec<String> =
            problems.iter().map(|p| format!("{}:{} {}", p.line, p.column, p.message)).collect();
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:?}");
    }
}

#[test]
fn a_hundred_problems_are_enough() {
    let servers = vec!["\"x\""; 5000].join(",");
    let problems = parse(&format!("[upstream.app]\nservers = [{servers}]\n")).unwrap_err();
    assert_eq!(problems.len(), 100);
}
