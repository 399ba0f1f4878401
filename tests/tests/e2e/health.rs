//! Servers that die, stall, reset or talk nonsense are asked how they are, and then left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_tests::{Config, Connection, Origin, Refusing, Signal, Sluice, eventually, origin};

/// `fall` times `every`, and what a loaded machine may add.
const OUT_WITHIN: Duration = Duration::from_millis(3 * 400 + 500);
const HEALTH: &str =
    "health = { path = \"/healthz\", every = \"400ms\", fall = 3, rise = 2, timeout = \"200ms\" }";

const WELL: u8 = 0;
const STALLS: u8 = 1;
const RESETS: u8 = 2;
const GARBAGE: u8 = 3;
const UNWELL: u8 = 4;

/// An origin that behaves as the number says.
fn moody() -> (Origin, Arc<AtomicU8>) {
    let mood = Arc::new(AtomicU8::new(WELL));
    let told = Arc::clone(&mood);
    let script = move |connection: &mut Connection| {
        loop {
            let request = connection.read_request()?;
            match told.load(Ordering::SeqCst) {
                STALLS => connection.stall()?,
                RESETS => return connection.reset(),
                GARBAGE => return connection.write("\u{1}\u{2}220 mail.example ESMTP\r\n"),
                UNWELL if request.head.line.contains("/healthz") => {
                    connection.write("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")?;
                }
                _ => connection.write(origin::ok("victim"))?,
            }
        }
    };
    (Origin::new(script), mood)
}

/// What the status says of a server.
fn server(sluice: &Sluice, place: usize) -> Value {
    sluice.admin("/v1/status").json()["upstreams"][place].clone()
}

#[track_caller]
fn wait_for(sluice: &Sluice, place: usize, health: &str) -> String {
    eventually(&format!("server {place} {health}"), || {
        let server = server(sluice, place);
        (server["health"] == health && !server["why"].as_str()?.contains("not asked"))
            .then(|| server["why"].as_str().unwrap_or_default().to_owned())
    })
}

/// From now on until it is out; then every request succeeds.
#[track_caller]
fn is_left_alone(sluice: &Sluice, place: usize, last: &str) {
    let broke = Instant::now();
    let why = wait_for(sluice, place, "out");
    let took = broke.elapsed();
    assert!(took <= OUT_WITHIN, "out after {took:?}");
    assert!(why.starts_with("out since 2") && why.contains(last), "{why}");
    let mut client = sluice.client();
    for _ in 0..50 {
        let response = client.get("/a");
        assert_eq!((response.status(), response.text().as_str()), (200, "peer"), "{why}");
    }
}

#[test]
fn a_server_that_breaks_is_out_in_time_and_comes_back_when_it_is_well() {
    for (mood, last) in [
        (STALLS, "3 failed probes, last: no answer in time"),
        (RESETS, "3 failed probes, last: closed without an answer"),
        (GARBAGE, "3 failed probes, last: the answer is not HTTP"),
        (UNWELL, "3 failed probes, last: status 503"),
    ] {
        let (victim, set) = moody();
        let peer = Origin::ok("peer");
        let config = Config::to(&[victim.addr(), peer.addr()]).upstream(HEALTH).workers(2);
        let sluice = Sluice::start(config);
        wait_for(&sluice, 0, "in");
        wait_for(&sluice, 1, "in");
        set.store(mood, Ordering::SeqCst);
        is_left_alone(&sluice, 0, last);
        let samples = sluice.metrics();
        let labels = format!("{{upstream=\"app\",server=\"{}\"", victim.addr());
        assert_eq!(samples.get(&format!("sluice_server_in{labels}}}")), Some(&0.0), "{samples:?}");
        let failed = samples.get(&format!("sluice_probes_total{labels},result=\"failed\"}}"));
        assert!(failed.is_some_and(|n| *n >= 3.0), "{samples:?}");
        set.store(WELL, Ordering::SeqCst);
        let why = wait_for(&sluice, 0, "in");
        assert!(why.starts_with("in since 2"), "{why}");
        let mut client = sluice.client();
        eventually("a request to it", || (client.get("/a").text() == "victim").then_some(()));
    }
}

#[test]
fn a_process_that_is_killed_or_stopped_is_out_in_time() {
    for (signal, last) in [(Signal::KILL, "connect refused"), (Signal::STOP, "no answer in time")] {
        let peer = Origin::ok("peer");
        let victim = Sluice::start(
            Config::to(&[peer.addr()])
                .respond("me", "/{*all}", "victim")
                .to_string()
                .replace("[route.all]\nmatch = \"/{*rest}\"", "[route.all]\nmatch = \"/unused\""),
        );
        let config = Config::to(&[victim.addr(), peer.addr()]).upstream(HEALTH).workers(2);
        let sluice = Sluice::start(config);
        wait_for(&sluice, 0, "in");
        victim.signal(signal);
        is_left_alone(&sluice, 0, last);
        sluice.wait_for_stderr("server_out");
    }
}

#[test]
fn a_server_that_was_never_there_is_out_after_one_question() {
    let (dead, peer) = (Refusing::new(), Origin::ok("peer"));
    let config = Config::to(&[dead.addr(), peer.addr()]).upstream("health = { every = \"1h\" }");
    let sluice = Sluice::start(config);
    let why = wait_for(&sluice, 0, "out");
    assert!(why.ends_with(": 1 failed probe, last: connect refused"), "{why}");
    assert!(server(&sluice, 1)["health"] == "in");
    assert_eq!(peer.requests().len(), 0, "without a path a connection is enough");
    let mut client = sluice.client();
    (0..20).for_each(|_| assert_eq!(client.get("/a").text(), "peer"));
}

#[test]
fn with_every_server_out_requests_are_refused_at_once_and_a_reload_asks_no_more() {
    let dead = Refusing::new();
    let config = Config::to(&[dead.addr()]);
    let sluice = Sluice::start(config.clone().upstream("health = { every = \"1h\" }").workers(2));
    wait_for(&sluice, 0, "out");
    for _ in 0..4 {
        let response = sluice.client().get("/a");
        assert_eq!(response.status(), 503);
        assert_eq!(response.json()["code"], "upstream.none");
    }
    assert!(sluice.reload(config.workers(2)).code == Some(0));
    assert_eq!(server(&sluice, 0)["health"], "unasked");
    let response = sluice.client().get("/a");
    assert_eq!(
        (response.status(), response.json()["code"].as_str()),
        (502, Some("upstream.connect"))
    );
}
