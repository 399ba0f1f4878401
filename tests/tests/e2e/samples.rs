//! `sluice try`: the first minute with it, as the README promises it.

use std::net::TcpListener;

use sluice_tests::{Sluice, eventually};
use tempfile::TempDir;

/// How many requests the sample limit admits at once.
const BURST: usize = 5;

#[test]
fn the_first_minute_is_as_promised() {
    // Held by this test or by somebody else already: taken either way.
    let _taken = [8080, 9901].map(|port| TcpListener::bind(("127.0.0.1", port)));
    let dir = TempDir::new().unwrap();
    let control = dir.path().join("control.sock");
    let sluice = Sluice::with_args(&["try", "--control", &control.to_string_lossy()]);
    let (listen, admin) = (sluice.addr(), sluice.admin_addr());
    assert!((8081..=8179).contains(&listen.port()), "the next free one: {listen}");
    assert!((9902..=10_000).contains(&admin.port()), "the next free one: {admin}");
    let notes = sluice.stderr();
    for part in [
        "port 8080 is taken".to_owned(),
        format!("curl -i http://{listen}/hello/you"),
        format!("http://{listen}/limited"),
        format!("http://{admin}/metrics"),
    ] {
        assert!(notes.contains(&part), "{part:?} is not said:\n{notes}");
    }

    let mut client = sluice.client();
    let hello = client.get("/hello/you");
    assert_eq!((hello.status(), hello.text().as_str()), (200, "hello, you\n"));
    let seen = client.ask("/echo/anything?a=b", "X-Mine: 1\r\n").json();
    assert_eq!(seen["uri"], "/echo/anything?a=b");
    assert!(seen["headers"].to_string().contains("traceparent"), "{seen}");
    let mut statuses = Vec::new();
    for _ in 0..BURST + 2 {
        let limited = client.get("/limited");
        assert!(limited.field("ratelimit").is_some(), "{:?}", limited.head);
        if limited.status() == 429 {
            let seconds = limited.field("retry-after").expect("Retry-After").parse::<u32>();
            assert!(seconds.is_ok_and(|seconds| (1..=2).contains(&seconds)), "{limited:?}");
        }
        statuses.push(limited.status());
    }
    // A slow machine may see a third token come in the meantime.
    assert_eq!(statuses[..BURST], [200; BURST]);
    assert!(statuses[BURST..].contains(&429), "{statuses:?}");
    seen_in_metrics_and_log(&sluice, &statuses);
}

fn seen_in_metrics_and_log(sluice: &Sluice, statuses: &[u16]) {
    let refused = statuses.iter().filter(|status| **status == 429).count();
    let admitted = statuses.len() - refused;
    eventually("the figures of both", || {
        let metrics = sluice.metrics();
        let sum = |parts: &[&str]| -> f64 {
            let named = |name: &&String| parts.iter().all(|part| name.contains(part));
            metrics.keys().filter(named).map(|name| metrics[name]).sum()
        };
        let requests = ["sluice_requests_total{", "route=\"limited\""];
        let both = [
            (sum(&[&requests[..], &["2xx"]].concat()), admitted),
            (sum(&[&requests[..], &["4xx"]].concat()), refused),
            (sum(&["sluice_limit", "few", "allowed"]), admitted),
            (sum(&["sluice_limit", "few", "refused"]), refused),
        ];
        both.iter().all(|(found, expected)| *found == *expected as f64).then_some(())
    });
    let lines = sluice.log_lines(2 + statuses.len());
    for (status, expected) in [(200, admitted), (429, refused)] {
        let of_it = |line: &&serde_json::Value| {
            line["route"] == "limited" && line["status"] == status && line["client"] == "127.0.0.1"
        };
        assert_eq!(lines.iter().filter(of_it).count(), expected, "{status}: {lines:?}");
    }
}
