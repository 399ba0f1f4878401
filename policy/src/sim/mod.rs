//! The world, pretended: a clock that only moves when told, endpoints that fail by dice, clients
//! that leave, workers that share one ledger.
//!
//! Still pure. The same seed gives the same run, to the last record.

mod keeping;
mod mistake;
pub mod night;
pub mod reserve;
mod script;
mod world;

use core::net::{IpAddr, Ipv4Addr};

use crate::facts::{Body, Facts, Field, Headers};

pub use crate::sim::keeping::keeping;
pub use crate::sim::mistake::{MISTAKES, MISTAKES_OF_EJECTION, Mistake};
pub use crate::sim::script::play;
pub use crate::sim::world::{Done, Judged, Request, World};

/// A head with these fields, for facts to borrow.
#[derive(Clone, Debug, Default)]
pub struct Head {
    text: Vec<u8>,
    fields: Vec<Field>,
}

impl Head {
    pub fn new(fields: &[(&str, &str)]) -> Self {
        let mut head = Self::default();
        for (name, value) in fields {
            let field = Field { name: head.push(name), value: head.push(value) };
            head.fields.push(field);
        }
        head
    }

    pub fn headers(&self) -> Headers<'_> {
        Headers::new(&self.text, &self.fields)
    }

    fn push(&mut self, text: &str) -> (u32, u32) {
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let start = place(self.text.len());
        self.text.extend_from_slice(text.as_bytes());
        (start, place(self.text.len()))
    }
}

/// A plain GET from 10.0.0.1.
pub fn facts(path: &str) -> Facts<'_> {
    let client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    Facts {
        peer: client,
        client,
        method: "GET",
        host: "example.test",
        path,
        query: "",
        headers: Headers::default(),
        head_bytes: 100,
        body: Body::Empty,
        patience: None,
        identity: None,
    }
}
