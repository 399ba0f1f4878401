//! The gateway from end to end: real sockets, real bytes, the real binary.
//!
//! `SLUICE_BIN` chooses another binary and `SLUICE_TEST_DRIVER` forces a driver, so the same suite
//! passes over every way the gateway can run.

#[path = "e2e/bounds.rs"]
mod bounds;
#[path = "e2e/commands.rs"]
mod commands;
#[path = "e2e/duplex.rs"]
mod duplex;
#[path = "e2e/errors.rs"]
mod errors;
#[path = "e2e/fields.rs"]
mod fields;
#[path = "e2e/files.rs"]
mod files;
#[path = "e2e/framing.rs"]
mod framing;
#[path = "e2e/life.rs"]
mod life;
#[path = "e2e/limits.rs"]
mod limits;
#[path = "e2e/pipelining.rs"]
mod pipelining;
#[path = "e2e/proxying.rs"]
mod proxying;
#[path = "e2e/reuse.rs"]
mod reuse;
#[path = "e2e/routing.rs"]
mod routing;
#[path = "e2e/streaming.rs"]
mod streaming;
