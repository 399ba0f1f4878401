//! Sluice, as a process like the others.

use std::path::PathBuf;

use super::{Launch, Missing, Options, Peer, Site};

#[derive(Debug)]
pub(super) struct Sluice;

impl Peer for Sluice {
    fn name(&self) -> &'static str {
        "sluice"
    }

    fn find(&self, options: &Options) -> Result<PathBuf, Missing> {
        let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
        let usual = |folder: &PathBuf| [folder.join("sluice"), folder.join("../release/sluice")];
        let candidates = match &options.sluice {
            Some(path) => vec![path.clone()],
            None => beside.iter().flat_map(usual).collect(),
        };
        let hint = "cargo build --release -p sluice-engine, or --sluice PATH";
        let found = candidates.iter().find(|candidate| candidate.is_file()).cloned();
        found.ok_or_else(|| Missing(format!("no sluice binary at {}: {hint}", list(&candidates))))
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["--version"]
    }

    fn launch(&self, site: &Site<'_>) -> Launch {
        Launch {
            arguments: vec!["run".into(), "-c".into(), site.path("sluice.toml")],
            files: vec![("sluice.toml", configuration(site))],
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(" or ")
}

/// Guarded, it is told how long clients wait and not what the origin can do: that it learns.
fn configuration(site: &Site<'_>) -> String {
    let timeout = site.guard().map_or_else(String::new, |guard| {
        format!("timeout = \"{}ms\"", guard.patience.as_millis())
    });
    site.fill(CONFIGURATION)
        .replace("{USE_LIMIT}", site.limit("limits = [\"bench\"]"))
        .replace("{LIMIT}", site.limit(LIMIT))
        .replace("{ADAPTIVE}", if site.guard().is_some() { ADAPTIVE } else { "" })
        .replace("{TIMEOUT}", &timeout)
}

/// As many connections as the others may hold, so that it is the limit that bounds.
const ADAPTIVE: &str = "adaptive = \"on\"\nconnections = 1024";

const LIMIT: &str = r#"
[limit.bench]
key = ["api_key"]
rate = "1000000/s"
"#;

const CONFIGURATION: &str = r#"version = 1

[server]
listen = ["127.0.0.1:{PORT}"]
workers = 1

[admin]
listen = "127.0.0.1:{ADMIN_PORT}"

[upstream.origin]
servers = ["127.0.0.1:{ORIGIN_PORT}"]
{ADAPTIVE}

[route.all]
match = "/{*rest}"
to = "origin"
{TIMEOUT}
{USE_LIMIT}
{LIMIT}
[log.access]
to = "{FOLDER}/access.log"
format = "json"
sample = { ok = "1%", errors = "100%" }
"#;
