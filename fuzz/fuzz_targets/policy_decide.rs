//! Arbitrary facts, events and times, in any order, over two workers on one ledger. The same
//! script is played on random bytes by `policy/tests/script.rs`.
//!
//! `cargo +nightly fuzz run policy_decide`

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = sluice_policy::sim::play(bytes);
});
