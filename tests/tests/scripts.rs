//! The scripts and the service file do what they say, on a machine made of plain files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use sluice_tests::source::root;
use tempfile::TempDir;

const SOMAXCONN: &str = "proc/sys/net/core/somaxconn";
const PORTS: &str = "proc/sys/net/ipv4/ip_local_port_range";
const FILES: &str = "proc/sys/fs/file-max";
const RPS: &str = "sys/class/net/eth0/queues/rx-0/rps_flow_cnt";

#[test]
fn tune_changes_nothing_until_it_is_told_to() {
    let machine = machine();
    let shown = tune(machine.path(), &[]);
    assert!(shown.status.success());
    let text = String::from_utf8_lossy(&shown.stdout);
    for part in ["net.core.somaxconn", "4096 → 65535", "32768 60999 → 10240 65535"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("fs.file-max"), "what is enough is left alone: {text}");
    assert_eq!(content(machine.path(), SOMAXCONN), "4096");
}

#[test]
fn tune_applies_once_and_then_has_nothing_to_do() {
    let machine = machine();
    assert!(tune(machine.path(), &["--persist"]).status.success());
    assert_eq!(content(machine.path(), SOMAXCONN), "65535");
    assert_eq!(content(machine.path(), PORTS), "10240 65535");
    assert_eq!(content(machine.path(), FILES), "9223372036854775807");
    let kept = content(machine.path(), "etc/sysctl.d/90-sluice.conf");
    assert!(kept.contains("net.core.somaxconn = 65535"), "{kept}");
    let again = tune(machine.path(), &[]);
    let text = String::from_utf8_lossy(&again.stdout);
    assert!(text.contains("nothing to change"), "{text}");
}

#[test]
fn tune_spreads_a_card_with_too_few_queues() {
    let machine = machine();
    assert!(tune(machine.path(), &["--apply"]).status.success());
    let spread = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(content(machine.path(), RPS), if spread { "32768" } else { "0" });
}

#[test]
fn tune_refuses_what_it_does_not_know() {
    let machine = machine();
    assert_eq!(tune(machine.path(), &["--aply"]).status.code(), Some(2));
    assert_eq!(tune(machine.path(), &["--nic"]).status.code(), Some(2));
    assert!(tune(machine.path(), &["--help"]).status.success());
}

#[test]
fn every_script_parses() {
    for script in [
        "scripts/setup",
        "scripts/test",
        "scripts/tune",
        "scripts/bench-brownout",
        "scripts/bench-all",
        ".ci/run",
    ] {
        let parsed = Command::new("bash").arg("-n").arg(root().join(script)).status().unwrap();
        assert!(parsed.success(), "{script}");
    }
}

#[test]
fn the_service_speaks_as_the_gateway_does() {
    let unit = fs::read_to_string(root().join("packaging/sluice.service")).unwrap();
    for line in [
        "Type=notify",
        "ExecReload=/usr/bin/sluice reload --control /run/sluice/control.sock",
        "RestartPreventExitStatus=78",
        "AmbientCapabilities=CAP_NET_BIND_SERVICE",
        "RuntimeDirectory=sluice",
    ] {
        assert!(unit.lines().any(|given| given == line), "{line}");
    }
    let run = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    assert!(run.ends_with("--control /run/sluice/control.sock"), "{run}");
}

/// An untuned machine: one value too low, one that differs, one that is already enough.
fn machine() -> TempDir {
    let machine = TempDir::new().expect("a temporary folder");
    let files = [
        (SOMAXCONN, "4096"),
        (PORTS, "32768\t60999"),
        (FILES, "9223372036854775807"),
        ("proc/sys/net/core/rps_sock_flow_entries", "0"),
        ("sys/class/net/eth0/device/vendor", "0x1af4"),
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
        (RPS, "0"),
    ];
    for (path, text) in files {
        let path = machine.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("create it");
        fs::write(path, format!("{text}\n")).expect("write");
    }
    machine
}

fn tune(machine: &Path, args: &[&str]) -> Output {
    let script = root().join("scripts/tune");
    let mut command = Command::new("bash");
    command.arg(script).args(args).env("SLUICE_TUNE_ROOT", machine).output().expect("run bash")
}

fn content(machine: &Path, path: &str) -> String {
    fs::read_to_string(machine.join(path)).expect("read").trim_end().to_owned()
}
