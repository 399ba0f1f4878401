//! Arithmetic and time; nothing of HTTP.

pub mod dice;
pub(crate) mod gcra;
pub(crate) mod ranges;
