//! Bound the rate of requests per key.

use serde::Deserialize;

/// `[limit.NAME]`: a token bucket per key.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// What is counted apart: `ip` (or `ip/24`), `header:NAME`, `route`, `path`, `method`.
    #[serde(default)]
    pub key: Vec<String>,
    // rate: Rate, burst: Option<u32>
}
