//! Reloads that are refused, and how that is seen; stops that are cut short.

use sluice_tests::{Client, Config, Gate, Origin, Signal, Sluice, eventually, origin};

#[test]
fn a_refused_reload_is_seen_everywhere_until_one_is_taken() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]);
    let sluice = Sluice::start(&config);
    let seen = |state: &str, current: f64, [adopted, refused]: [f64; 2]| {
        let ready = sluice.admin("/health/ready");
        assert_eq!(ready.status(), 200, "the old one serves well");
        assert_eq!(ready.json()["config"]["state"], state);
        let metrics = sluice.metrics();
        let value = |name: &str| metrics.get(name).copied().unwrap_or_default();
        assert_eq!(value("sluice_config_current"), current, "{metrics:?}");
        assert_eq!(value("sluice_reloads_total{result=\"adopted\"}"), adopted, "{metrics:?}");
        assert_eq!(value("sluice_reloads_total{result=\"refused\"}"), refused, "{metrics:?}");
    };
    seen("current", 1.0, [0.0, 0.0]);
    sluice.rewrite("version = ");
    sluice.signal(Signal::HUP);
    sluice.wait_for_stderr("reload_refused");
    seen("last-known-good", 0.0, [0.0, 1.0]);
    assert_eq!(sluice.reload(&config).code, Some(0));
    seen("current", 1.0, [1.0, 1.0]);
    assert_eq!(sluice.metrics()["sluice_config_version"], 2.0);
}

#[test]
fn what_takes_a_restart_is_refused_and_named() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]);
    let sluice = Sluice::start(&config);
    let taken = Config::to(&[origin.addr()]).to_string();
    for (change, named) in [
        (taken.replace("workers = 1", "workers = 2"), "server.workers"),
        (taken.replace("[server]", "[server]\nio = \"epoll\""), "server.io"),
        (taken.replacen("[\"127.0.0.1:0\"]", "[\"127.0.0.1:1\"]", 1), "server.listen"),
    ] {
        let refused = sluice.reload(&change);
        assert!(refused.code.is_some_and(|code| code != 0), "{named}");
        assert!(refused.stderr.contains(named), "{}", refused.stderr);
        let diff = sluice.dir().join("old.toml");
        std::fs::write(&diff, &taken).unwrap();
        let new = sluice.dir().join("sluice.toml");
        let said = Sluice::command(&["diff", &diff.to_string_lossy(), &new.to_string_lossy()]);
        assert!(said.stdout.contains(named), "diff had said so before: {}", said.stdout);
        assert_eq!(sluice.client().get("/a").text(), "hello");
    }
}

#[test]
fn many_reloads_at_once_all_hear_how_theirs_went() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]);
    let sluice = Sluice::start(config.workers(2));
    let control = sluice.dir().join("control.sock");
    let control = control.to_string_lossy();
    std::thread::scope(|scope| {
        let ask = || Sluice::command(&["reload", "--control", &control]).code;
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        for asked in asking {
            assert_eq!(asked.join().expect("an exit code"), Some(0));
        }
    });
    assert_eq!(sluice.client().get("/a").text(), "hello");
}

#[test]
fn a_stop_that_was_cut_short_says_so_by_its_code() {
    // (a second TERM, the bound of the drain, the exit code)
    for (twice, drain, code) in [(true, "60s", 1), (false, "200ms", 0)] {
        let gate = Gate::new();
        let held = gate.clone();
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            connection.wait_at(&held)?;
            connection.write(origin::ok("held"))
        });
        let config = Config::to(&[origin.addr()]).server(&format!("drain = \"{drain}\""));
        let mut sluice = Sluice::start(config);
        let control = sluice.dir().join("control.sock");
        let mut client = sluice.client();
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        origin.wait_for_heads(1);
        sluice.signal(Signal::TERM);
        if twice {
            eventually("new clients to be refused", || Client::try_connect(sluice.addr()).err());
            let reload = Sluice::command(&["reload", "--control", &control.to_string_lossy()]);
            assert_eq!(reload.code, Some(1), "no reload while draining: {}", reload.stderr);
            sluice.signal(Signal::TERM);
        }
        assert_eq!(sluice.wait(), Some(code), "{}", sluice.stderr());
        assert!(!control.exists(), "the control socket goes with its process");
        client.expect_close();
        gate.open();
    }
}
