//! What the fuzzer runs, on random bytes from seeds.
//!
//! A failure prints its seed; `POLICY_SEED=<n> cargo test --test script` plays that one alone.

use sluice_policy::mechanism::dice::Dice;
use sluice_policy::sim::play;

#[test]
fn no_script_breaks_a_law() {
    let seeds = match std::env::var_os("POLICY_SEED") {
        Some(one) => {
            let one = one.to_str().and_then(|s| s.parse().ok()).expect("a number");
            one..one + 1
        }
        None => 0..2048_u64,
    };
    let mut calls = 0;
    for seed in seeds.clone() {
        let mut dice = Dice::new(seed);
        let length = dice.below(4096);
        let bytes: Vec<u8> = (0..length).map(|_| dice.roll().to_le_bytes()[0]).collect();
        match std::panic::catch_unwind(|| play(&bytes)) {
            Ok(called) => calls += called,
            Err(cause) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    // Or the bytes say nothing.
    assert!(seeds.end - seeds.start == 1 || calls > 500, "{calls} calls");
}
