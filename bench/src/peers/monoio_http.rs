//! `sluice-bench codecs-proxy`: monoio-http on both sides.

use std::path::PathBuf;

use super::{Launch, Missing, Options, Peer, Site};

#[derive(Debug)]
pub(super) struct MonoioHttp;

impl Peer for MonoioHttp {
    fn name(&self) -> &'static str {
        "monoio-http"
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
        let words = ["codecs-proxy", "--listen", "127.0.0.1:{PORT}", "--upstream"];
        let words = words.into_iter().chain(["127.0.0.1:{ORIGIN_PORT}"]);
        Launch { arguments: words.map(|word| site.fill(word).into()).collect(), files: Vec::new() }
    }
}
