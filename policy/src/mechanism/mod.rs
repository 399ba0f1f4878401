//! Arithmetic and time; nothing of HTTP.

pub(crate) mod calendar;
pub mod dice;
pub(crate) mod fixed;
pub(crate) mod gcra;
pub(crate) mod meter;
pub(crate) mod ranges;
pub(crate) mod sliding;
