//! What happened: figures, log lines, traces. Reads a `Record` and a `Snapshot`, nothing else of
//! policy.

pub(crate) mod cells;
pub(crate) mod exposition;
pub(crate) mod journal;
mod kept;
pub(crate) mod percentile;
pub(crate) mod process;
pub(crate) mod record;
pub(crate) mod shed;
pub(crate) mod writer;
