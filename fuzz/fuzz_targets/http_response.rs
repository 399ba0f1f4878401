//! Response heads, in any split: accepted only when framed in one way, and sent on as accepted. `engine/src/fuzzing.rs` says
//! what must hold.
//!
//! `cargo +nightly fuzz run http_response -- -dict=fuzz/http.dict`

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    sluice_engine::fuzzing::http_response(bytes);
});
