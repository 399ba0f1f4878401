//! Balancing by key, by speed and by zone; thresholds and drains for a while; and how a server
//! stands, as operators see it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;

use sluice_tests::wait::moment;
use sluice_tests::{Config, Origin, Sluice, eventually, origin::ok};

/// Each says which it is.
fn origins(count: usize) -> Vec<Origin> {
    (0..count).map(|i| Origin::ok(&i.to_string())).collect()
}

fn addrs(origins: &[Origin]) -> Vec<SocketAddr> {
    origins.iter().map(Origin::addr).collect()
}

#[test]
fn a_key_sticks_and_only_those_of_a_dead_server_move() {
    let mut origins = origins(3);
    let rule = "balance = { kind = \"hash\", key = [\"header:x-user\"] }";
    // A server that goes may take a connection along that it has just accepted.
    let retries = "retries = { on = [\"reset\"] }";
    let config = Config::to(&addrs(&origins)).upstream(rule).route(retries).workers(2);
    let sluice = Sluice::start(config);
    let ask = |user: usize| sluice.client().ask("/a", &format!("X-User: user-{user}\r\n")).text();
    let before: Vec<String> = (0..60).map(&ask).collect();
    for name in ["0", "1", "2"] {
        let count = before.iter().filter(|b| *b == name).count();
        assert!((6..=36).contains(&count), "{name}: {count} of 60");
    }
    assert!((0..60).all(|user| ask(user) == before[user]));
    drop(origins.remove(1));
    let after: Vec<String> = (0..60).map(&ask).collect();
    let mut heirs = BTreeMap::new();
    for (before, after) in before.iter().zip(&after) {
        if before == "1" {
            *heirs.entry(after.clone()).or_insert(0) += 1;
        } else {
            assert_eq!(before, after, "it had nothing to do with it");
        }
    }
    assert!(heirs.len() == 2 && !heirs.contains_key("1"), "{heirs:?}");
}

#[test]
fn the_own_zone_gets_everything_until_it_is_gone() {
    let mut origins = origins(2);
    let addrs = addrs(&origins);
    let server = |i: usize, zone: &str| {
        format!("{{ addr = \"{}\", labels = {{ zone = \"{zone}\" }} }}", addrs[i])
    };
    let config = Config::to(&[])
        .server("zone = \"x\"")
        // A server that goes may take a connection along that it has just accepted.
        .route("retries = { on = [\"reset\"] }")
        .to_string()
        .replace("servers = []", &format!("servers = [{}, {}]", server(0, "y"), server(1, "x")));
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    assert!((0..30).all(|_| client.get("/a").text() == "1"));
    let shown = sluice.admin("/v1/config").json();
    assert_eq!(shown["upstreams"]["app"]["servers"][1]["labels"]["zone"], "x");
    drop(origins.remove(1));
    for number in 0..30 {
        assert_eq!(client.get("/a").text(), "0", "request {number}");
    }
}

#[test]
fn a_slow_server_gets_less() {
    let quick = Origin::ok("quick");
    let slow = Origin::answering(|_| {
        moment();
        ok("slow")
    });
    let config = Config::to(&[quick.addr(), slow.addr()]).upstream("balance = \"peak_ewma\"");
    let sluice = Sluice::start(config);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = sluice.client();
                (0..50).for_each(|_| assert_eq!(client.get("/a").status(), 200));
            });
        }
    });
    let slow = slow.requests().len();
    assert!((1..=20).contains(&slow), "{slow} of 200");
}

/// With an admin token; the way to say something to the breakers.
fn steered(config: Config, name: &str) -> (Sluice, impl Fn(&Sluice, &str) -> String) {
    let file = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
    std::fs::write(&file, "secret").expect("a file");
    let sluice = Sluice::start(config.admin(&format!("token = \"file:{}\"", file.display())));
    drop(std::fs::remove_file(file));
    let say = |sluice: &Sluice, body: &str| {
        let mut admin = sluice.admin_client();
        admin.send(format!(
            "POST /v1/breakers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
             X-Sluice: 1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        admin.read_head().line
    };
    (sluice, say)
}

#[test]
fn thresholds_hold_for_a_while() {
    let ill = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nill";
    let origin = Origin::answering(move |_| ill.to_vec());
    let rule = "breaker = { consecutive = 1000, open_for = \"10ms\", probes = 1, ramp = \"10ms\" }";
    let config = Config::to(&[origin.addr()]).upstream(rule);
    let (sluice, say) = steered(config, "thresholds");
    let opened = "sluice_breaker_transitions_total{upstream=\"app\",server=\"\",to=\"open\"}";
    let opened = || sluice.metrics().get(opened).copied();
    let mut client = sluice.client();
    (0..20).for_each(|_| assert_eq!(client.get("/a").text(), "ill"));
    assert_eq!(opened(), Some(0.0));
    for (body, status) in [
        (r#"{"upstream":"app","consecutive":3}"#, "400"),
        (r#"{"upstream":"app","for":"1s"}"#, "400"),
        (r#"{"upstream":"nobody","consecutive":3,"for":"1s"}"#, "404"),
        (r#"{"upstream":"app","consecutive":3,"state":"open","for":"1s"}"#, "400"),
        (r#"{"upstream":"app","consecutive":3,"for":"3s"}"#, "204"),
    ] {
        let line = say(&sluice, body);
        assert!(line.contains(status), "{body}: {line}");
    }
    client.get("/a");
    assert_eq!(opened(), Some(1.0));
    let shown = sluice.admin("/v1/breakers").json();
    assert_eq!(shown[0]["thresholds"]["consecutive"], 3);
    assert!(shown[0]["why"].as_str().is_some_and(|why| why.ends_with("failures in a row")));
    eventually("the end of it", || {
        sluice.admin("/v1/breakers").json()[0]["thresholds"].is_null().then_some(())
    });
    assert!(say(&sluice, r#"{"upstream":"app","state":"auto"}"#).contains("204"));
    let before = opened();
    (0..20).for_each(|_| assert_eq!(client.get("/a").text(), "ill"));
    assert_eq!(opened(), before, "as written again");
}

#[test]
fn a_server_is_drained_by_hand_and_comes_back_by_itself() {
    let origins = origins(2);
    let (sluice, say) = steered(Config::to(&addrs(&origins)).workers(2), "drain");
    let server = origins[0].addr();
    let drain = |time: &str| {
        let time = format!(r#""server":"{server}","state":"drained","for":"{time}""#);
        say(&sluice, &format!(r#"{{"upstream":"app",{time}}}"#))
    };
    let stands = || sluice.admin("/v1/status").json()["upstreams"][0].clone();
    assert_eq!(stands()["state"], "in");
    assert!(drain("1h").contains("204"));
    let mut client = sluice.client();
    eventually("none to it", || (0..20).all(|_| client.get("/a").text() == "1").then_some(()));
    let why = stands()["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.starts_with("drained since 2") && why.contains("by hand, for 3"), "{why}");
    assert_eq!(stands()["state"], "drained");
    let said = sluice.admin("/v1/switches").json();
    assert_eq!(said["switches"][0]["name"], format!("app/{server}"));
    assert!(drain("100ms").contains("204"));
    eventually("one to it", || (client.get("/a").text() == "0").then_some(()));
    assert_eq!(stands()["state"], "in");
    let nobody = r#"{"upstream":"app","server":"10.9.9.9:1","state":"drained","for":"1s"}"#;
    assert!(say(&sluice, nobody).contains("404"));
}

#[test]
fn every_reason_that_keeps_a_server_out_is_told() {
    let ill = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nill";
    let (bad, well) = (Origin::answering(move |_| ill.to_vec()), Origin::ok("well"));
    let rules = "eject = { breaker = { consecutive = 3, open_for = \"60s\" } }\n\
                 health = { every = \"100ms\" }";
    let config = Config::to(&[bad.addr(), well.addr()]).upstream(rules);
    let config = config.route("retries = { on = [\"5xx\"] }");
    let sluice = Sluice::start(config);
    let stands = || sluice.admin("/v1/status").json()["upstreams"][0].clone();
    let mut client = sluice.client();
    (0..20).for_each(|_| assert_eq!(client.get("/a").text(), "well"));
    let why = stands()["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.starts_with("out since 2"), "{why}");
    assert!(why.contains("ejected, 3 failures in a row; tried again in "), "{why}");
    assert_eq!(stands()["health"], "in", "a connection is all its probes want");
    assert_eq!(stands()["state"], "out");
    drop(bad);
    let both = eventually("both reasons", || {
        let why = stands()["why"].as_str()?.to_owned();
        (why.contains("connect refused") && why.contains("3 failures in a row")).then_some(why)
    });
    assert_eq!(both.matches("out since 2").count(), 2, "{both}");
}
