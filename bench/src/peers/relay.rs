//! The floor: `sluice-bench relay`, which knows no HTTP.

use std::path::PathBuf;

use super::{Launch, Missing, Options, Peer, Site};

#[derive(Debug)]
pub(super) struct Relay;

impl Peer for Relay {
    fn name(&self) -> &'static str {
        "relay"
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
        let word = |text: &str| text.to_owned().into();
        Launch {
            arguments: vec![
                word("relay"),
                word("--listen"),
                word(&site.fill("127.0.0.1:{PORT}")),
                word("--upstream"),
                word(&site.fill("127.0.0.1:{ORIGIN_PORT}")),
            ],
            files: Vec::new(),
        }
    }
}
