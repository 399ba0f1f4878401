//! The command line as people and machines use it.

use std::env;
use std::fs;

use sluice_tests::source::root;
use sluice_tests::{Config, Origin, Sluice};
use tempfile::TempDir;

#[test]
fn the_banner_names_the_driver_that_runs() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let banner = sluice.stderr();
    let known = ["io_uring", "epoll"].iter().any(|driver| banner.contains(driver));
    assert!(known, "{banner}");
    if env::var("SLUICE_TEST_DRIVER").is_ok_and(|driver| driver == "epoll") {
        assert!(banner.contains("epoll"), "{banner}");
    }
}

#[test]
fn one_line_is_a_reverse_proxy() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::proxy(origin.addr());
    assert_eq!(sluice.client().get("/").text(), "hello");
}

#[test]
fn what_proxy_prints_is_a_configuration() {
    let printed = Sluice::command(&["proxy", ":8080", "127.0.0.1:3000", "--print"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("printed.toml");
    fs::write(&file, &printed.stdout).unwrap();
    let checked = Sluice::command(&["check", &file.to_string_lossy()]);
    assert_eq!(checked.code, Some(0), "{}{}", printed.stdout, checked.stderr);
}

#[test]
fn check_tells_people_and_machines_where_a_mistake_is() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("broken.toml");
    let config = Config::to(&["127.0.0.1:9".parse().unwrap()]).to_string();
    fs::write(&file, config.replace("to = \"app\"", "to = \"ap\"")).unwrap();
    let file = file.to_string_lossy();
    let people = Sluice::command(&["check", &file]);
    assert_eq!(people.code, Some(78));
    let said = format!("{}{}", people.stdout, people.stderr);
    assert!(said.contains("broken.toml:") && said.contains("app"), "{said}");
    assert!(!said.contains('\x1b'), "no colours where there is no terminal: {said:?}");
    let machines = Sluice::command(&["check", "--json", &file]);
    assert_eq!(machines.code, Some(78));
    let report: serde_json::Value = serde_json::from_str(&machines.stdout).expect("JSON");
    assert!(report.to_string().contains("\"line\""), "{report}");
}

#[test]
fn what_the_binary_says_about_itself_is_usable() {
    let schema = Sluice::command(&["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema.stdout).expect("a JSON Schema");
    assert!(schema["$schema"].is_string());
    for args in [&["completions", "bash"][..], &["man"], &["--help"], &["--version"]] {
        let said = Sluice::command(args);
        assert_eq!(said.code, Some(0), "{args:?}");
        assert!(said.stdout.contains("sluice"), "{args:?}: {}", said.stdout);
    }
    assert!(Sluice::command(&["doctor"]).stdout.contains("io_uring"));
}

#[test]
fn usage_mistakes_have_a_code_of_their_own() {
    for args in [&["no-such-command"][..], &["run", "--no-such-flag"], &["check"]] {
        assert_eq!(Sluice::command(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn a_reload_without_a_gateway_fails_aloud() {
    let dir = TempDir::new().unwrap();
    let nobody = dir.path().join("control.sock");
    let reload = Sluice::command(&["reload", "--control", &nobody.to_string_lossy()]);
    assert_eq!(reload.code, Some(1));
    assert!(!reload.stderr.is_empty());
}

#[test]
fn every_shipped_example_is_good() {
    for entry in fs::read_dir(root().join("examples")).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".toml") {
            let checked = Sluice::command(&["check", &path.to_string_lossy()]);
            let expected = if name.starts_with("bad") { 78 } else { 0 };
            assert_eq!(checked.code, Some(expected), "{name}: {}", checked.stderr);
        }
    }
}
