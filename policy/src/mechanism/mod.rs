//! Arithmetic and time; nothing of HTTP.

pub(crate) mod breaker;
pub mod dice;
pub(crate) mod gcra;
pub mod lease;
pub(crate) mod ranges;
pub(crate) mod window;
