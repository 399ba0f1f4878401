//! HAProxy: one process, one thread.

use std::path::PathBuf;

use super::{INSTALL_HINT, Launch, Missing, Options, Peer, Site, on_path};

#[derive(Debug)]
pub(super) struct Haproxy {
    /// Looks for what comes next, and never sleeps.
    busy: bool,
}

pub(super) const USUAL: Haproxy = Haproxy { busy: false };
pub(super) const BUSY: Haproxy = Haproxy { busy: true };

impl Peer for Haproxy {
    fn name(&self) -> &'static str {
        if self.busy { "haproxy-busy" } else { "haproxy" }
    }

    fn is_asked_for(&self) -> bool {
        self.busy
    }

    fn find(&self, _: &Options) -> Result<PathBuf, Missing> {
        on_path("haproxy", INSTALL_HINT)
    }

    fn version_arguments(&self) -> &'static [&'static str] {
        &["-v"]
    }

    fn launch(&self, site: &Site<'_>) -> Launch {
        let busy = if self.busy { "    busy-polling\n" } else { "" };
        Launch {
            arguments: vec!["-db".into(), "-f".into(), site.path("haproxy.cfg")],
            files: vec![("haproxy.cfg", configuration(site).replace("{BUSY}", busy))],
        }
    }
}

/// A server's `maxconn` is what it can work on at once and the rest queues at HAProxy, for half of
/// what clients wait; who left the queue is not sent on.
fn configuration(site: &Site<'_>) -> String {
    let guard = site.guard();
    let bound = guard.and_then(|guard| guard.servers);
    let queue = guard.map_or_else(String::new, |guard| {
        QUEUE
            .replace("{PATIENCE}", &guard.patience.as_millis().to_string())
            .replace("{HALF}", &(guard.patience / 2).as_millis().to_string())
    });
    site.fill(CONFIGURATION)
        .replace("{LIMIT}", site.limit(LIMIT))
        .replace("{LONG}", site.long("    option splice-auto"))
        .replace("{HEAD}", &site.head_timeout("    timeout http-request {MS}ms"))
        .replace("{GREEDY_RULE}", &site.shared(GREEDY_RULE))
        .replace("{GREEDY_BACKEND}", &site.shared(GREEDY_BACKEND))
        .replace("{QUEUE}", &queue)
        .replace("{MAXCONN}", &bound.map_or_else(String::new, |n| format!(" maxconn {n}")))
}

const QUEUE: &str = r"    option abortonclose
    timeout queue {HALF}ms
    timeout server {PATIENCE}ms";

const LIMIT: &str = r"    stick-table type string len 64 size 1m expire 60s store http_req_rate(1s)
    http-request track-sc0 req.hdr(x-api-key)
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000 }";

const GREEDY_RULE: &str = "    use_backend greedy if { path_beg /greedy }";

const GREEDY_BACKEND: &str = r"
backend greedy
    server greedy 127.0.0.1:{GREEDY_PORT} pool-max-conn 1024";

/// Where descriptors are too few for `maxconn` it warns and goes on.
/// It writes no files itself: the access log is its standard output, which the run keeps. The
/// dice and the log level do what the others' sampling does: 1 % of the good, all errors.
const CONFIGURATION: &str = r#"global
    nbthread 1
{BUSY}    maxconn 12000
    no strict-limits
    log stdout len 4096 format raw local0 info

defaults
    mode http
    log global
    timeout connect 5s
    timeout client 90s
    timeout server 90s
    timeout http-keep-alive 90s
    http-reuse always
    maxconn 12000
{LONG}
{HEAD}

frontend front
    bind 127.0.0.1:{PORT} backlog 4096
    option forwardfor
{LIMIT}
    http-request set-var(txn.id) uuid()
    http-request set-var(txn.dice) rand(100)
    http-request set-header X-Request-Id %[var(txn.id)]
    http-response set-log-level silent if { var(txn.dice) -m int ge 1 } { status lt 400 }
    log-format '{"time":"%t","request_id":"%[var(txn.id)]","client":"%ci","method":"%HM","path":"%HU","status":%ST,"bytes_out":%B,"duration_ms":%Ta,"upstream":"%b/%s","upstream_ms":%Tr}'
{GREEDY_RULE}
    default_backend origin

backend origin
{QUEUE}
    server origin 127.0.0.1:{ORIGIN_PORT} pool-max-conn 1024{MAXCONN}
{GREEDY_BACKEND}
"#;
