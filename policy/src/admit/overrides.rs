//! Numbers of its own for one key of a shared limit: what this tenant bought, what that client may
//! do until Friday. They live in the store, so that all gateways have them at once.
//!
//! ```text
//! plan/acme = "5000/s"          the tenant acme, in [limit.plan] with key = ["tenant"]
//! fair/10.0.0.7,GET = "5/s 20"  rate and burst, where key = ["ip", "method"]
//! ```

use super::named::Limits;
use crate::mechanism::lease::Terms;
use crate::unit::Rate;

/// One key, and how it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub(crate) rule: u64,
    pub(crate) name: [u64; 2],
    pub(crate) terms: Terms,
}

impl Override {
    /// # Errors
    /// What is wrong with it, for whoever wrote it.
    pub(crate) fn parse(limits: &Limits, field: &str, value: &str) -> Result<Self, String> {
        let form = "write LIMIT/KEY, like plan/acme";
        let (limit, key) = field.split_once('/').ok_or_else(|| form.to_owned())?;
        let Some((rule, parts, shared)) = limits.stored(limit) else {
            return Err(format!("no limit with a store is called `{limit}`"));
        };
        let name = parts.spelled(rule, key)?;
        let (rate, burst) = value.trim().split_once(' ').unwrap_or_else(|| (value.trim(), ""));
        let rate: Rate = rate.parse().map_err(|_| format!("`{rate}` is no rate, like 500/s"))?;
        let burst = match burst.trim() {
            "" => None,
            text => match text.parse::<u32>() {
                Ok(burst) if burst > 0 => Some(burst),
                Ok(_) | Err(_) => return Err(format!("`{text}` is no burst, like 1000")),
            },
        };
        let terms = shared.with(rate, burst);
        let terms = terms.ok_or_else(|| format!("`{limit}` can't count by `{value}`"))?;
        Ok(Self { rule, name, terms })
    }
}
