//! Who may depend on whom. Fails on an arrow that must not exist, in a manifest or in a source.

use std::process::Command;

use serde_json::Value;
use sluice_tests::source::{Source, root};

/// Pure text and arithmetic: nothing here opens, waits, reads a clock or draws a number.
const POLICY_MAY: &[&str] =
    &["serde", "schemars", "siphasher", "smallvec", "arrayvec", "ipnet", "matchit", "bitflags"];
const CONFIG_MAY: &[&str] = &[
    "sluice-policy",
    "serde",
    "serde_json",
    "toml",
    "toml_edit",
    "annotate-snippets",
    "strsim",
    "schemars",
    "ipnet",
];

const POLICY_NEVER: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "std::time::UNIX_EPOCH",
    "std::thread",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "std::net::Tcp*",
    "std::net::Udp*",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "rand::*",
    "log::*",
    "tracing::*",
];
const POLICY_NEVER_WORDS: &[&str] = &["async", "await", "HashMap", "HashSet", "SystemTime"];
const CONFIG_NEVER: &[&str] = &["std::fs", "std::net::Tcp*", "std::net::Udp*", "monoio"];

/// A record and what it is made of; nothing with which one could decide.
const OBSERVE_MAY: &[&str] = &["Record", "Snapshot", "Trail", "Ending", "Finish"];

#[derive(Debug)]
struct Package {
    name: String,
    needs: Vec<Needed>,
}

#[derive(Debug)]
struct Needed {
    name: String,
    /// Also counted in tests and build scripts when false.
    shipped: bool,
    optional: bool,
}

#[test]
fn no_manifest_draws_a_forbidden_arrow() {
    let complaints = forbidden_dependencies(&packages());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn no_source_draws_a_forbidden_arrow() {
    let complaints: Vec<String> = Source::all().iter().flat_map(forbidden_names).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("run cargo metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON from cargo");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages.iter().map(package).collect()
}

fn package(package: &Value) -> Package {
    let needs = package["dependencies"].as_array().expect("a list of dependencies");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let needed = |need: &Value| Needed {
        name: text(&need["name"]),
        shipped: need["kind"].is_null(),
        optional: need["optional"] == true,
    };
    Package { name: text(&package["name"]), needs: needs.iter().map(needed).collect() }
}

fn forbidden_dependencies(packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        for need in &package.needs {
            if let Some(why) = forbidden(&package.name, need) {
                complaints.push(format!("{} must not need {}: {why}", package.name, need.name));
            }
        }
    }
    complaints
}

fn forbidden(package: &str, need: &Needed) -> Option<&'static str> {
    let name = need.name.as_str();
    if name == "sluice-bench" || name == "sluice-tests" {
        return Some("nobody depends on them");
    }
    // The bench may run monoio-http beside us, as a peer that has to be asked for.
    if name.starts_with("monoio") && package != "sluice-engine" {
        let peer = package == "sluice-bench" && need.optional;
        return (!peer).then_some("only the engine knows its runtime");
    }
    if !need.shipped {
        return None;
    }
    match package {
        "sluice-policy" if !POLICY_MAY.contains(&name) => Some("policy only decides"),
        "sluice-config" if !CONFIG_MAY.contains(&name) => Some("config only understands text"),
        "sluice-engine" if name.starts_with("sluice-") => {
            let known = ["sluice-config", "sluice-policy"].contains(&name);
            (!known).then_some("the engine knows config and policy")
        }
        "sluice-tests" if name.starts_with("sluice-") => Some("tests drive the binary"),
        _ => None,
    }
}

fn forbidden_names(source: &Source) -> Vec<String> {
    let code = source.shipped();
    let paths = Source::paths(code);
    let mut complaints = Vec::new();
    let mut complain = |what: &str| complaints.push(format!("{} names {what}", source.path));

    let area = |folder: &str| source.path.starts_with(folder);
    let never: &[&str] = match () {
        () if area("policy/src/") => POLICY_NEVER,
        () if area("config/src/") => CONFIG_NEVER,
        () => &[],
    };
    for path in paths.iter().filter(|path| never.iter().any(|ban| covers(ban, path))) {
        complain(path);
    }
    if area("policy/src/") {
        for word in POLICY_NEVER_WORDS.iter().filter(|word| Source::names(code, word)) {
            complain(word);
        }
    }
    if area("engine/src/admin") && Source::names(code, "proxy") {
        complain("proxy");
    }
    if area("engine/src/observe") {
        for path in paths.iter().filter_map(|path| path.strip_prefix("sluice_policy::")) {
            // The type, not the module before it or the function after it.
            let name = path.split("::").find(|part| part.starts_with(char::is_uppercase));
            if path.ends_with('*') || name.is_some_and(|name| !OBSERVE_MAY.contains(&name)) {
                complain(&format!("sluice_policy::{path}"));
            }
        }
        for module in ["proxy", "upstream", "admin"] {
            if paths.iter().any(|path| covers(&format!("crate::{module}"), path)) {
                complain(module);
            }
        }
    }
    complaints.sort();
    complaints.dedup();
    complaints
}

/// Whether a ban covers a path: itself and everything below, or with `*` all that begin so.
fn covers(ban: &str, path: &str) -> bool {
    match ban.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => {
            let rest = path.strip_prefix(ban);
            // A glob over the module above brings the banned name in as well.
            let above = ban.rsplit_once("::").map(|(above, _)| format!("{above}::*"));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                || above.is_some_and(|above| above == path && above != "std::*")
        }
    }
}

mod broken_on_purpose {
    use super::*;

    const PLAIN: Needed = Needed { name: String::new(), shipped: true, optional: false };

    #[test]
    fn every_forbidden_dependency_is_seen() {
        let dev = Needed { shipped: false, ..PLAIN };
        let optional = Needed { optional: true, ..PLAIN };
        let cases = [
            ("sluice-policy", "serde", &PLAIN, true),
            ("sluice-policy", "tokio", &PLAIN, false),
            ("sluice-policy", "sluice-config", &PLAIN, false),
            ("sluice-policy", "proptest", &dev, true),
            ("sluice-config", "sluice-policy", &PLAIN, true),
            ("sluice-config", "reqwest", &PLAIN, false),
            ("sluice-engine", "sluice-policy", &PLAIN, true),
            ("sluice-engine", "monoio", &PLAIN, true),
            ("sluice-engine", "sluice-bench", &PLAIN, false),
            ("sluice-engine", "sluice-tests", &dev, false),
            ("sluice-bench", "monoio", &PLAIN, false),
            ("sluice-bench", "monoio-http", &optional, true),
            ("sluice-tests", "sluice-engine", &PLAIN, false),
        ];
        for (package, name, like, allowed) in cases {
            let need = Needed { name: name.into(), shipped: like.shipped, optional: like.optional };
            assert_eq!(forbidden(package, &need).is_none(), allowed, "{package} → {name}");
        }
    }

    #[test]
    fn every_forbidden_name_is_seen() {
        let cases = [
            ("policy/src/a.rs", "use std::time::Duration;", true),
            ("policy/src/a.rs", "use std::time::Instant;", false),
            ("policy/src/a.rs", "use std::{fmt, time::{Duration, Instant}};", false),
            ("policy/src/a.rs", "use std::time::*;", false),
            ("policy/src/a.rs", "use crate::time::Instant;", true),
            ("policy/src/a.rs", "let t = std::thread::current();", false),
            ("policy/src/a.rs", "// std::thread is for others\nlet a = \"HashMap\";", true),
            ("policy/src/a.rs", "async fn a() {}", false),
            ("policy/src/a.rs", "use rand::Rng;", false),
            ("policy/src/a.rs", "let m = HashMap::new();", false),
            ("config/src/a.rs", "pub use std::fs::File;", false),
            ("config/src/a.rs", "use std::net::IpAddr;", true),
            ("config/src/a.rs", "use std::net::{IpAddr, TcpStream};", false),
            ("config/src/a.rs", "a();\n#[cfg(test)]\nmod tests { use std::fs; }", true),
            ("engine/src/admin/api.rs", "use crate::proxy::serve;", false),
            ("engine/src/observe/a.rs", "use sluice_policy::flight::{Record, Trail};", true),
            ("engine/src/observe/a.rs", "use sluice_policy::{Policy, Record};", false),
            ("engine/src/observe/a.rs", "use sluice_policy::*;", false),
            ("engine/src/observe/a.rs", "use crate::{clock, proxy};", false),
        ];
        for (path, text, allowed) in cases {
            let complaints = forbidden_names(&Source::new(path, text));
            assert_eq!(complaints.is_empty(), allowed, "{path}: {text}: {complaints:?}");
        }
    }
}
