//! HTTP as bytes: heads to facts, bodies in pieces, answers. The versions live side by side; what
//! they share is what `proxy` knows.

pub(crate) mod body;
mod chunk;
mod fields;
pub(crate) mod forward;
pub(crate) mod head;
pub(crate) mod parse;
mod target;
pub(crate) mod write;
