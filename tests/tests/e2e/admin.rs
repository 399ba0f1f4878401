//! The admin API and the control socket: what they tell, and to whom they listen.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use sluice_tests::{Config, Gate, Origin, Sluice, eventually, origin};
use tempfile::TempDir;

#[test]
fn percentiles_are_those_of_the_requests_that_were_held() {
    const QUICK: usize = 95;
    const HELD: usize = 5;
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        loop {
            if connection.read_request()?.head.line.contains("/held") {
                connection.wait_at(&held)?;
            }
            connection.write(origin::ok("hello"))?;
        }
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).workers(2));
    let began = Instant::now();
    let mut waiting: Vec<_> = (0..HELD).map(|_| sluice.client()).collect();
    for client in &mut waiting {
        client.send("GET /held HTTP/1.1\r\nHost: a.example\r\n\r\n");
    }
    origin.wait_for_heads(HELD);
    let all_held = Instant::now();
    // The held ones are held for as long as the others take, and longer than any of them.
    let mut client = sluice.client();
    let mut slowest = Duration::ZERO;
    for _ in 0..QUICK {
        let asked = Instant::now();
        assert_eq!(client.get("/quick").status(), 200);
        slowest = slowest.max(asked.elapsed());
    }
    let at_least = all_held.elapsed();
    gate.open();
    for client in &mut waiting {
        assert_eq!(client.read_response().status(), 200);
    }
    let at_most = began.elapsed();
    let latency = eventually("all of them counted", || {
        let latency = sluice.admin("/v1/latency").json();
        (latency["overall"]["requests"] == QUICK + HELD).then_some(latency)
    });
    assert_eq!(latency["routes"]["all"], latency["overall"], "one route has them all");
    let micros = |name: &str| {
        Duration::from_micros(latency["overall"][name].as_u64().expect("microseconds"))
    };
    // Within the width of a bucket, 1.6 %, and the clock's grain.
    let near = |span: Duration| span + span / 50 + Duration::from_millis(2);
    for name in ["p50_us", "p95_us"] {
        assert!(micros(name) <= near(slowest), "{name} of {latency}, slowest {slowest:?}");
    }
    for name in ["p99_us", "p999_us", "max_us"] {
        assert!(near(micros(name)) >= at_least, "{name} of {latency}, held {at_least:?}");
        assert!(micros(name) <= near(at_most), "{name} of {latency}, at most {at_most:?}");
    }
}

#[test]
fn the_status_tells_what_runs_and_what_is_under_way() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.wait_at(&held)?;
        connection.write(origin::ok("hello"))
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).workers(2));
    let status = || sluice.admin("/v1/status").json();
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    origin.wait_for_heads(1);
    let busy = status();
    let expected = [
        ("/phase", "serving".into()),
        ("/pid", sluice.pid().into()),
        ("/config/number", 1.into()),
        ("/listeners/0", sluice.addr().to_string().into()),
        ("/connections", 1.into()),
        ("/in_flight", 1.into()),
        ("/worker_restarts", 0.into()),
        ("/workers/1/state", "running".into()),
        ("/upstreams/0/server", origin.addr().to_string().into()),
        ("/upstreams/0/in_flight", 1.into()),
    ];
    for (pointer, expected) in expected {
        let found: Option<&serde_json::Value> = busy.pointer(pointer);
        assert_eq!(found, Some(&expected), "{pointer} of {busy}");
    }
    gate.open();
    assert_eq!(client.read_response().status(), 200);
    drop(client);
    eventually("nothing under way", || {
        let idle = status();
        let counts = ["connections", "in_flight", "requests"].map(|name| idle[name].as_u64());
        (counts == [0, 0, 1].map(Some)).then_some(())
    });
    assert_eq!(sluice.reload("version = \n").code, Some(78));
    let refused = status();
    assert!(refused["config"]["refused"]["why"].is_string(), "{refused}");
    assert_eq!(refused["config"]["number"], 1);
}

#[test]
fn a_change_needs_the_token_and_the_header() {
    const TOKEN: &str = "Authorization: Bearer sesame\r\n";
    const HEADER: &str = "X-Sluice: 1\r\n";
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]);
    let secret = TempDir::new().unwrap();
    let file = secret.path().join("token");
    fs::write(&file, "sesame\n").unwrap();
    let token = format!("token = \"file:{}\"", file.display());
    let closed = Sluice::start(&config);
    let open = Sluice::start(config.clone().admin(&token));
    let cases = [
        (&closed, format!("{TOKEN}{HEADER}"), 403, "without a token it only reads"),
        (&open, String::new(), 403, "nothing shown"),
        (&open, TOKEN.to_owned(), 403, "what a form in a browser could send"),
        (&open, HEADER.to_owned(), 401, "no token"),
        (&open, format!("Authorization: Bearer guess\r\n{HEADER}"), 401, "another token"),
        (&open, format!("{TOKEN}{HEADER}"), 200, "both"),
    ];
    for (sluice, fields, status, what) in cases {
        let mut client = sluice.admin_client();
        client.send(format!(
            "POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{fields}\r\n"
        ));
        let response = client.read_response();
        assert_eq!(response.status(), status, "{what}: {}", response.text());
        assert!(!response.text().contains("sesame"), "{what}");
    }
    let numbers =
        [&closed, &open].map(|it| it.admin("/v1/status").json()["config"]["number"].clone());
    assert_eq!(numbers, [1, 2], "only what was allowed was done");
    assert!(!open.stderr().contains("sesame"));
}

#[test]
fn a_web_page_cannot_reach_the_admin_api_by_a_name_of_its_own() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let port = sluice.admin_addr().port();
    let cases = [
        ("localhost".to_owned(), 200),
        (format!("127.0.0.1:{port}"), 200),
        (format!("evil.example:{port}"), 403),
        ("127.0.0.1.evil.example".to_owned(), 403),
    ];
    for (host, status) in cases {
        for path in ["/v1/status", "/metrics", "/v1/config", "/health"] {
            let response = sluice.admin_client().ask_host(&host, path, "");
            assert_eq!(response.status(), status, "{host}{path}");
            assert_eq!(response.field("cache-control"), Some("no-store"));
        }
    }
}

#[test]
fn health_and_metrics_are_not_on_the_clients_listener() {
    let origin = Origin::echo();
    let sluice = Sluice::before(&origin);
    for path in ["/health", "/metrics", "/v1/status"] {
        let passed_on = format!("GET {path} HTTP/1.1\n");
        assert!(sluice.client().get(path).text().starts_with(&passed_on), "{path}");
    }
    let off = Config::to(&[origin.addr()]).to_string().replacen("\"127.0.0.1:0\"", "\"off\"", 2);
    let off = off.replacen("listen = [\"off\"]", "listen = [\"127.0.0.1:0\"]", 1);
    assert!(!Sluice::start(off).stderr().contains("admin on"));
}

#[test]
fn the_control_socket_is_its_users_alone_and_one_process_has_it() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let control = sluice.dir().join("control.sock");
    let mode = fs::metadata(&control).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let file = sluice.dir().join("sluice.toml");
    let args = ["run", "-c", &file.to_string_lossy(), "--control", &control.to_string_lossy()];
    let second = Sluice::command(&args);
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(second.stderr.contains("another sluice answers on"), "{}", second.stderr);
    assert_eq!(sluice.client().get("/a").text(), "hello", "the first is not harmed");
    let reload = Sluice::command(&["reload", "--control", &control.to_string_lossy()]);
    assert_eq!(reload.code, Some(0), "and still answers there: {}", reload.stderr);
}

#[test]
fn an_address_in_use_is_refused_aloud() {
    let origin = Origin::ok("hello");
    let first = Sluice::before(&origin);
    let kept = TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = kept.local_addr().unwrap();
    let config = Config::to(&[origin.addr()]).to_string();
    let listening = |addr| config.replace("[\"127.0.0.1:0\"]", &format!("[\"{addr}\"]"));
    let cases = [
        (listening(first.addr()), first.addr(), "another gateway's"),
        (listening(first.admin_addr()), first.admin_addr(), "another gateway's admin"),
        (
            config.replace("listen = \"127.0.0.1:0\"", &format!("listen = \"{stranger}\"")),
            stranger,
            "admin",
        ),
    ];
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    for (config, addr, what) in cases {
        fs::write(path("sluice.toml"), config).unwrap();
        let args = ["run", "-c", &path("sluice.toml"), "--control", &path("control.sock")];
        let ended = Sluice::command(&args);
        assert_eq!(ended.code, Some(1), "{what}: {}", ended.stderr);
        let said = format!("cannot listen on {addr}: Address already in use");
        assert!(ended.stderr.contains(&said), "{what}: {}", ended.stderr);
        assert!(!dir.path().join("control.sock").exists(), "{what}: nothing is left behind");
    }
    assert_eq!(first.client().get("/a").text(), "hello");
}
