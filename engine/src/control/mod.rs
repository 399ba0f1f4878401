//! The control thread: starts the workers, hands them configurations, answers for them, stops
//! them. Never on the path of a request.

mod banner;
pub(crate) mod bind;
pub(crate) mod desk;
mod ears;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod fleet;
mod gauge;
mod notify;
mod probe;
mod reload;
pub(crate) mod socket;
pub(crate) mod source;
mod start;
mod steward;
pub(crate) mod switchboard;
mod vitals;

pub(crate) use banner::ranges;
pub(crate) use start::{Order, run};
