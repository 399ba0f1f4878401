//! What the command line says, to whom, and with which exit code.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use sluice_tests::process::binary;
use sluice_tests::source::root;
use sluice_tests::{Config, Origin, Sluice};
use tempfile::TempDir;

/// Where `examples/bad.toml` is wrong, and a word of what is said there.
const MISTAKES: [(&str, &str); 10] = [
    ("6:9", "unit"),
    ("9:30", "port"),
    ("10:11", "p2c"),
    ("13:1", "servers"),
    ("16:14", "usr"),
    ("17:8", "100/s"),
    ("21:6", "orders"),
    ("22:1", "timeout"),
    ("23:40", "110%"),
    ("24:19", "plan"),
];

/// More than any account that a machine has.
const NOBODY: u32 = 65_534;

#[test]
fn check_finds_the_ten_mistakes_of_the_bad_example() {
    let bad = root().join("examples/bad.toml");
    let bad = bad.to_string_lossy();
    let people = Sluice::command(&["check", &bad]);
    assert_eq!((people.code, people.stdout.as_str()), (Some(78), ""));
    let shown: Vec<&str> = people.stderr.split("\nerror: ").collect();
    assert_eq!(shown.len(), MISTAKES.len(), "{}", people.stderr);
    for (problem, (place, word)) in shown.iter().zip(MISTAKES) {
        assert!(problem.contains(&format!("bad.toml:{place}\n")), "{place}: {problem}");
        assert!(problem.contains(word), "{word}: {problem}");
        assert!(problem.contains('━'), "underlined: {problem}");
    }
    let machines = Sluice::command(&["check", "--json", &bad]);
    assert_eq!((machines.code, machines.stderr.as_str()), (Some(78), ""));
    let report: serde_json::Value = serde_json::from_str(&machines.stdout).expect("JSON");
    assert_eq!(report["good"], false);
    let problems = report["problems"].as_array().expect("a list");
    let places: Vec<String> = problems
        .iter()
        .map(|problem| format!("{}:{}", problem["line"], problem["column"]))
        .collect();
    assert_eq!(places, MISTAKES.map(|(place, _)| place));
    assert_eq!(problems[3]["hint"], "did you mean \"servers\"?");
}

#[test]
fn check_says_what_a_good_file_holds() {
    let good = root().join("examples/minimal.toml");
    let people = Sluice::command(&["check", &good.to_string_lossy()]);
    assert_eq!((people.code, people.stderr.as_str()), (Some(0), ""));
    assert!(people.stdout.contains("good: 1 listener, 1 route, 1 upstream"), "{}", people.stdout);
    let machines = Sluice::command(&["check", "--json", &good.to_string_lossy()]);
    let report: serde_json::Value = serde_json::from_str(&machines.stdout).expect("JSON");
    assert_eq!((machines.code, &report["good"]), (Some(0), &true.into()));
}

#[test]
fn diff_says_what_a_change_touches() {
    let dir = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let config = Config::to(&["127.0.0.1:9".parse().unwrap()]).to_string();
    let old = write("old.toml", &config);
    let changed = config.replace("workers = 1", "workers = 2\ndrain = \"5s\"");
    let new = write("new.toml", &changed.replace("[route.all]", "[route.all]\nretries = 3"));
    let bad = write("bad.toml", &config.replace("to = \"app\"", "to = \"ap\""));

    let people = Sluice::command(&["diff", &old, &new]);
    assert_eq!(people.code, Some(0), "{}", people.stderr);
    for line in [
        "restart  server.workers: 1 -> 2",
        "swap     server.drain: \"1min\" -> \"5s\"",
        "swap     route.all.retries: 1 -> 3",
    ] {
        let (effect_and_path, values) = line.split_once(": ").unwrap();
        let found = people.stdout.lines().find(|found| found.starts_with(effect_and_path));
        let found = found.unwrap_or_else(|| panic!("{effect_and_path}: {}", people.stdout));
        let (_, new) = values.split_once(" -> ").unwrap();
        assert!(found.ends_with(new), "{found}");
    }
    let machines = Sluice::command(&["diff", "--json", &old, &new]);
    let changes: Vec<serde_json::Value> = serde_json::from_str(&machines.stdout).expect("JSON");
    let workers = changes.iter().find(|change| change["path"] == "server.workers");
    let workers = workers.unwrap_or_else(|| panic!("{changes:?}"));
    assert_eq!((&workers["effect"], &workers["new"]), (&"restart".into(), &2.into()));

    let same = Sluice::command(&["diff", &old, &old]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""));
    let broken = Sluice::command(&["diff", &old, &bad]);
    assert_eq!(broken.code, Some(78));
    assert!(broken.stderr.contains("bad.toml:"), "{}", broken.stderr);
}

#[test]
fn the_printed_schema_is_the_shipped_one_and_knows_every_table() {
    let printed = Sluice::command(&["schema"]);
    let shipped = fs::read_to_string(root().join("examples/sluice.schema.json")).unwrap();
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let schema = parse(&printed.stdout);
    assert_eq!(schema, parse(&shipped));
    for table in ["server", "admin", "upstream", "limit", "route", "log"] {
        assert!(schema["properties"][table].is_object(), "{table}");
    }
}

#[test]
fn completions_and_manual_know_every_command() {
    let commands = [
        "try",
        "proxy",
        "run",
        "check",
        "diff",
        "reload",
        "status",
        "switch",
        "limits",
        "drill",
        "doctor",
        "schema",
        "completions",
        "man",
    ];
    for args in [
        &["completions", "bash"][..],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["man"],
        &["--help"],
    ] {
        let said = Sluice::command(args);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{args:?}");
        for command in commands {
            assert!(said.stdout.contains(command), "{args:?} does not know {command}");
        }
    }
    let bash = Sluice::command(&["completions", "bash"]);
    let dir = TempDir::new().unwrap();
    let script = dir.path().join("sluice.bash");
    fs::write(&script, bash.stdout).unwrap();
    let parsed = Command::new("bash").arg("-n").arg(&script).status();
    assert!(parsed.is_ok_and(|status| status.success()), "bash can't read it");
}

#[test]
fn each_way_to_fail_has_its_code() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("missing.toml");
    let missing = missing.to_string_lossy();
    let cases: [(&[&str], i32); 9] = [
        (&["--version"], 0),
        (&["check", &missing], 78),
        (&["diff", &missing, &missing], 78),
        (&["run", "-c", &missing], 78),
        (&["status", "--control", &missing], 1),
        (&["reload", "--control", &missing], 1),
        (&["run"], 2),
        (&["proxy", ":8080", "https://a.example"], 2),
        (&["run", "-c", &missing, "--driver", "kqueue"], 2),
    ];
    for (args, code) in cases {
        let ended = Sluice::command(args);
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.is_empty(), code == 0, "{args:?} says why it fails");
    }
}

#[test]
fn a_missing_right_is_77() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("sluice.toml");
    fs::write(&file, "version = 1\n").unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root && Command::new(binary()).arg("--version").uid(NOBODY).output().is_err() {
        eprintln!("skipped: root may read everything, and nobody may not run the binary");
        return;
    }
    let file = file.to_string_lossy();
    for args in [&["check", &file][..], &["run", "-c", &file], &["diff", &file, &file]] {
        let ended = Sluice::command_arranged(args, |command| {
            // Root may read everything.
            if root {
                command.uid(NOBODY);
            }
        });
        assert_eq!(ended.code, Some(77), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("Permission denied"), "{}", ended.stderr);
    }
}

#[test]
fn people_at_a_terminal_get_colours_unless_they_said_no() {
    let bad = root().join("examples/bad.toml");
    let bad = bad.to_string_lossy();
    let cases: [(&[&str], Option<&str>, bool); 5] = [
        (&["check", &bad], None, true),
        (&["check", &bad], Some(""), true),
        (&["check", &bad], Some("1"), false),
        (&["doctor"], None, true),
        (&["doctor"], Some("1"), false),
    ];
    for (args, no_colour, coloured) in cases {
        let shown = at_a_terminal(args, no_colour);
        assert_eq!(shown.contains("\x1b["), coloured, "{args:?} {no_colour:?}: {shown}");
        assert!(!shown.trim_start().starts_with(['{', '[']), "text for people: {shown}");
    }
}

#[test]
fn what_is_read_by_a_program_is_json() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let control = sluice.dir().join("control.sock");
    let control = control.to_string_lossy();
    let status = ["status", "--control", &control];
    for args in [&["doctor"][..], &["doctor", "--json"], &status] {
        let said = Sluice::command(args);
        assert_eq!(said.code, Some(0), "{args:?}: {}", said.stderr);
        assert!(serde_json::from_str::<serde_json::Value>(&said.stdout).is_ok(), "{}", said.stdout);
    }
    let shown = at_a_terminal(&status, None);
    let pid = format!("(pid {}, ", sluice.pid());
    assert!(shown.contains(&pid) && shown.contains("worker  cpu  state"), "{shown}");
}

/// Both streams on one terminal, as a shell has them.
fn at_a_terminal(args: &[&str], no_colour: Option<&str>) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    unlockpt(&ours).expect("its other end");
    let name = ptsname(&ours, Vec::new()).expect("its name");
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let theirs = || Stdio::from(File::options().write(true).open(path).expect("its other end"));
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null()).stdout(theirs()).stderr(theirs());
    command.env_remove("NO_COLOR").envs(no_colour.map(|value| ("NO_COLOR", value)));
    let mut child = command.spawn().expect("start the binary");
    // With our copies of its end gone, the last writer's exit ends the reading, with an error.
    drop(command);
    let mut shown = Vec::new();
    drop(File::from(ours).read_to_end(&mut shown));
    child.wait().expect("a child that can be waited for");
    String::from_utf8_lossy(&shown).into_owned()
}
