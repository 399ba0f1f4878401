//! Arithmetic and time; nothing of HTTP.

pub mod dice;
pub(crate) mod gcra;
pub mod lease;
pub(crate) mod ranges;
