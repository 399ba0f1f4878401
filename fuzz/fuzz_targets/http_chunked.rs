//! Chunked bodies, in any split, against a plain reader. `engine/src/fuzzing.rs` says
//! what must hold.
//!
//! `cargo +nightly fuzz run http_chunked -- -dict=fuzz/http.dict`

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    sluice_engine::fuzzing::http_chunked(bytes);
});
