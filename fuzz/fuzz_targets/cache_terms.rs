//! `Cache-Control`, `Vary`, `Age` and their like, of requests and responses: whatever they say, a
//! response that forbids it is never kept. `policy/src/sim/keeping.rs` says what must hold.
//!
//! `cargo +nightly fuzz run cache_terms`

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = sluice_policy::sim::keeping(bytes);
});
