//! Who counts as one client, and what a changed limit keeps.

use std::net::TcpListener;
use std::thread;

use sluice_tests::{Client, Config, Origin, Sluice, eventually};

#[test]
fn an_ipv6_client_is_its_whole_64_and_an_ipv4_client_one_address() {
    let cases = [
        ("ip", "2001:db8::1", "2001:db8::ffff:2", 429),
        ("ip", "2001:db8::1", "2001:db8:0:1::1", 200),
        ("ip", "192.0.2.1", "192.0.2.2", 200),
        ("ip", "192.0.2.1", "::ffff:192.0.2.1", 429),
        ("ip/24", "192.0.2.1", "192.0.2.2", 429),
        ("ip/24", "192.0.2.1", "192.0.3.1", 200),
    ];
    for (key, first, second, status) in cases {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()])
            .server("trusted_proxies = [\"127.0.0.1\"]")
            .limit("once", key, "1/min", 1)
            .route("limits = [\"once\"]");
        let sluice = Sluice::start(config);
        let ask = |from: &str| {
            sluice.client().ask("/a", &format!("X-Forwarded-For: {from}\r\n")).status()
        };
        assert_eq!((ask(first), ask(second)), (200, status), "{key}: {first}, then {second}");
    }
}

#[test]
fn a_client_over_ipv6_is_served_and_counted() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: no IPv6 here");
        return;
    }
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .limit("once", "ip", "1/min", 1)
        .route("limits = [\"once\"]")
        .to_string()
        .replace("listen = [\"127.0.0.1:0\"]", "listen = [\"[::1]:0\", \"127.0.0.1:0\"]");
    let sluice = Sluice::start(config);
    let [six, four] = sluice.listeners() else { panic!("two listeners: {}", sluice.stderr()) };
    assert!(six.is_ipv6() && four.is_ipv4(), "{}", sluice.stderr());
    for (addr, status) in [(six, 200), (six, 429), (four, 200), (four, 429)] {
        assert_eq!(Client::connect(*addr).get("/a").status(), status, "{addr}");
    }
    let head = &origin.requests()[0].head;
    assert_eq!(head.field("x-forwarded-for"), Some("::1"), "{head:?}");
}

#[test]
fn a_header_that_is_not_there_is_counted_too() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .limit("once", "header:x-api-key", "1/min", 1)
        .route("limits = [\"once\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for (fields, status) in
        [("", 200), ("", 429), ("X-Api-Key: a\r\n", 200), ("X-Api-Key: a\r\n", 429)]
    {
        assert_eq!(client.ask("/a", fields).status(), status, "{fields:?}");
    }
}

#[test]
fn a_changed_limit_keeps_what_was_spent() {
    let origin = Origin::ok("hello");
    let config = |rate: &str, burst: u32| {
        Config::to(&[origin.addr()])
            .limit("fair", "ip", rate, burst)
            .route("limits = [\"fair\"]")
            .workers(2)
    };
    // What is owed is time: two at 4/h owe half an hour, whatever that is worth at the new rate.
    for (rate, burst, left) in [("4/h", 4, 2), ("5/h", 4, 1), ("8/h", 8, 4), ("2/h", 2, 1)] {
        let sluice = Sluice::start(config("4/h", 4));
        let status = || sluice.client().get("/a").status();
        assert_eq!([status(), status()], [200, 200]);
        assert_eq!(sluice.reload(config(rate, burst)).code, Some(0));
        let more: Vec<u16> = (0..6).map(|_| status()).collect();
        let admitted = more.iter().filter(|status| **status == 200).count();
        assert_eq!(admitted, left, "{rate}: {more:?}");
        assert!(more.is_sorted(), "refused once, refused to the end: {more:?}");
    }
}

#[test]
fn a_burst_over_four_workers_admits_exactly_its_number() {
    const BURST: usize = 20;
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .workers(4)
        .limit("some", "route", "20/h", 20)
        .route("limits = [\"some\"]");
    let sluice = Sluice::start(config);
    let asking = || {
        let mut client = sluice.client();
        (0..5).filter(|_| client.get("/a").status() == 200).count()
    };
    let admitted: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..16).map(|_| scope.spawn(asking)).collect();
        clients.into_iter().map(|client| client.join().expect("a count")).sum()
    });
    assert_eq!((admitted, origin.requests().len()), (BURST, BURST));
}

/// With room for 1,024 keys.
fn crowded(rate: &str) -> Sluice {
    let config = Config::to(&[Origin::ok("hello").addr()])
        .server("limit_keys = 1024")
        .limit("each", "header:x-key", rate, 1)
        .respond("here", "/here", "ok")
        .more("limits = [\"each\"]\n");
    Sluice::start(config)
}

fn table(sluice: &Sluice, what: &str) -> f64 {
    sluice.metrics()[&format!("sluice_limit_table_{what}{{table=\"counts\"}}")]
}

#[test]
fn operators_see_how_full_the_table_of_counts_is() {
    let ask =
        |client: &mut Client, n: u32| client.ask("/here", &format!("X-Key: {n}\r\n")).status();
    let sluice = crowded("1/h");
    let mut client = sluice.client();
    assert_eq!(table(&sluice, "places"), 1024.0);
    assert_eq!(table(&sluice, "held"), 0.0);
    (0..100).for_each(|n| assert_eq!(ask(&mut client, n), 200));
    assert_eq!((table(&sluice, "held"), table(&sluice, "full_total")), (100.0, 0.0));
    for n in 100..1500 {
        let _ = ask(&mut client, n);
    }
    let held = table(&sluice, "held");
    // Which keys find room is by a hash that is another one each time: nine of ten places, about.
    assert!((800.0..=1024.0).contains(&held), "{held}");
    let full = table(&sluice, "full_total");
    assert_eq!(full, 1500.0 - held, "all others were judged by what they share");
    assert_eq!(table(&sluice, "forgotten_total"), 0.0, "all of them owe for an hour");
    let told = &sluice.admin("/v1/limits").json()["tables"]["counts"];
    assert_eq!((told["held"].as_f64(), &told["room"]), (Some(held), &1024.into()), "{told}");
    // Keys that are as good as new at once make room for others.
    let sluice = crowded("1000/s");
    let mut client = sluice.client();
    let mut fresh = 0..;
    eventually("a key is forgotten for another", || {
        for n in fresh.by_ref().take(200) {
            let _ = ask(&mut client, n);
        }
        (table(&sluice, "forgotten_total") > 0.0).then_some(())
    });
}
