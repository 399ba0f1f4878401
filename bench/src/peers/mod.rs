//! The gateways that are compared: one file each, and one line in the list below. Sluice takes part
//! in several ways, and the floor as well; those take turns only when they are asked for.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod haproxy;
mod nginx;
mod own;
mod sluice;

/// Every peer, in the order in which they take turns.
pub const PEERS: &[&dyn Peer] = &[
    &sluice::USUAL,
    &nginx::Nginx,
    &haproxy::USUAL,
    &sluice::BARE,
    &sluice::EPOLL,
    &sluice::TWO,
    &sluice::BUSY,
    &haproxy::BUSY,
    &own::RELAY,
    &own::RELAY_EPOLL,
    &own::RELAY_SPLICE,
    #[cfg(feature = "monoio-http")]
    &own::MONOIO_HTTP,
];

/// A gateway that can be put in front of the origin.
///
/// All are set up alike, so that they do the same work: one worker, client and upstream
/// connections kept alive, `X-Request-Id` set, an access log as JSON lines with one in a hundred
/// of the good requests and all errors.
pub trait Peer: Debug + Sync {
    /// As `--peers` and reports call it.
    fn name(&self) -> &'static str;

    /// Takes part only when it is named.
    fn is_asked_for(&self) -> bool {
        false
    }

    /// Its program, or what to do to have it.
    fn find(&self, options: &Options) -> Result<PathBuf, Missing>;

    /// Arguments that make the program print its version.
    fn version_arguments(&self) -> &'static [&'static str];

    /// How it is started, staying in the foreground, for one run.
    fn launch(&self, site: &Site<'_>) -> Launch;
}

/// What the command line says about peers.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where `sluice` is, when not beside this program.
    pub sluice: Option<PathBuf>,
}

/// The peer is not on this machine; says what would put it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub String);

/// Where one run takes place, all on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// For configuration, logs and temporary files; empty, and this run's own.
    pub folder: &'a Path,
    pub port: u16,
    /// Free, for peers that want a second one.
    pub admin_port: u16,
    pub origin_port: u16,
    pub setup: Setup,
}

/// What is asked of a peer besides proxying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    Plain,
    /// Each request counts against a limit by its `X-Api-Key`, far above what any peer serves.
    Limited,
    /// Bodies are long, and go through as they come.
    Long,
    /// Connections may say nothing for so long where a head is due, no longer.
    Crowded(Duration),
    /// There is a second origin, at this port, for paths below `/greedy`.
    Shared(u16),
    /// To stand an origin that is asked for more than it can do, as the peer's own documentation
    /// recommends.
    Guarded(Guard),
}

/// What an operator knows of an origin and its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// How many requests the origin works on at once, to bound what is under way at it. None: only
    /// timeouts are set.
    pub servers: Option<u32>,
    /// How long clients wait.
    pub patience: Duration,
}

/// What to write and what to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub arguments: Vec<OsString>,
    /// Names in the site's folder and what they hold.
    pub files: Vec<(&'static str, String)>,
}

impl Site<'_> {
    /// Fills `{PORT}`, `{ADMIN_PORT}`, `{ORIGIN_PORT}` and `{FOLDER}` of a template.
    pub fn fill(&self, template: &str) -> String {
        template
            .replace("{ADMIN_PORT}", &self.admin_port.to_string())
            .replace("{ORIGIN_PORT}", &self.origin_port.to_string())
            .replace("{PORT}", &self.port.to_string())
            .replace("{FOLDER}", &self.folder.display().to_string())
    }

    /// The lines, when requests are limited.
    pub fn limit<'a>(&self, lines: &'a str) -> &'a str {
        if self.setup == Setup::Limited { lines } else { "" }
    }

    /// What is to be withstood, when something is.
    pub fn guard(&self) -> Option<Guard> {
        match self.setup {
            Setup::Guarded(guard) => Some(guard),
            Setup::Plain | Setup::Limited | Setup::Long | Setup::Crowded(_) | Setup::Shared(_) => {
                None
            }
        }
    }

    /// The lines, when bodies are long.
    pub fn long<'a>(&self, lines: &'a str) -> &'a str {
        if self.setup == Setup::Long { lines } else { "" }
    }

    /// The line, with `{MS}` filled, when there is a bound on how long a head may take.
    pub fn head_timeout(&self, line: &str) -> String {
        match self.setup {
            Setup::Crowded(patience) => line.replace("{MS}", &patience.as_millis().to_string()),
            Setup::Plain | Setup::Limited | Setup::Long | Setup::Shared(_) | Setup::Guarded(_) => {
                String::new()
            }
        }
    }

    /// The lines, with `{GREEDY_PORT}` filled, when there is a second origin.
    pub fn shared(&self, lines: &str) -> String {
        match self.setup {
            Setup::Shared(port) => lines.replace("{GREEDY_PORT}", &port.to_string()),
            Setup::Plain | Setup::Limited | Setup::Long | Setup::Crowded(_) | Setup::Guarded(_) => {
                String::new()
            }
        }
    }

    /// A file of this run.
    pub fn path(&self, name: &str) -> OsString {
        self.folder.join(name).into_os_string()
    }
}

/// Looks along PATH, and where Debian keeps daemons.
fn on_path(program: &str, hint: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(DAEMON_FOLDERS.iter().map(PathBuf::from));
    let found = folders.map(|folder| folder.join(program)).find(|candidate| candidate.is_file());
    found.ok_or_else(|| Missing(format!("{program} is not installed: {hint}")))
}

const DAEMON_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
const INSTALL_HINT: &str = "scripts/bench-peers installs it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_fills_its_templates() {
        let folder = Path::new("/run-folder");
        let guard = Guard { servers: Some(7), patience: Duration::from_secs(2) };
        let patience = Duration::from_secs(3);
        let setups = [
            Setup::Plain,
            Setup::Limited,
            Setup::Long,
            Setup::Crowded(patience),
            Setup::Shared(1004),
            Setup::Guarded(guard),
        ];
        let site = |setup| Site { folder, port: 1001, admin_port: 1002, origin_port: 1003, setup };
        for (peer, setup) in PEERS.iter().flat_map(|peer| setups.map(|setup| (peer, setup))) {
            let site = site(setup);
            let launch = peer.launch(&site);
            if launch.files.is_empty() {
                continue;
            }
            let text: String = launch.files.iter().map(|(_, text)| text.as_str()).collect();
            let left = text.split('{').skip(1).find(|rest| {
                rest.split('}').next().is_some_and(|name| {
                    name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
                })
            });
            assert_eq!(left, None, "{}", peer.name());
            assert_eq!(text.contains("127.0.0.1:1004"), setup == Setup::Shared(1004));
            assert_eq!(text.contains("3000ms"), setup == Setup::Crowded(patience), "{text}");
            let looks = ["busy_poll =", "busy-polling"].iter().any(|key| text.contains(key));
            assert_eq!(looks, peer.name().ends_with("-busy"), "{text}");
            for expected in ["127.0.0.1:1001", "127.0.0.1:1003", "/run-folder/access.log"] {
                // HAProxy logs to its standard output, which the run keeps in its folder; and who
                // does nothing but pass on logs nothing.
                let silent = ["haproxy", "haproxy-busy", "sluice-bare"].contains(&peer.name());
                let applies = !silent || !expected.starts_with('/');
                assert!(!applies || text.contains(expected), "{}: {expected}", peer.name());
            }
            assert!(
                launch
                    .arguments
                    .iter()
                    .any(|argument| argument.to_string_lossy().starts_with("/run-folder/"))
            );
        }
    }

    #[test]
    fn peers_have_names_of_their_own() {
        let mut names: Vec<_> = PEERS.iter().map(|peer| peer.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEERS.len());
    }

    #[test]
    fn what_is_missing_says_how_to_have_it() {
        let missing = on_path("no-such-gateway", INSTALL_HINT).unwrap_err();
        assert_eq!(missing.0, "no-such-gateway is not installed: scripts/bench-peers installs it");
    }
}
