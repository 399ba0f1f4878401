//! The binary as people run it: origin, load and compare as processes.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use sluice_bench::cpu;

const BINARY: &str = env!("CARGO_BIN_EXE_sluice-bench");

/// A folder below the target folder, empty.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Ended when dropped, whatever the test came to.
struct Server(Child);

/// One that says where it listens.
fn serving(arguments: &[&str]) -> (Server, String) {
    let mut command = Command::new(BINARY);
    let mut server = command.args(arguments).stdout(Stdio::piped()).spawn().map(Server).unwrap();
    let mut address = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    (server, address.trim().to_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_relay_passes_every_byte_and_outlives_its_clients() {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let (_origin, origin) = serving(&["origin"]);
    for means in ["ring", "copy", "splice"] {
        if means == "ring" && disabled.trim() != "0" {
            eprintln!("skipped: no rings on this machine");
            continue;
        }
        let (_relay, relay) = serving(&["relay", "--upstream", &origin, "--by", means]);
        // Long bodies by several at once: pieces that wait for their turn behind others. And
        // responses whose connections end right behind them.
        let up: &[&str] = &["--body-bytes", "1000000"];
        for (size, more) in
            [("128", &[][..]), ("1000000", &[]), ("128", up), ("128", &["--connect-each"])]
        {
            let (out, url) = (folder("relay"), format!("http://{relay}/?size={size}"));
            let out = out.to_str().unwrap();
            let options = ["-c", "8", "-w", "0s", "-d", "30s", "--requests", "200", "--out", out];
            let found = bench(&[&["load"], &options[..], more, &[&url]].concat());
            assert!(found.status.success(), "{means}: {found:?}");
            let report = String::from_utf8_lossy(&found.stdout).into_owned();
            assert!(report.contains("| status 200 | 200 |"), "{means}: {report}");
        }
    }
}

#[test]
fn load_reports_what_the_origin_answered() {
    let (_origin, address) = serving(&["origin"]);
    let (out, url) = (folder("load"), format!("http://{address}/?status=201"));
    let found = bench(&[
        "load",
        &url,
        "--requests",
        "500",
        "--warm-up",
        "0s",
        "--out",
        out.to_str().unwrap(),
    ]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(found.status.success(), "{text}");
    for expected in ["| P99.99 |", "| status 201 | 500 |", "| errors | 0 |"] {
        assert!(text.contains(expected), "no `{expected}` in\n{text}");
    }
    assert_eq!(found.stderr, b"", "progress is for terminals");
    assert_eq!(fs::read_to_string(out.join("load.md")).unwrap(), text);
    let report = json(&out.join("load.json"));
    assert_eq!((&report["answered"], &report["statuses"]["201"]), (&500.into(), &500.into()));
    assert!(fs::read_to_string(out.join("latency.svg")).unwrap().contains("<polyline"));
}

#[test]
fn other_machines_and_nonsense_are_refused() {
    for (arguments, expected) in [
        (vec!["load", "http://192.0.2.1/"], "--allow-remote"),
        (vec!["load", "https://127.0.0.1/"], "only http://"),
        (vec!["load", "http://127.0.0.1/", "-d", "2h"], "at most 1h"),
        (vec!["load", "http://127.0.0.1/", "-d", "10"], "time unit"),
        (vec!["load", "http://127.0.0.1/", "-r", "0"], "from 1 to"),
        (vec!["compare", "--peers", "apache"], "none of sluice, nginx, haproxy"),
    ] {
        let found = bench(&arguments);
        let text = String::from_utf8(found.stderr).unwrap();
        assert!(!found.status.success() && text.contains(expected), "{arguments:?}: {text}");
    }
}

/// A gateway double: a script that reads the port from the configuration it is given, and lets an
/// origin answer there.
fn double(out: &Path) -> PathBuf {
    let sluice = out.join("sluice");
    let port = r#"$(sed -n 's/^listen = \["\(.*\)"\]$/\1/p' "$3")"#;
    fs::write(
        &sluice,
        format!("#!/bin/sh\n{BINARY} origin --listen {port} &\ntrap 'kill $!' TERM\nwait\n"),
    )
    .unwrap();
    fs::set_permissions(&sluice, fs::Permissions::from_mode(0o755)).unwrap();
    sluice
}

/// All that are ours.
fn cpus() -> Vec<String> {
    (0..1024).filter(|cpu| cpu::is_allowed(*cpu)).map(|cpu| cpu.to_string()).collect()
}

/// Runs `compare` of this Sluice alone for a moment, on the first CPU and the last that are ours.
fn compare(scenarios: &[&str], sluice: &Path, out: &Path, more: &[&str]) -> Output {
    let cpus = cpus();
    let usual = ["--peers", "sluice", "-d", "200ms", "-w", "50ms", "--sluice"];
    let places = ["--proxy-cpu", &cpus[0], "--load-cpu", &cpus[cpus.len() - 1], "--out"];
    let paths = [sluice.to_str().unwrap(), out.to_str().unwrap()];
    bench(&[&["compare"], scenarios, &usual, &paths[..1], &places, &paths[1..], more].concat())
}

#[test]
fn compare_sets_a_proxy_beside_the_yardstick() {
    let out = folder("compare");
    let found = compare(&["plain", "conn"], &double(&out), &out, &["--rounds", "2"]);
    let (text, told) =
        (String::from_utf8(found.stdout).unwrap(), String::from_utf8(found.stderr).unwrap());
    assert!(found.status.success(), "{text}{told}");
    assert_eq!(told.matches("round 2/2 sluice").count(), 2, "{told}");
    let report = json(&out.join("compare.json"));
    for (scenario, name) in ["plain", "conn"].iter().enumerate() {
        let runs = report["scenarios"][scenario]["runs"].as_array().unwrap();
        let order: Vec<_> = runs.iter().map(|run| run["contender"].as_str().unwrap()).collect();
        assert_eq!(order, ["direct", "sluice", "sluice", "direct"], "another one first");
        assert!(
            runs.iter().all(|run| run["failed"] == 0 && run["answered"].as_u64() > Some(0)),
            "{runs:?}"
        );
        assert!(fs::read_to_string(out.join(format!("{name}.svg"))).unwrap().contains("sluice"));
    }
    assert_eq!(report["skipped"], serde_json::json!([]));
    // On one CPU alone the proxy has to have its turn.
    let is_together = cpus().len() > 1;
    assert_eq!(text.contains(", load and origin on one thread"), is_together, "{text}");
    // The double works flat out behind a script: its time is found only in the process tree.
    let proxied = &report["scenarios"][0]["runs"][1];
    assert!(proxied["figures"]["cpu_us_per_request"].as_f64() > Some(0.0), "{proxied}");
    assert!(proxied["shares"]["proxy"].as_f64() > Some(0.01), "{proxied}");
    let configuration = fs::read_to_string(out.join("runs/plain-1-sluice/sluice.toml")).unwrap();
    assert!(configuration.starts_with("version = 1"));
}

#[test]
fn load_and_origin_are_apart_when_asked_for() {
    let out = folder("apart");
    let found = compare(&["plain"], &double(&out), &out, &["--rounds", "1", "--apart"]);
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(found.status.success() && !text.contains("on one thread"), "{text}");
    let report = json(&out.join("compare.json"));
    let runs = report["scenarios"][0]["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["shares"]["origin"].as_f64() > Some(0.0)), "{runs:?}");
}

#[test]
fn long_bodies_crowds_and_the_greedy_show_figures_of_their_own() {
    let out = folder("others");
    let cases: [(&str, &[&str]); 5] = [
        ("down", &["gb_per_second", "cpu_seconds_per_gb", "peak_kb_per_connection"]),
        ("up", &["gb_per_second", "cpu_seconds_per_gb", "peak_kb_per_connection"]),
        ("idle", &["rest_kb_per_connection", "proxy_cpu_percent"]),
        ("beside-stream", &["p99_alone", "p99_beside", "p99_raised", "greedy_mb_per_second"]),
        ("beside-pipeline", &["p99_alone", "p99_beside", "greedy_requests_per_second"]),
    ];
    let names = cases.map(|(name, _)| name);
    let few = ["--rounds", "1", "--crowd", "100", "--rate", "500"];
    let found = compare(&names, &double(&out), &out, &few);
    assert!(found.status.success(), "{found:?}");
    let report = json(&out.join("compare.json"));
    for (scenario, (name, figures)) in cases.iter().enumerate() {
        let runs = report["scenarios"][scenario]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2, "{name}");
        let seen = &runs[1]["figures"];
        assert!(figures.iter().all(|figure| seen[figure].is_number()), "{name}: {seen}");
        assert!(runs.iter().all(|run| run["failed"] == 0), "{name}: {runs:?}");
    }
    // The greedy have an origin of their own.
    let text = fs::read_to_string(out.join("runs/beside-stream-1-sluice/sluice.toml")).unwrap();
    assert!(text.contains("match = \"/greedy/{*rest}\""), "{text}");
}

/// The double waits for heads for ever.
#[test]
fn half_heads_that_are_not_given_up_are_told() {
    let out = folder("half");
    let few = ["--rounds", "1", "--crowd", "20", "--rate", "500"];
    let found = compare(&["half"], &double(&out), &out, &few);
    let told = String::from_utf8(found.stderr).unwrap();
    assert!(told.contains("only 0 of 20 half heads were given up"), "{told}");
    assert!(!found.status.success());
}

#[test]
fn a_missing_peer_is_skipped_and_a_kernel_that_holds_up_is_told_aloud() {
    let out = folder("skipped");
    let found = bench(&[
        "compare",
        "--urgent",
        "--peers",
        "sluice",
        "--sluice",
        "/nonexistent/sluice",
        "--load-cpu",
        "0",
        "--out",
        out.to_str().unwrap(),
    ]);
    let text = String::from_utf8(found.stderr).unwrap();
    assert!(
        text.contains("SKIPPED sluice: no sluice binary at /nonexistent/sluice: cargo build"),
        "{text}"
    );
    let throttle = fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap_or_default();
    let warned = text.contains("the kernel will hold up what is urgent");
    assert_eq!(warned, throttle.trim() != "-1", "{text}");
    assert!(!found.status.success());
}
