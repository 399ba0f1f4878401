//! The gateway from end to end: real sockets, real bytes, the real binary.
//!
//! `SLUICE_BIN` chooses another binary and `SLUICE_TEST_DRIVER` forces a driver, so the same suite
//! passes over every way the gateway can run.

#[path = "e2e/admin.rs"]
mod admin;
#[path = "e2e/again.rs"]
mod again;
#[path = "e2e/algorithms.rs"]
mod algorithms;
#[path = "e2e/associated.rs"]
mod associated;
#[path = "e2e/balance.rs"]
mod balance;
#[path = "e2e/bounds.rs"]
mod bounds;
#[path = "e2e/bulk.rs"]
mod bulk;
#[path = "e2e/busy.rs"]
mod busy;
#[path = "e2e/cache.rs"]
mod cache;
#[path = "e2e/ceilings.rs"]
mod ceilings;
#[path = "e2e/commands.rs"]
mod commands;
#[path = "e2e/counted.rs"]
mod counted;
#[path = "e2e/deadlines.rs"]
mod deadlines;
#[path = "e2e/degrade.rs"]
mod degrade;
#[path = "e2e/duplex.rs"]
mod duplex;
#[path = "e2e/errors.rs"]
mod errors;
#[path = "e2e/exhaustion.rs"]
mod exhaustion;
#[path = "e2e/fields.rs"]
mod fields;
#[path = "e2e/files.rs"]
mod files;
#[path = "e2e/framing.rs"]
mod framing;
#[path = "e2e/health.rs"]
mod health;
#[path = "e2e/hedging.rs"]
mod hedging;
#[path = "e2e/held.rs"]
mod held;
#[path = "e2e/journal.rs"]
mod journal;
#[path = "e2e/judged.rs"]
mod judged;
#[path = "e2e/kept.rs"]
mod kept;
#[path = "e2e/kernel.rs"]
mod kernel;
#[path = "e2e/life.rs"]
mod life;
#[path = "e2e/limits.rs"]
mod limits;
#[path = "e2e/lingering.rs"]
mod lingering;
#[path = "e2e/names.rs"]
mod names;
#[path = "e2e/overload.rs"]
mod overload;
#[path = "e2e/papers.rs"]
mod papers;
#[path = "e2e/pipelining.rs"]
mod pipelining;
#[path = "e2e/proxying.rs"]
mod proxying;
#[path = "e2e/refused.rs"]
mod refused;
#[path = "e2e/resilience.rs"]
mod resilience;
#[path = "e2e/rest.rs"]
mod rest;
#[path = "e2e/reuse.rs"]
mod reuse;
#[path = "e2e/routing.rs"]
mod routing;
#[path = "e2e/samples.rs"]
mod samples;
#[path = "e2e/service.rs"]
mod service;
#[path = "e2e/shared.rs"]
mod shared;
#[path = "e2e/shared_kinds.rs"]
mod shared_kinds;
#[path = "e2e/shared_tools.rs"]
mod shared_tools;
#[path = "e2e/spent.rs"]
mod spent;
#[path = "e2e/steering.rs"]
mod steering;
#[path = "e2e/streaming.rs"]
mod streaming;
#[path = "e2e/veiled.rs"]
mod veiled;
#[path = "e2e/waiting.rs"]
mod waiting;
