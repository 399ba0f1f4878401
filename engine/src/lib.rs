//! Does; never decides. The path of a request, in the order of these modules: a worker accepts a
//! connection, the HTTP codec makes facts of its heads, `proxy` asks policy what to do and does
//! it, an upstream answers, and what happened is observed.
//!
//! Beside that path: `cli` reads the command line, `control` starts, feeds and stops the workers,
//! `admin` answers questions about them.

mod accept;
mod admin;
mod buffer;
mod cache;
pub mod cli;
mod clock;
mod control;
mod event;
mod exit;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod ids;
mod observe;
mod proxy;
pub mod runtime;
mod store;
mod sweep;
mod sys;
mod upstream;
mod worker;
