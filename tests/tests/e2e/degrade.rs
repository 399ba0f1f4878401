//! What clients get when the real thing cannot be had: fallbacks, switches, drills.

use std::fs;
use std::time::{Duration, Instant};

use sluice_tests::{Config, Finished, Origin, Refusing, Sluice, eventually};
use tempfile::TempDir;

fn error(status: u16) -> Origin {
    Origin::answering(move |_| {
        format!("HTTP/1.1 {status} Oh\r\nContent-Length: 4\r\n\r\nnope").into_bytes()
    })
}

fn run(sluice: &Sluice, args: &[&str]) -> Finished {
    let control = sluice.dir().join("control.sock");
    let control = control.to_string_lossy();
    Sluice::command(&[args, &["--control", &control]].concat())
}

#[test]
fn a_fallback_stands_in_by_cause_and_is_marked_counted_and_logged() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sorry.html");
    fs::write(&file, "<p>sorry</p>").unwrap();
    let (broken, refusing) = (error(500), Refusing::new());
    let stalled = Origin::new(|connection| connection.stall());
    let from_file = format!(
        "fallback = {{ file = \"{}\", content_type = \"text/html\", status = 200 }}",
        file.display()
    );
    let inline = "fallback = { body = '{\"retry\":true}', content_type = \"application/json\" }";
    for (server, fallback, more, status, source, body, cause, code) in [
        (broken.addr(), inline, "", 503, "static", "{\"retry\":true}", "5xx", "upstream.status"),
        (
            refusing.addr(),
            &from_file,
            "",
            200,
            "static",
            "<p>sorry</p>",
            "connect",
            "upstream.connect",
        ),
        (
            stalled.addr(),
            "fallback = {}",
            "timeout = \"300ms\"",
            503,
            "empty",
            "",
            "timeout",
            "upstream.timeout",
        ),
    ] {
        let sluice = Sluice::start(Config::to(&[server]).route(fallback).route(more));
        let mut client = sluice.client();
        for _ in 0..2 {
            let response = client.get("/a");
            assert_eq!((response.status(), response.text().as_str()), (status, body), "{cause}");
            assert_eq!(response.field("x-degraded"), Some(source));
            assert_eq!(response.field("cache-control"), Some("no-store"));
        }
        client.send("HEAD /a HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
        let head = client.read_bodyless();
        assert_eq!((head.status(), head.field("x-degraded")), (status, Some(source)));
        client.expect_close();
        for line in sluice.log_lines(3) {
            assert_eq!(line["degraded"], source, "{line}");
            assert_eq!(line["code"], code, "{line}");
        }
        let name =
            format!("sluice_degraded_total{{route=\"all\",cause=\"{cause}\",source=\"{source}\"}}");
        sluice.wait_for_metric(&name, 3.0);
    }
    assert_eq!(broken.connections(), 1, "its answers were whole: the connection is used again");
}

#[test]
fn causes_that_a_fallback_does_not_name_are_told_as_they_are() {
    let broken = error(502);
    let config = Config::to(&[broken.addr()]).limit("one", "ip", "1/h", 1).route(
        "limits = [\"one\"]\nfallback = { on = [\"limited\"], status = 200, body = \"queue\" }",
    );
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let response = client.get("/a");
    assert_eq!((response.status(), response.text().as_str()), (502, "nope"));
    assert_eq!(response.field("x-degraded"), None);
    let response = client.get("/a");
    assert_eq!((response.status(), response.text().as_str()), (200, "queue"));
    assert!(response.field("ratelimit").is_some_and(|limit| limit.contains("r=0")));
}

#[test]
fn a_limit_that_is_used_up_may_be_answered_with_a_page_that_says_to_queue() {
    let page = "status = 202, body = '{\"queued\":true}', content_type = \"application/json\"";
    for (fallback, status, body, source) in
        [(page, 202, "{\"queued\":true}", "static"), ("status = 503", 503, "", "empty")]
    {
        let origin = Origin::ok("hello");
        let route = format!("limits = [\"one\"]\nfallback = {{ on = [\"limited\"], {fallback} }}");
        let config = Config::to(&[origin.addr()]).limit("one", "ip", "1/h", 1).route(&route);
        let sluice = Sluice::start(config);
        let mut client = sluice.client();
        assert_eq!(client.get("/a").status(), 200);
        for _ in 0..2 {
            let response = client.get("/a");
            assert_eq!((response.status(), response.text().as_str()), (status, body));
            assert_eq!(response.field("x-degraded"), Some(source));
            assert_eq!(response.field("cache-control"), Some("no-store"));
            // Whoever understands limits is told of them all the same.
            let wait: u64 = response.field("retry-after").unwrap().parse().expect("seconds");
            assert!((3590..=3600).contains(&wait), "{wait}");
            let stated = response.field("ratelimit").expect("a RateLimit field");
            assert!(stated.starts_with("\"one\";r=0;t="), "{stated}");
        }
        assert_eq!(origin.requests().len(), 1);
        let line = &sluice.log_lines(3)[2];
        assert_eq!(
            (&line["code"], &line["limit"], &line["degraded"]),
            (&"limit.exceeded".into(), &"one".into(), &source.into()),
            "{line}"
        );
        let name =
            format!("sluice_degraded_total{{route=\"all\",cause=\"limited\",source=\"{source}\"}}");
        sluice.wait_for_metric(&name, 2.0);
        sluice.wait_for_metric(
            "sluice_limit_decisions_total{limit=\"one\",decision=\"refused\"}",
            2.0,
        );
    }
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sluice.toml");
    let config = Config::to(&[Refusing::new().addr()]).route("fallback = { file = \"/no/such\" }");
    fs::write(&file, config.to_string()).unwrap();
    let control = dir.path().join("control.sock");
    let args = ["run", "-c", &file.to_string_lossy(), "--control", &control.to_string_lossy()];
    let ended = Sluice::command(&args);
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
    assert!(ended.stderr.contains("/no/such: No such file"), "{}", ended.stderr);
}

/// One route in a group with a fallback, one vital, one neither.
fn shop(origin: &Origin) -> Config {
    Config::to(&[origin.addr()]).workers(2).more(
        "[route.shop]\nmatch = \"/shop\"\nto = \"app\"\ngroup = \"shop\"\nfallback = { body = \"closed\" }\n\
         [route.pay]\nmatch = \"/pay\"\nto = \"app\"\nvital = true\n",
    )
}

/// What `/shop`, `/pay` and `/other` answer, over several connections and so both workers.
fn seen(sluice: &Sluice) -> [String; 3] {
    ["/shop", "/pay", "/other"].map(|path| {
        let answers: Vec<_> = (0..6)
            .map(|_| {
                let response = sluice.client().ask(path, "Connection: close\r\n");
                let code = serde_json::from_slice::<serde_json::Value>(&response.body);
                let code = code.ok().and_then(|json| json["code"].as_str().map(str::to_owned));
                format!("{} {}", response.status(), code.unwrap_or_else(|| response.text()))
            })
            .collect();
        let same = answers.iter().all(|answer| *answer == answers[0]);
        if same { answers[0].clone() } else { answers.join(", ") }
    })
}

const OPEN: [&str; 3] = ["200 hello", "200 hello", "200 hello"];

#[track_caller]
fn becomes(sluice: &Sluice, expected: [&str; 3]) {
    let asked = Instant::now();
    eventually(&format!("{expected:?}"), || (seen(sluice) == expected).then_some(()));
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(1), "it took {took:?}");
}

#[test]
fn groups_and_survival_mode_are_switched_within_a_second_and_end_by_themselves() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(shop(&origin));
    becomes(&sluice, OPEN);
    let listed = run(&sluice, &["switch", "off", "shop"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    assert!(listed.stdout.contains("group shop: off, since 2"), "{}", listed.stdout);
    becomes(&sluice, ["503 closed", "200 hello", "200 hello"]);
    assert_eq!(sluice.metrics()["sluice_switches{kind=\"group\"}"], 1.0);
    assert_eq!(sluice.reload(shop(&origin)).code, Some(0), "a reload leaves switches alone");
    becomes(&sluice, ["503 closed", "200 hello", "200 hello"]);
    assert_eq!(run(&sluice, &["switch", "on", "shop"]).code, Some(0));
    becomes(&sluice, OPEN);

    assert_eq!(run(&sluice, &["switch", "survival", "on", "--for", "2s"]).code, Some(0));
    becomes(&sluice, ["503 closed", "200 hello", "503 switch.survival"]);
    sluice.wait_for_stderr("switch_ended");
    becomes(&sluice, OPEN);

    let unknown = run(&sluice, &["switch", "off", "chop"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("no route is in a group named \"chop\""), "{}", unknown.stderr);
}

#[test]
fn a_drill_takes_the_degrade_path_of_each_cause_and_ends() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(shop(&origin));
    for (cause, expected) in [
        ("open", "503 closed"),
        ("timeout", "503 closed"),
        ("5xx", "503 closed"),
        ("limited", "429 drill.limited"),
    ] {
        let done = run(&sluice, &["drill", "shop", "--cause", cause]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        becomes(&sluice, [expected, "200 hello", "200 hello"]);
        let name =
            format!("sluice_degraded_total{{route=\"shop\",cause=\"{cause}\",source=\"static\"}}");
        eventually(&name, || {
            (sluice.metrics().contains_key(&name) == (expected == "503 closed")).then_some(())
        });
    }
    assert_eq!(run(&sluice, &["drill", "pay", "--for", "1s"]).code, Some(0));
    becomes(&sluice, ["429 drill.limited", "503 drill.open", "200 hello"]);
    sluice.wait_for_stderr("switch_ended");
    assert_eq!(run(&sluice, &["drill", "shop", "--stop"]).code, Some(0));
    becomes(&sluice, OPEN);
    for (args, why) in [
        (["drill", "chop", "--for", "1s"], "there is no route named \"chop\""),
        (["drill", "shop", "--cause", "flood"], "cause=flood: there are limited, shed"),
        (["drill", "shop", "--for", "2h"], "a drill ends after at most 1h"),
    ] {
        let refused = run(&sluice, &args);
        assert_eq!(refused.code, Some(1), "{args:?}");
        assert!(refused.stderr.contains(why), "{args:?}: {}", refused.stderr);
    }
}

#[test]
fn the_admin_api_switches_for_who_shows_the_token() {
    let origin = Origin::ok("hello");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "sesame").unwrap();
    let token = format!("token = \"file:{}\"", file.display());
    let sluice = Sluice::start(shop(&origin).admin(&token));
    let post = |wish: &str, fields: &str| {
        let mut client = sluice.admin_client();
        client.send(format!(
            "POST /v1/switches?{wish} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{fields}\r\n"
        ));
        client.read_response()
    };
    let shown = "Authorization: Bearer sesame\r\nX-Sluice: 1\r\n";
    assert_eq!(post("kind=group&name=shop&state=off", "").status(), 403);
    becomes(&sluice, OPEN);
    let done = post("kind=group&name=shop&state=off&for=1h", shown);
    assert_eq!(done.status(), 200, "{}", done.text());
    becomes(&sluice, ["503 closed", "200 hello", "200 hello"]);
    let listed = sluice.admin("/v1/switches").json();
    assert_eq!(listed["switches"][0]["name"], "shop", "{listed}");
    assert!(listed["switches"][0]["ends_in_seconds"].as_u64().is_some_and(|s| s > 3_500));
    assert_eq!(listed["groups"]["shop"][0], "shop");
    assert_eq!(listed["vital"][0], "pay");
    assert_eq!(post("kind=group&name=shop&state=maybe", shown).status(), 422);
}

/// One route for each source of an answer, all in one group.
fn sources(origin: &Origin) -> Config {
    let on = "[\"limited\", \"shed\", \"open\", \"connect\", \"timeout\", \"5xx\", \"off\"]";
    let route = |name: &str, more: &str| {
        format!("[route.{name}]\nmatch = \"/{name}\"\nto = \"app\"\ngroup = \"shop\"\n{more}\n")
    };
    let body = "status = 203, body = '{\"late\":true}', content_type = \"application/json\"";
    let copy = format!("cache = {{ stale = \"1h\", stale_on = {on} }}");
    Config::to(&[origin.addr()])
        .more(&route("copy", &copy))
        .more(&route("written", &format!("fallback = {{ on = {on}, {body} }}")))
        .more(&route("nothing", &format!("fallback = {{ on = {on} }}")))
        .more(&route("bare", ""))
}

/// What the four routes answer when they are made to, by body and fields.
#[track_caller]
fn degraded(sluice: &Sluice, status: u16, code: &str) {
    let mut client = sluice.client();
    let copy = client.get("/copy");
    assert_eq!((copy.status(), copy.text().as_str()), (200, "hello"), "{code}");
    let marked = copy.field("x-degraded").unwrap_or_default();
    let age = marked.strip_prefix("stale;age=").and_then(|age| age.parse::<u64>().ok());
    assert!(age.is_some() && copy.field("age").is_some(), "{code}: {copy:?}");
    let written = client.get("/written");
    assert_eq!((written.status(), written.text().as_str()), (203, "{\"late\":true}"), "{code}");
    assert_eq!(written.field("content-type"), Some("application/json"));
    assert_eq!(written.field("x-degraded"), Some("static"));
    assert_eq!(written.field("cache-control"), Some("no-store"));
    let nothing = client.get("/nothing");
    assert_eq!((nothing.status(), nothing.text().as_str()), (503, ""), "{code}");
    assert_eq!(
        (nothing.field("x-degraded"), nothing.field("content-length")),
        (Some("empty"), Some("0"))
    );
    assert_eq!(nothing.field("cache-control"), Some("no-store"));
    let bare = client.get("/bare");
    assert_eq!((bare.status(), &bare.json()["code"]), (status, &code.into()));
    assert_eq!(bare.field("content-type"), Some("application/problem+json"));
    assert_eq!((bare.field("x-degraded"), bare.field("connection")), (None, None));
}

#[test]
fn a_drill_forces_each_source_by_each_cause_and_asks_no_server() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(sources(&origin));
    assert_eq!(sluice.client().get("/copy").text(), "hello");
    for (cause, status) in [
        ("limited", 429),
        ("shed", 503),
        ("open", 503),
        ("connect", 502),
        ("timeout", 504),
        ("5xx", 502),
        ("off", 503),
    ] {
        for route in ["copy", "written", "nothing", "bare"] {
            let done = run(&sluice, &["drill", route, "--cause", cause]);
            assert_eq!(done.code, Some(0), "{}", done.stderr);
        }
        // Workers hear of switches in their order: the last one is theirs, so all are.
        let code = format!("drill.{cause}");
        eventually(&code, || {
            let response = sluice.client().get("/bare");
            (response.text() != "hello" && response.json()["code"] == code.as_str()).then_some(())
        });
        let asked = origin.requests().len();
        degraded(&sluice, status, &code);
        assert_eq!(origin.requests().len(), asked, "{cause}: nobody is asked");
        for (route, source) in [("copy", "stale"), ("written", "static"), ("nothing", "empty")] {
            let labels = format!("route=\"{route}\",cause=\"{cause}\",source=\"{source}\"");
            sluice.wait_for_metric(&format!("sluice_degraded_total{{{labels}}}"), 1.0);
        }
    }
    for route in ["copy", "written", "nothing", "bare"] {
        assert_eq!(run(&sluice, &["drill", route, "--stop"]).code, Some(0));
    }
    eventually("the server's own answers", || {
        let own = |path| sluice.client().get(path).field("x-degraded").is_none();
        ["/copy", "/written", "/nothing"].into_iter().all(own).then_some(())
    });
}

#[test]
fn a_group_that_is_off_for_a_while_answers_by_its_sources_and_comes_back_by_itself() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(sources(&origin));
    assert_eq!(sluice.client().get("/copy").text(), "hello");
    for (args, code) in [
        (["switch", "off", "shop", "--for", "3s"], "switch.off"),
        (["switch", "survival", "on", "--for", "3s"], "switch.survival"),
    ] {
        let ended = sluice.stderr().matches("switch_ended").count();
        let done = run(&sluice, &args);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        eventually(code, || {
            let response = sluice.client().get("/bare");
            (response.text() != "hello" && response.json()["code"] == code).then_some(())
        });
        degraded(&sluice, 503, code);
        let labels = "route=\"written\",cause=\"off\",source=\"static\"";
        assert!(sluice.metrics()[&format!("sluice_degraded_total{{{labels}}}")] >= 1.0);
        eventually("its end", || {
            (sluice.stderr().matches("switch_ended").count() > ended).then_some(())
        });
        eventually("the server's own answers", || {
            let own = |path| sluice.client().get(path).text() == "hello";
            ["/copy", "/written", "/nothing", "/bare"].into_iter().all(own).then_some(())
        });
        assert_eq!(sluice.client().get("/copy").field("x-degraded"), None);
    }
}
