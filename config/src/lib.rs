//! Understands configuration text: TOML in, a checked [`Config`] out, or every mistake at once.
//!
//! Nothing in here opens a file, reads the environment or knows the time. A secret is a reference
//! until the engine resolves it.

#![forbid(unsafe_code)]

mod bounds;
mod check;
mod deadline;
mod diff;
mod document;
mod identity;
mod later;
mod lint;
mod model;
mod near;
mod problem;
mod reader;
mod reference;
mod scalar;
mod schema;
mod secret;
mod store;
mod syntax;
mod warn;
mod written;

pub use check::parse;
pub use diff::{Change, Effect, diff};
pub use model::{
    AccessLog, Admin, Config, DeadlineHeader, EncodedSlashes, Hide, Io, LimitHeaders, Listen, Log,
    LogTarget, RedisPlace, RedisStore, Server,
};
pub use problem::{Position, Problem, Problems, Severity, render};
pub use reference::reference;
pub use schema::schema;
pub use secret::SecretRef;
pub use store::{Server as StoreServer, StoreUrl};
