//! HTTP as bytes: heads to facts, bodies in pieces, answers. The versions live side by side; what
//! they share is what `proxy` knows.

mod chunk;
mod fields;
pub(crate) mod head;
pub(crate) mod parse;
mod target;
