//! Arithmetic and time; nothing of HTTP.

pub(crate) mod adaptive;
pub(crate) mod breaker;
pub(crate) mod calendar;
pub mod dice;
pub(crate) mod ewma;
pub(crate) mod fixed;
pub(crate) mod gcra;
pub mod lease;
pub(crate) mod meter;
pub(crate) mod pace;
pub(crate) mod ranges;
pub(crate) mod rendezvous;
pub(crate) mod ring;
pub(crate) mod sliding;
pub(crate) mod window;
