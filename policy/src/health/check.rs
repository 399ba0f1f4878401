//! What an operator writes about asking servers how they are, and what it means.

use core::time::Duration;

use serde::Deserialize;

use crate::header;
use crate::plan::Problem;
use crate::unit::{Ratio, Span};

/// `health = { path = "/healthz" }`
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HealthSpec {
    /// Asked for with GET; a status from 200 to 399 is well. Without it a connection that comes
    /// about is enough.
    pub path: Option<String>,
    /// The `Host` of the question. Default: the server as written.
    pub host: Option<String>,
    /// From one question to the next; half of it while the answers contradict what is believed.
    /// Default 3s.
    pub every: Option<Span>,
    /// A question unanswered for this long has failed. Default 1s, or `every` where that is less.
    pub timeout: Option<Span>,
    /// So many failures in a row put a server out. Default 3.
    pub fall: Option<u32>,
    /// So many good answers in a row bring it back. Default 2.
    pub rise: Option<u32>,
    /// A server that came back gets its full share only after this long. Default: at once.
    pub slow_start: Option<Span>,
    /// When a smaller share of the servers than this is in, nobody's health counts and all get
    /// requests. Default 0%: with every server out, requests are answered 503 at once.
    pub panic: Option<Ratio>,
}

/// How the servers of an upstream are asked, and when the answers count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) path: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) every: Duration,
    pub(crate) timeout: Duration,
    pub(crate) fall: u32,
    pub(crate) rise: u32,
    pub(crate) slow_start: Duration,
    /// In parts per million of the servers.
    pub(crate) panic_ppm: u32,
}

const EVERY: Duration = Duration::from_secs(3);
/// More often is no check but a load.
const EVERY_MIN: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(1);
const COUNT_MAX: u32 = 100;

impl Check {
    pub(crate) fn compile(spec: HealthSpec, path: &str, problems: &mut Vec<Problem>) -> Self {
        let mut wrong = |key: &str, message: String, hint: &str| {
            let (path, hint) = (format!("{path}.{key}"), Some(hint.to_owned()));
            problems.push(Problem { path, message, hint });
        };
        let every = spec.every.map_or(EVERY, |span| span.0);
        if every < EVERY_MIN {
            wrong("every", format!("{} is too often", Span(every)), "write at least \"100ms\"");
        }
        let timeout = spec.timeout.map_or_else(|| TIMEOUT.min(every), |span| span.0);
        if timeout.is_zero() || timeout > every {
            let hint = "write more than zero and at most `every`";
            wrong("timeout", format!("{} is out of bounds", Span(timeout)), hint);
        }
        let (fall, rise) = (spec.fall.unwrap_or(3), spec.rise.unwrap_or(2));
        for (key, count) in [("fall", fall), ("rise", rise)] {
            if !(1..=COUNT_MAX).contains(&count) {
                let hint = format!("write 1 to {COUNT_MAX}");
                wrong(key, format!("{count} is out of bounds"), &hint);
            }
        }
        if let Some(target) = &spec.path
            && !(target.starts_with('/')
                && target.bytes().all(|b| b.is_ascii_graphic() && b != b'#'))
        {
            let message = format!("`{}` is not a path", target.escape_debug());
            wrong("path", message, "write it like `/healthz`");
        }
        if let Some(host) = &spec.host
            && (host.is_empty() || !header::is_value(host))
        {
            let message = format!("`{}` is not a host", host.escape_debug());
            wrong("host", message, "write it like `app.internal`");
        }
        Self {
            path: spec.path,
            host: spec.host,
            every,
            timeout,
            fall,
            rise,
            slow_start: spec.slow_start.map_or(Duration::ZERO, |span| span.0),
            panic_ppm: spec.panic.map_or(0, |ratio| ratio.0),
        }
    }
}
