//! What the fuzzer runs, on random bytes from seeds.
//!
//! A failure prints its seed; `POLICY_SEED=<n> cargo test --test script` plays that one alone.

use sluice_policy::mechanism::dice::Dice;
use sluice_policy::sim::{keeping, play};

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

/// What means something where it is said whether a response may be kept, and what may hide it.
const WORDS: [&str; 24] = [
    "no-store",
    "no-cache",
    "private",
    "public",
    "max-age",
    "s-maxage",
    "stale-if-error",
    "must-revalidate",
    "proxy-revalidate",
    "=",
    "\"",
    "\\",
    ",",
    " ",
    "\t",
    "0",
    "60",
    "9999999999",
    "*",
    "accept",
    "x-new",
    "\n",
    "\n@",
    "\nb",
];

#[test]
fn whatever_is_said_about_keeping_is_read_so_that_less_is_kept() {
    let mut kept = 0;
    for seed in 0..4_000_u64 {
        let mut dice = Dice::new(seed);
        let mut bytes = Vec::new();
        for _ in 0..dice.below(24) {
            match dice.below(8) {
                0 => bytes.push(dice.roll().to_le_bytes()[0]),
                _ => {
                    let word = usize::try_from(dice.below(WORDS.len() as u64)).unwrap_or(0);
                    bytes.extend_from_slice(WORDS[word].as_bytes());
                }
            }
        }
        match std::panic::catch_unwind(|| keeping(&bytes)) {
            Ok(keeps) => kept += u64::from(keeps),
            Err(cause) => {
                eprintln!("seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
                std::panic::resume_unwind(cause);
            }
        }
    }
    // Or nothing is ever kept.
    assert!((200..3_800).contains(&kept), "{kept}");
}
