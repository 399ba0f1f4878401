//! How requests are spread over an upstream's servers.

use std::net::SocketAddr;
use std::thread;

use sluice_tests::{Config, Gate, Origin, Sluice, origin};

#[test]
fn servers_get_their_share_by_weight() {
    // Turns are exact; chance is within six standard deviations (8.7 of 400 at 3:1).
    let cases = [
        ("round_robin", [1, 1], 40, 20..=20),
        ("round_robin", [3, 1], 40, 30..=30),
        ("weighted", [3, 1], 400, 248..=352),
        ("weighted", [1, 1], 400, 140..=260),
    ];
    for (balance, weights, requests, expected) in cases {
        let origins = [Origin::ok("left"), Origin::ok("right")];
        let addrs = [origins[0].addr(), origins[1].addr()];
        let sluice = Sluice::start(spread(balance, addrs, weights));
        let mut client = sluice.client();
        for _ in 0..requests {
            assert_eq!(client.get("/a").status(), 200);
        }
        let [left, right] = [0, 1].map(|side: usize| origins[side].requests().len());
        assert_eq!(left + right, requests, "{balance} {weights:?}");
        assert!(expected.contains(&left), "{balance} {weights:?}: {left} and {right}");
    }
}

#[test]
fn p2c_leaves_the_busy_server_alone() {
    let gate = Gate::new();
    let origins = [0, 1].map(|_| {
        let held = gate.clone();
        Origin::new(move |connection| {
            loop {
                let held_back = connection.read_request()?.head.line.contains("/hold");
                if held_back {
                    connection.wait_at(&held)?;
                }
                connection.write(origin::ok("hello"))?;
            }
        })
    });
    let addrs = [origins[0].addr(), origins[1].addr()];
    let sluice = Sluice::start(spread("p2c", addrs, [1, 1]));
    let mut held = sluice.client();
    held.send("GET /hold HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let busy = sluice_tests::eventually("a busy server", || {
        origins.iter().position(|origin| !origin.requests().is_empty())
    });
    let mut client = sluice.client();
    for _ in 0..30 {
        assert_eq!(client.get("/a").status(), 200);
    }
    let counts = [0, 1].map(|side: usize| origins[side].requests().len());
    assert_eq!(counts[1 - busy], 30, "{counts:?}, the busy one is {busy}");
    gate.open();
    assert_eq!(held.read_response().status(), 200);
}

#[test]
fn p2c_uses_all_servers_where_none_is_busier() {
    let origins = [Origin::ok("one"), Origin::ok("two"), Origin::ok("three")];
    let servers: Vec<SocketAddr> = origins.iter().map(Origin::addr).collect();
    let sluice = Sluice::start(Config::to(&servers).upstream("balance = \"p2c\"").workers(2));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = sluice.client();
                (0..75).for_each(|_| assert_eq!(client.get("/a").status(), 200));
            });
        }
    });
    let counts: Vec<usize> = origins.iter().map(|origin| origin.requests().len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 300);
    assert!(counts.iter().all(|count| *count >= 30), "{counts:?}");
}

fn spread(balance: &str, servers: [SocketAddr; 2], weights: [u32; 2]) -> String {
    let server =
        |side: usize| format!("{{ addr = \"{}\", weight = {} }}", servers[side], weights[side]);
    Config::to(&[])
        .upstream(&format!("balance = \"{balance}\""))
        .to_string()
        .replace("servers = []", &format!("servers = [{}, {}]", server(0), server(1)))
}
