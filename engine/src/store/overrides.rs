//! Numbers of single keys, kept in the store beside the counts: read once a second in one command,
//! so that a change reaches every gateway within that time. One hash: `fair/10.0.0.7` says `5/s`.

use std::collections::BTreeMap;

use redis::cmd;
use sluice_policy::admit::overrides::Override;
use sluice_policy::plan::Plan;

use super::link::{Link, said};

/// With the tag of a shard, so that in a cluster it is known who has it.
const HASH: &str = "sluice:{s000}:overrides";
pub(super) const SHARD: u64 = 0;

/// As written: which key, and its numbers.
pub(crate) type Written = BTreeMap<String, String>;

/// What could not be read of it, and why.
pub(crate) type Unread = BTreeMap<String, String>;

pub(super) fn meant(plan: &Plan, written: &Written) -> (Vec<Override>, Unread) {
    let (mut meant, mut unread) = (Vec::new(), Unread::new());
    for (field, value) in written {
        match plan.override_of(field, value) {
            Ok(own) => meant.push(own),
            Err(why) => drop(unread.insert(field.clone(), why)),
        }
    }
    (meant, unread)
}

impl Link {
    /// None: the server does not say, but it answers. An error: it does not.
    pub(super) async fn overrides(mut self) -> Result<Option<Written>, String> {
        match cmd("HGETALL").arg(HASH).query_async(self.line()).await {
            Ok(written) => Ok(Some(written)),
            Err(e) if e.is_unrecoverable_error() || e.is_timeout() => Err(said(&e)),
            Err(_) => Ok(None),
        }
    }

    /// None takes it away.
    pub(super) async fn set_override(
        mut self,
        field: &str,
        value: Option<&str>,
    ) -> Result<(), String> {
        let command = match value {
            Some(value) => cmd("HSET").arg(HASH).arg(field).arg(value).to_owned(),
            None => cmd("HDEL").arg(HASH).arg(field).to_owned(),
        };
        let asked = command.query_async::<i64>(self.line()).await;
        asked.map(drop).map_err(|e| e.category().to_owned())
    }
}
