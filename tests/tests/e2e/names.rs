//! Servers that are written by name.

use std::fs;

use sluice_tests::{Config, Origin, Sluice};
use tempfile::TempDir;

/// A label is at most 63 bytes long (RFC 1035 section 2.3.4), so nobody has to be asked.
fn unknown() -> String {
    format!("{}.example:80", "a".repeat(64))
}

#[test]
fn a_server_may_be_written_by_name() {
    let origin = Origin::ok("hello");
    let name = format!("localhost:{}", origin.addr().port());
    let config = Config::to(&[origin.addr()]).to_string();
    let sluice = Sluice::start(config.replacen(&origin.addr().to_string(), &name, 1));
    assert_eq!(sluice.client().get("/a").text(), "hello");
    assert!(sluice.admin("/v1/config").text().contains(&name));
}

#[test]
fn a_name_that_nobody_knows_is_a_failure_and_no_wrong_configuration() {
    let origin = Origin::ok("hello");
    let addr = origin.addr().to_string();
    let good = Config::to(&[origin.addr()]).to_string();
    let bad = good.replacen(&addr, &unknown(), 1);
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    fs::write(path("sluice.toml"), &bad).unwrap();
    assert_eq!(Sluice::command(&["check", &path("sluice.toml")]).code, Some(0), "the file is good");
    // 78 would keep a service manager from trying again, as when a machine starts before its DNS.
    let run = ["run", "-c", &path("sluice.toml"), "--control", &path("control.sock")];
    let ended = Sluice::command(&run);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("upstream.app: aaaa"), "{}", ended.stderr);

    let sluice = Sluice::start(&good);
    let reload = sluice.reload(&bad);
    assert_eq!(reload.code, Some(1), "{}", reload.stderr);
    assert!(reload.stderr.contains("the old configuration serves on"), "{}", reload.stderr);
    assert_eq!(sluice.client().get("/a").text(), "hello");
}
