//! The access log: what is written, how much of it, and that nobody waits for it.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use sluice_tests::wait::pace;
use sluice_tests::{Config, Gate, Origin, Signal, Sluice, eventually};
use tempfile::TempDir;

const EVERYTHING: &str = "sample = { ok = \"100%\", slow = \"250ms\", errors = \"100%\" }";

#[test]
fn what_went_well_is_sampled_and_what_failed_is_all_there() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .limit("few", "path", "20/h", 20)
        .route("limits = [\"few\"]")
        .to_string()
        .replace(EVERYTHING, "sample = { ok = \"0%\", slow = \"off\", errors = \"100%\" }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for number in 0..23 {
        assert_eq!(client.get("/a").status(), if number < 20 { 200 } else { 429 });
    }
    let lines = sluice.log_lines(3);
    assert!(lines.iter().all(|line| line["status"] == 429), "{lines:?}");
}

#[test]
fn a_sampled_line_weighs_as_many_as_it_stands_for() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .respond("end", "/end", "end")
        .to_string()
        .replace(EVERYTHING, "sample = { ok = \"50%\", slow = \"off\", errors = \"100%\" }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for _ in 0..400 {
        assert_eq!(client.get("/a").status(), 200);
    }
    // Six standard deviations around half of them.
    let lines = sluice.log_lines(140);
    assert!(lines.len() <= 260, "{}", lines.len());
    assert!(lines.iter().all(|line| line["weight"] == 2), "{}", lines[0]);
}

#[test]
fn a_line_tells_the_request_and_hides_the_secrets() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    sluice.client().ask_host(
        "shop.example",
        "/a/b?page=2&token=geheim",
        "Authorization: Bearer geheim\r\nCookie: s=geheim\r\nX-Request-Id: mine-1\r\n",
    );
    let [line] = &sluice.log_lines(1)[..] else { panic!("one line") };
    for (name, expected) in [
        ("method", "GET"),
        ("host", "shop.example"),
        ("route", "all"),
        ("upstream", "app"),
        ("client", "127.0.0.1"),
        ("request_id", "mine-1"),
        ("endpoint", &origin.addr().to_string()),
    ] {
        assert_eq!(line[name], expected, "{name} of {line}");
    }
    assert_eq!(
        (&line["status"], &line["attempts"], &line["bytes_out"]),
        (&200.into(), &1.into(), &5.into())
    );
    assert!(line["total_us"].as_u64().is_some_and(|us| us > 0), "{line}");
    assert!(line.to_string().contains("page=2") && !line.to_string().contains("geheim"), "{line}");
}

#[test]
fn an_answer_of_our_own_takes_time_as_well() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).respond("here", "/here", "here"));
    assert_eq!(sluice.client().get("/here").text(), "here");
    let [line] = &sluice.log_lines(1)[..] else { panic!("one line") };
    assert!(line["total_us"].as_u64().is_some_and(|us| us > 0), "{line}");
}

#[test]
fn a_request_takes_until_its_last_byte_has_been_sent() {
    const TIMES: usize = 12;
    // Copied in pieces, and long enough to be spliced.
    let long = "x".repeat(100_000);
    let spliced = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nx", long.len() + 1);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n".to_owned();
    for (begin, end) in [(chunked, "1\r\ny\r\n0\r\n\r\n".to_owned()), (spliced, long)] {
        let gates: [Gate; TIMES] = Default::default();
        let script = gates.clone();
        let origin = Origin::new(move |connection| {
            for gate in &script {
                connection.read_request()?;
                connection.write(&begin)?;
                connection.wait_at(gate)?;
                connection.write(&end)?;
            }
            Ok(())
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        let mut waited = Vec::new();
        for gate in &gates {
            client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
            client.read_bodyless();
            client.read_until("x");
            let since = Instant::now();
            pace(since + Duration::from_millis(5));
            waited.push(since.elapsed());
            gate.open();
            client.read_until_end();
        }
        // The worker's clock is read now and then anyway: a dozen leave it no chance.
        for (line, waited) in sluice.log_lines(TIMES).iter().zip(waited) {
            let total = line["total_us"].as_u64().map(Duration::from_micros).expect("a figure");
            assert!(total >= waited, "{total:?}, but its body paused for {waited:?}");
        }
    }
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    // Several blocks' worth of lines, of the 256 that may wait for the writer.
    const BATCH: usize = 200;
    let dir = TempDir::new().unwrap();
    let pipe = dir.path().join("log");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe");
    // Open at both ends, so that opening it to write waits for nobody; never read from.
    let _unread = File::options().read(true).write(true).open(&pipe).unwrap();
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .access_log(&format!("file:{}", pipe.display()))
        .respond("here", "/here/{*rest}", "here");
    let mut sluice = Sluice::start(config);
    let target = format!("/here/{}", "a".repeat(2_000));
    let mut client = sluice.client();
    let requests = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n").repeat(BATCH);
    eventually("lines to be dropped, not waited for", || {
        client.send(&requests);
        for _ in 0..BATCH {
            assert_eq!(client.read_response().text(), "here");
        }
        (sluice.metrics()["sluice_access_log_dropped_lines_total"] > 0.0).then_some(())
    });
    assert_eq!(client.get("/a").text(), "hello");
    drop(client);
    sluice.signal(Signal::TERM);
    assert_eq!(sluice.wait(), Some(0), "nor does the end wait for it for long");
}
