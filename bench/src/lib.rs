//! Measures gateways: a load that counts latency from when a request was due, an origin that
//! answers as asked, and a comparison of several gateways on the same work.
//!
//! A measured run reads top to bottom: `compare` starts an [`origin`] and one of [`peers`],
//! [`load`] drives it, [`histogram`] keeps what it saw, [`report`] writes it down.

pub(crate) mod alarm;
pub mod brownout;
pub mod clock;
#[cfg(feature = "monoio-http")]
pub mod codecs;
pub mod compare;
pub mod cpu;
pub mod histogram;
pub mod http;
pub mod load;
pub mod memory;
pub mod origin;
pub mod peers;
pub mod place;
pub(crate) mod process;
pub mod relay;
pub mod report;
pub mod unit;
