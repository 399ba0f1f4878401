//! Too much: an upstream that can do less than it is asked for, and a node at its bounds.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::origin::ok;
use sluice_tests::wait::{Gate, Watched, moment, pace};
use sluice_tests::{Config, Origin, Response, Sluice, eventually};

fn code(response: &Response) -> String {
    response.json()["code"].as_str().unwrap_or_default().to_owned()
}

/// Answers so many requests at once, each after a moment.
fn limited(servers: &Arc<Watched<usize>>) -> Origin {
    let busy = Arc::new(Watched::<usize>::default());
    let servers = Arc::clone(servers);
    Origin::answering(move |_| {
        let most = servers.read(|n| *n);
        let seated = busy.until(|n| (*n < most).then_some(()));
        busy.change(|n| *n += 1);
        moment();
        busy.change(|n| *n -= 1);
        if seated.is_some() { ok("done") } else { ok("late") }
    })
}

/// What so many clients see that ask again and again for so long.
fn storm(sluice: &Sluice, clients: usize, time: Duration) -> (Vec<Duration>, usize) {
    let over = AtomicBool::new(false);
    let one = || {
        let (mut client, mut good, mut shed) = (sluice.client(), Vec::new(), 0);
        while !over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let response = client.get("/a");
            if response.status() == 200 {
                good.push(asked.elapsed());
            } else {
                assert_eq!((response.status(), &*code(&response)), (503, "upstream.shed"));
                assert_eq!(response.field("retry-after"), Some("1"));
                shed += 1;
                moment();
            }
        }
        (good, shed)
    };
    thread::scope(|scope| {
        let asking: Vec<_> = (0..clients).map(|_| scope.spawn(one)).collect();
        let end = Instant::now() + time;
        while Instant::now() < end {
            moment();
        }
        over.store(true, Ordering::Relaxed);
        let seen = asking.into_iter().map(|client| client.join().expect("a client"));
        let (mut good, mut shed) = (Vec::new(), 0);
        for (some, refused) in seen {
            good.extend(some);
            shed += refused;
        }
        good.sort_unstable();
        (good, shed)
    })
}

#[test]
fn half_an_origin_does_what_it_can_and_the_rest_is_told_at_once() {
    let servers = Arc::new(Watched::default());
    servers.change(|n| *n = 12);
    let origin = limited(&servers);
    let config = Config::to(&[origin.addr()])
        .workers(2)
        .upstream("connections = 1000\nadaptive = { initial = 20 }");
    let sluice = Sluice::start(config);
    let (quiet, shed) = storm(&sluice, 6, Duration::from_millis(1_500));
    assert_eq!(shed, 0, "nothing is shed of what can be done");
    let p99 = |all: &[Duration]| all[all.len() * 99 / 100];
    storm(&sluice, 40, Duration::from_millis(1_000));
    servers.change(|n| *n = 6);
    storm(&sluice, 40, Duration::from_millis(500));
    let (half, shed) = storm(&sluice, 40, Duration::from_millis(2_500));
    // Six at once, each for as long as it took when nobody waited.
    let can = 6 * 2_500 / quiet[quiet.len() / 2].as_millis().max(1) as usize;
    assert!(half.len() * 2 >= can, "{} of {can} answered", half.len());
    assert!(p99(&half) < 5 * p99(&quiet), "{:?} after {:?}", p99(&half), p99(&quiet));
    assert!(shed > 50, "{shed}");
    let metrics = sluice.metrics();
    let limit = metrics["sluice_adaptive_limit{upstream=\"app\"}"];
    assert!((2.0..40.0).contains(&limit), "{limit}");
    assert!(metrics["sluice_shed_total{reason=\"adaptive\",class=\"normal\"}"] >= 50.0);
    let gate = &sluice.admin("/v1/status").json()["overload"]["adaptive"][0];
    assert_eq!(gate["upstream"], "app");
    assert!(gate["reason"].is_string() && gate["unloaded_us"].as_u64() > Some(10_000), "{gate}");
    eventually("every seat back", || {
        let status = sluice.admin("/v1/status").json();
        (status["overload"]["adaptive"][0]["in_flight"] == 0).then_some(())
    });
}

#[test]
fn a_node_at_its_bounds_sheds_what_is_low_first_and_what_is_critical_never() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        loop {
            let request = connection.read_request()?;
            if request.head.line.contains("/hold") {
                connection.wait_at(&held)?;
            }
            connection.write(ok("done"))?;
        }
    });
    let route = |name: &str, priority: &str| {
        format!("[route.{name}]\nmatch = \"/{name}/{{*rest}}\"\nto = \"app\"\n{priority}\n")
    };
    let config = Config::to(&[origin.addr()])
        .more("[shed]\nin_flight = 10\nlag = \"off\"\n")
        .more(&route("low", "priority = \"low\""))
        .more(&route("high", "priority = \"high\""))
        .more(&route("critical", "priority = \"critical\"\ngroup = \"x\""));
    let sluice = Sluice::start(config);
    let (mut holding, asked) = (Vec::new(), Cell::new(0));
    let mut hold = |n: usize| {
        for _ in 0..n {
            let mut client = sluice.client();
            client.send("GET /critical/hold HTTP/1.1\r\nHost: a\r\n\r\n");
            holding.push(client);
            asked.set(asked.get() + 1);
            origin.wait_for_heads(asked.get());
        }
    };
    let ask = |path: &str| {
        let response = sluice.client().get(path);
        let shed = response.status() == 503;
        if shed {
            assert_eq!(code(&response), "shed.in_flight");
            assert_eq!(response.field("retry-after"), Some("1"));
        } else {
            asked.set(asked.get() + 1);
        }
        shed
    };
    let paths = ["/low/a", "/normal", "/high/a", "/critical/a"];
    for (more, expected) in
        [(7, [false; 4]), (1, [true, false, false, false]), (1, [true, true, false, false])]
    {
        hold(more);
        assert_eq!(paths.map(ask), expected);
    }
    for (class, count) in [("low", 2.0), ("normal", 1.0), ("critical", 0.0)] {
        let name = format!("sluice_shed_total{{reason=\"in_flight\",class=\"{class}\"}}");
        sluice.wait_for_metric(&name, count);
    }
    gate.open();
    eventually("what is low is served again", || (!ask("/low/a")).then_some(()));
    let shown = sluice.admin("/v1/status").json();
    assert!(shown["overload"]["pressure"]["in_flight"].is_number(), "{shown}");
}

/// Clients that come by the clock, whether others wait or not: what each was told.
fn open_loop(sluice: &Sluice, clients: u32, per_second: u32) -> Vec<(u16, String)> {
    let (begun, mut waiting) = (Instant::now(), Vec::new());
    for client in 0..clients {
        pace(begun + Duration::from_secs(1) * client / per_second);
        let mut client = sluice.client();
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        waiting.push(client);
    }
    let told = |mut client: sluice_tests::Client| {
        let response = client.read_response();
        let code = if response.status() == 200 { String::new() } else { code(&response) };
        (response.status(), code)
    };
    waiting.into_iter().map(told).collect()
}

#[test]
fn without_a_limit_that_learns_every_other_bound_holds_by_its_name() {
    for (upstream, more, code) in [
        ("connections = 4", "", "upstream.pool_full"),
        ("connections = 4\nqueue = { max = 4 }", "", "upstream.pool_full"),
        ("connections = 64", "[shed]\nin_flight = 6\nlag = \"off\"\n", "shed.in_flight"),
    ] {
        let servers = Arc::new(Watched::default());
        servers.change(|n| *n = 2);
        let origin = limited(&servers);
        let config = Config::to(&[origin.addr()]).workers(1).upstream(upstream).more(more);
        let sluice = Sluice::start(config);
        // Two at once, twenty times a second: five times too much.
        let told = open_loop(&sluice, 200, 200);
        let count = |what: (u16, &str)| {
            told.iter().filter(|(status, code)| (*status, code.as_str()) == what).count()
        };
        let (good, refused) = (count((200, "")), count((503, code)));
        assert_eq!(good + refused, told.len(), "{upstream} {more}: {told:?}");
        assert!(good >= 20 && refused >= 20, "{good} and {refused}: {upstream} {more}");
        sluice.wait_for_metric("sluice_requests_in_flight", 0.0);
        sluice.wait_for_metric("sluice_panics_total", 0.0);
        let mut client = sluice.client();
        let after: Vec<_> = (0..5).map(|_| client.get("/a").status()).collect();
        assert_eq!(after, [200; 5], "it is over with the load: {upstream} {more}");
        assert!(origin.open_connections() <= 64, "{upstream}");
    }
}
