//! The harness: a gateway as a process, upstreams and clients as raw sockets, nothing mocked.
//!
//! A test writes a [`Config`], starts a [`Sluice`] with it, scripts an [`Origin`] behind it and
//! speaks to it through a [`Client`]. Bytes are compared as they crossed the wire. No wait is
//! longer than [`wait::LIMIT`], and no test sleeps: it waits for what it wants to see.

pub mod client;
pub mod company;
pub mod config;
pub mod load;
pub mod nginx;
pub mod origin;
pub mod process;
pub mod redis;
pub mod shell;
pub mod source;
pub mod veil;
pub mod wait;
pub mod wire;

pub use client::{Client, Response};
pub use company::{Authority, Cluster, Sentinel};
pub use config::Config;
pub use load::{Load, Seen};
pub use nginx::Nginx;
pub use origin::{Connection, Origin, Refusing, Request};
pub use process::{Finished, Signal, Sluice};
pub use redis::Redis;
pub use veil::Veil;
pub use wait::{Gate, eventually};
