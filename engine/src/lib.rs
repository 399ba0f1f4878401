//! Does; never decides. The path of a request, in the order of these modules: a worker accepts a
//! connection, the HTTP codec makes facts of its heads, `proxy` asks policy what to do and does
//! it, an upstream answers, and what happened is observed.

mod buffer;
mod clock;
mod http;
mod ids;
mod observe;
pub mod runtime;
mod sweep;
mod worker;
