//! Proxies that are commands of this program: the floor, and monoio-http's codec.

use std::path::PathBuf;

use super::{Launch, Missing, Options, Peer, Site};

#[derive(Debug)]
pub(super) struct Own {
    name: &'static str,
    command: &'static str,
    options: &'static [&'static str],
}

/// Knows no HTTP.
pub(super) const RELAY: Own = Own { name: "relay", command: "relay", options: &[] };
/// The floor of who is on epoll.
pub(super) const RELAY_EPOLL: Own =
    Own { name: "relay-epoll", options: &["--by", "copy"], ..RELAY };
/// The floor of long bodies.
pub(super) const RELAY_SPLICE: Own =
    Own { name: "relay-splice", options: &["--by", "splice"], ..RELAY };
/// On both sides.
#[cfg(feature = "monoio-http")]
pub(super) const MONOIO_HTTP: Own =
    Own { name: "monoio-http", command: "codecs-proxy", options: &[] };

impl Peer for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_asked_for(&self) -> bool {
        true
    }

    fn find(&self, _: &Options) -> Result<PathBuf, Missing> {
        std::env::current_exe().map_err(|e| Missing(format!("this program can't be found: {e}")))
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["--version"]
    }

    fn launch(&self, site: &Site<'_>) -> Launch {
        let words = [self.command, "--listen", "127.0.0.1:{PORT}", "--upstream"];
        let words = words.into_iter().chain(["127.0.0.1:{ORIGIN_PORT}"]);
        let words = words.chain(self.options.iter().copied());
        Launch { arguments: words.map(|word| site.fill(word).into()).collect(), files: Vec::new() }
    }
}
