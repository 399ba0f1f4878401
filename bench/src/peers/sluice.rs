//! Sluice, as a process like the others.

use std::path::PathBuf;

use super::{Launch, Missing, Options, Peer, Site};

#[derive(Debug)]
pub(super) struct Sluice {
    name: &'static str,
    workers: u8,
    /// None: its own choice.
    driver: Option<&'static str>,
    /// Passes on and does nothing else.
    bare: bool,
    /// Looks for what comes next before it sleeps.
    busy: bool,
}

pub(super) const USUAL: Sluice =
    Sluice { name: "sluice", workers: 1, driver: None, bare: false, busy: false };
/// No limit, no log.
pub(super) const BARE: Sluice = Sluice { name: "sluice-bare", bare: true, ..USUAL };
pub(super) const EPOLL: Sluice = Sluice { name: "sluice-epoll", driver: Some("epoll"), ..USUAL };
pub(super) const BUSY: Sluice = Sluice { name: "sluice-busy", busy: true, ..USUAL };
/// On the one CPU that there is for the proxy: what a second one costs, not what it brings.
pub(super) const TWO: Sluice = Sluice { name: "sluice-two", workers: 2, ..USUAL };

impl Peer for Sluice {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_asked_for(&self) -> bool {
        self.name != USUAL.name
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
        let mut arguments = vec!["run".into(), "-c".into(), site.path("sluice.toml")];
        arguments.extend(self.driver.iter().flat_map(|driver| ["--driver".into(), driver.into()]));
        Launch { arguments, files: vec![("sluice.toml", self.configuration(site))] }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(" or ")
}

impl Sluice {
    /// Guarded, it is told how long clients wait and not what the origin can do: that it learns.
    fn configuration(&self, site: &Site<'_>) -> String {
        let timeout = site.guard().map_or_else(String::new, |guard| {
            format!("timeout = \"{}ms\"", guard.patience.as_millis())
        });
        let log = if self.bare { "to = \"off\"\n" } else { LOG };
        let text = CONFIGURATION
            .replace("{HEAD}", &site.head_timeout("header_timeout = \"{MS}ms\""))
            .replace("{GREEDY_ROUTE}", &site.shared(GREEDY_ROUTE))
            .replace("{LOG}", log)
            .replace("{BUSY}", if self.busy { "busy_poll = \"200us\"" } else { "" })
            .replace("{WORKERS}", &self.workers.to_string())
            .replace("{USE_LIMIT}", site.limit("limits = [\"bench\"]"))
            .replace("{LIMIT}", site.limit(LIMIT))
            .replace("{ADAPTIVE}", if site.guard().is_some() { ADAPTIVE } else { "" })
            .replace("{TIMEOUT}", &timeout);
        site.fill(&text)
    }
}

const ADAPTIVE: &str = "adaptive = \"on\"";

const LIMIT: &str = r#"
[limit.bench]
key = ["api_key"]
rate = "1000000/s"
"#;

const GREEDY_ROUTE: &str = r#"
[upstream.greedy]
servers = ["127.0.0.1:{GREEDY_PORT}"]

[route.greedy]
match = "/greedy/{*rest}"
to = "greedy"
"#;

const CONFIGURATION: &str = r#"version = 1

[server]
listen = ["127.0.0.1:{PORT}"]
workers = {WORKERS}
{BUSY}
{HEAD}

[admin]
listen = "127.0.0.1:{ADMIN_PORT}"

[upstream.origin]
servers = ["127.0.0.1:{ORIGIN_PORT}"]
# As many as the others may hold.
connections = 1024
{ADAPTIVE}

[route.all]
match = "/{*rest}"
to = "origin"
{TIMEOUT}
{USE_LIMIT}
{LIMIT}
{GREEDY_ROUTE}
[log.access]
{LOG}"#;

const LOG: &str = r#"to = "{FOLDER}/access.log"
format = "json"
sample = { ok = "1%", errors = "100%" }
"#;
