//! The node's counts: a fixed table of atomics, the only memory that workers share.

/// Made once a process, handed to every worker's `Policy`; survives every reload.
#[derive(Debug)]
pub struct Ledger {}

impl Ledger {
    /// `keys_max` counts can be held at once, 16 bytes each. `secret` keys the hash, so that a
    /// client cannot choose which keys collide.
    pub fn new(_keys_max: usize, _secret: [u8; 16]) -> Self {
        todo!()
    }
}
