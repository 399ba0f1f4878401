//! What happened: figures, log lines, traces. Reads a `Record` and a `Snapshot`, nothing else of
//! policy.

pub(crate) mod cells;
pub(crate) mod journal;
