//! The brown-out as people run it, before a double: how it is measured, not what it shows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use sluice_bench::cpu;

const BINARY: &str = env!("CARGO_BIN_EXE_sluice-bench");

/// The double answers by itself and at once: all that is asked for is good.
#[test]
fn a_brown_out_is_told_by_phases_and_drawn() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("brownout");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).unwrap();
    let sluice = out.join("sluice");
    let port = r#"$(sed -n 's/^listen = \["\(.*\)"\]$/\1/p' "$3")"#;
    let script =
        format!("#!/bin/sh\n{BINARY} origin --listen {port} &\ntrap 'kill $!' TERM\nwait\n");
    fs::write(&sluice, script).unwrap();
    fs::set_permissions(&sluice, fs::Permissions::from_mode(0o755)).unwrap();
    let cpus: Vec<String> =
        (0..1024).filter(|cpu| cpu::is_allowed(*cpu)).map(|cpu| cpu.to_string()).collect();
    let short =
        ["--quiet=500ms", "--over=500ms", "--half=500ms", "--back=500ms", "--warm-up=100ms"];
    let found = Command::new(BINARY)
        .args(["brownout", "--only", "sluice", "--servers", "2", "--service", "20ms"])
        .args(short)
        .args(["--sluice", sluice.to_str().unwrap(), "--out", out.to_str().unwrap()])
        .args(["--proxy-cpu", &cpus[0], "--load-cpu", &cpus[cpus.len() - 1]])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8(found.stderr).unwrap();
    assert!(found.status.success(), "{told}");
    let text = fs::read_to_string(out.join("brownout.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let run = &report["runs"][0];
    let phases = run["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["quiet", "over", "half", "back"]);
    // Of two servers that take 20 ms: a hundred a second, and fifty when one is gone.
    let can = [50.0, 50.0, 25.0, 50.0];
    for (phase, can) in phases.iter().zip(can) {
        assert_eq!(phase["whole"]["can"].as_f64(), Some(can), "{phase}");
        assert!(phase["whole"]["good"].as_u64() > Some(0), "{phase}");
    }
    let asked = |at: usize| phases[at]["whole"]["asked"].as_u64().unwrap();
    assert!(asked(1) > 2 * asked(0), "{} and {}", asked(0), asked(1));
    assert_eq!(run["points"].as_array().unwrap().len(), 8);
    assert_eq!(fs::read_to_string(out.join("brownout.csv")).unwrap().lines().count(), 9);
    let picture = fs::read_to_string(out.join("brownout.svg")).unwrap();
    assert!(picture.contains("class=\"p99\"") && !picture.contains("NaN"));
    let configuration = fs::read_to_string(out.join("runs/sluice/sluice.toml")).unwrap();
    assert!(configuration.contains("adaptive = \"on\""), "{configuration}");
}
