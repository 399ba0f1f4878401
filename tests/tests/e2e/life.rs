//! Start, reload, drain, stop, and what can be seen meanwhile.

use std::fs;
use std::net::SocketAddr;
use std::thread;

use sluice_tests::{Client, Config, Gate, Origin, Signal, Sluice, eventually, origin};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// What a dashboard may rely on.
const METRICS: &[&str] =
    &["sluice_requests_total{", "sluice_request_duration_seconds_bucket{", "sluice_workers"];

#[test]
fn a_reload_swaps_the_configuration_under_a_kept_connection() {
    let (old, new) = (Origin::ok("old"), Origin::ok("new"));
    let sluice = Sluice::start(Config::to(&[old.addr()]));
    let mut client = sluice.client();
    assert_eq!(client.get("/a").text(), "old");
    let reload = sluice.reload(Config::to(&[new.addr()]));
    assert_eq!(reload.code, Some(0), "{}", reload.stderr);
    assert_eq!(client.get("/a").text(), "new");
    assert_eq!(sluice.client().get("/a").text(), "new");
}

#[test]
fn a_request_in_flight_finishes_as_it_began() {
    let gate = Gate::new();
    let (origin, new) = (holding(&gate), Origin::ok("new"));
    let sluice = Sluice::start(Config::to(&[origin.addr()]));
    let mut client = sluice.client();
    client.send(GET);
    origin.wait_for_heads(1);
    assert_eq!(sluice.reload(Config::to(&[new.addr()])).code, Some(0));
    assert_eq!(sluice.client().get("/a").text(), "new");
    gate.open();
    assert_eq!(client.read_response().text(), "held");
}

#[test]
fn a_broken_configuration_is_refused_and_the_old_one_serves_on() {
    let origin = Origin::ok("old");
    let sluice = Sluice::before(&origin);
    let whole = Config::to(&[origin.addr()]).to_string();
    let broken = [
        whole.replace("version = 1", "version = "),
        whole.replace("to = \"app\"", "to = \"ap\""),
        whole.replace("[server]", "[server]\nidle_timeout = 30"),
    ];
    for text in broken {
        let reload = sluice.reload(&text);
        assert_eq!(reload.code, Some(78), "{text}");
        let said = format!("{}{}", reload.stdout, reload.stderr);
        assert!(said.contains("sluice.toml:"), "it says where: {said}");
        assert_eq!(sluice.client().get("/a").text(), "old");
    }
    assert_eq!(sluice.reload(&whole).code, Some(0), "and a good one is taken again");
}

#[test]
fn a_gateway_does_not_start_with_a_broken_configuration() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("sluice.toml");
    fs::write(&file, "version = 1\n[route.a]\nmatch = \"/\"\nto = \"nowhere\"\n").unwrap();
    let control = dir.path().join("control.sock");
    let (file, control) = (file.to_string_lossy(), control.to_string_lossy());
    let finished = Sluice::command(&["run", "-c", &file, "--control", &control]);
    assert_eq!(finished.code, Some(78));
    assert!(finished.stderr.contains("nowhere"), "{}", finished.stderr);
    assert_eq!(Sluice::command(&["check", &file]).code, Some(78));
    assert_eq!(Sluice::command(&["run", "--no-such-flag"]).code, Some(2));
}

#[test]
fn hup_reloads() {
    let origin = Origin::ok("old");
    let sluice = Sluice::before(&origin);
    sluice.rewrite(Config::to(&[origin.addr()]).respond("new", "/a", "new"));
    sluice.signal(Signal::HUP);
    eventually("the new route", || (sluice.client().get("/a").text() == "new").then_some(()));
}

#[test]
fn usr1_reopens_the_log() {
    let origin = Origin::ok("hello");
    let folder = tempfile::TempDir::new().unwrap();
    let (log, rotated) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let sluice = Sluice::start(Config::to(&[origin.addr()]).access_log(&log.to_string_lossy()));
    let holds = |path, part: &str| {
        fs::read_to_string(path).is_ok_and(|text| text.contains(part)).then_some(())
    };
    assert_eq!(sluice.client().ask("/a", "X-Request-Id: before\r\n").status(), 200);
    eventually("the first line", || holds(&log, "before"));
    fs::rename(&log, &rotated).unwrap();
    sluice.signal(Signal::USR1);
    eventually("a new file", || log.exists().then_some(()));
    assert_eq!(sluice.client().ask("/a", "X-Request-Id: after\r\n").status(), 200);
    eventually("the second line", || holds(&log, "after"));
    assert!(holds(&rotated, "after").is_none());
}

#[test]
fn term_drains_and_exits_with_success() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let mut sluice = Sluice::before(&origin);
    let mut idle = sluice.client();
    let mut client = sluice.client();
    client.send(GET);
    origin.wait_for_heads(1);
    sluice.signal(Signal::TERM);
    eventually("new clients to be refused", || Client::try_connect(sluice.addr()).err());
    idle.expect_close();
    gate.open();
    let response = client.read_response();
    assert_eq!(response.text(), "held");
    assert_eq!(response.field("connection"), Some("close"));
    assert_eq!(sluice.wait(), Some(0));
}

#[test]
fn a_stop_under_load_loses_no_request() {
    let origin = Origin::ok("hello");
    let mut sluice = Sluice::start(Config::to(&[origin.addr()]).workers(2));
    let addr = sluice.addr();
    let clients: Vec<_> =
        (0..8).map(|_| thread::spawn(move || ask_until_told_to_stop(addr))).collect();
    origin.wait_for_heads(500);
    sluice.signal(Signal::TERM);
    for client in clients {
        assert!(client.join().expect("a client that counts"), "a request was lost");
    }
    assert_eq!(sluice.wait(), Some(0));
}

#[test]
fn readiness_ends_when_draining_begins() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(GET);
    origin.wait_for_heads(1);
    assert_eq!(sluice.admin("/health/ready").status(), 200);
    sluice.signal(Signal::TERM);
    eventually("not ready", || (sluice.admin("/health/ready").status() == 503).then_some(()));
    assert_eq!(sluice.admin("/health").status(), 200, "alive all the same");
    gate.open();
    assert_eq!(client.read_response().status(), 200);
}

#[test]
fn a_second_term_stops_at_once() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let mut sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(GET);
    origin.wait_for_heads(1);
    sluice.signal(Signal::TERM);
    eventually("new clients to be refused", || Client::try_connect(sluice.addr()).err());
    sluice.signal(Signal::TERM);
    let _ = sluice.wait();
    client.expect_close();
}

#[test]
fn a_drain_ends_at_its_bound() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let mut sluice = Sluice::start(Config::to(&[origin.addr()]).server("drain = \"300ms\""));
    let mut client = sluice.client();
    client.send(GET);
    origin.wait_for_heads(1);
    sluice.signal(Signal::TERM);
    let _ = sluice.wait();
    assert!(!sluice.stderr().contains("panicked"), "{}", sluice.stderr());
}

#[test]
fn figures_count_what_happened() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .limit("few", "ip", "3/min", 3)
        .route("limits = [\"few\"]")
        .workers(2);
    let sluice = Sluice::start(config);
    for _ in 0..5 {
        let _ = sluice.client().get("/a");
    }
    eventually("five requests counted", || {
        let metrics = sluice.metrics();
        let of_route = metrics.iter().filter(|(name, _)| {
            name.starts_with("sluice_requests_total{") && name.contains("route=\"all\"")
        });
        (of_route.map(|(_, count)| count).sum::<f64>() == 5.0).then_some(())
    });
    let metrics = sluice.metrics();
    for name in METRICS {
        assert!(metrics.keys().any(|key| key.starts_with(name)), "{name} in {metrics:?}");
    }
    for path in ["/health", "/health/ready", "/v1/status", "/v1/latency"] {
        assert_eq!(sluice.admin(path).status(), 200, "{path}");
    }
    assert_eq!(sluice.admin("/nowhere").status(), 404);
}

#[test]
fn every_request_leaves_a_line_in_the_log() {
    let origin = Origin::ok("hello");
    let config =
        Config::to(&[origin.addr()]).limit("once", "ip", "1/min", 1).route("limits = [\"once\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for status in [200, 429] {
        assert_eq!(client.ask("/a", "Authorization: Bearer secret\r\n").status(), status);
    }
    let lines = sluice.log_lines(2);
    for (line, status) in lines.iter().zip([200, 429]) {
        assert_eq!(line["status"], status, "{line}");
        assert_eq!(line["route"], "all", "{line}");
        assert!(line["trace_id"].as_str().is_some_and(|id| id.len() == 32), "{line}");
        assert!(!line.to_string().contains("secret"), "{line}");
    }
}

/// A connection in use is told that it ends (`Connection: close` on its next answer), not cut.
/// Asks on one kept connection; whether every request was answered until the gateway said that
/// the answer was its last.
fn ask_until_told_to_stop(addr: SocketAddr) -> bool {
    let mut client = Client::connect(addr);
    loop {
        let sent = client.try_send_get("/a");
        let Some(response) = sent.then(|| client.try_read_response()).flatten() else {
            return false;
        };
        if response.status() != 200 || response.text() != "hello" {
            return false;
        }
        if response.field("connection") == Some("close") {
            return true;
        }
    }
}

/// Answers "held" once the gate is open.
fn holding(gate: &Gate) -> Origin {
    let gate = gate.clone();
    Origin::new(move |connection| {
        loop {
            connection.read_request()?;
            connection.wait_at(&gate)?;
            connection.write(origin::ok("held"))?;
        }
    })
}
