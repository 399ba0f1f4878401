//! Whatever the text, parsing ends, does not panic, and says something or gives a configuration.

use proptest::prelude::*;
use sluice_config::parse;

const SEEDS: &[&str] =
    &[include_str!("../../examples/sluice.toml"), include_str!("../../examples/bad.toml")];
/// Pieces that a parser trips over.
const PIECES: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    "\"\"\"",
    "=",
    ".",
    ",",
    "\n",
    "\r",
    "\0",
    "#",
    "é",
    "\u{feff}",
    "[[route]]",
    "[route]",
    "[upstream.a]",
    "0",
    "-1",
    "1e999",
    "99999999999999999999",
    "inf",
    "1979-05-27",
    "true",
    "\"${env:X}\"",
    "[[[[",
    "a.b.c.d = 1",
    "\"\\uD800\"",
    "key = [\"ip\"]",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_damaged_file_is_answered(
        seed in 0..SEEDS.len(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0..40_usize, 0..PIECES.len()), 1..8),
    ) {
        let mut text = SEEDS[seed].to_owned();
        for (at, length, piece) in damage {
            let start = border(&text, at.index(text.len() + 1));
            let end = border(&text, (start + length).min(text.len()));
            text.replace_range(start..end.max(start), PIECES[piece]);
        }
        answered(&text);
    }

    #[test]
    fn noise_is_answered(text in "(?s).{0,200}") {
        answered(&text);
    }
}

#[test]
fn depth_is_answered() {
    for text in [
        "a.".repeat(20_000) + "a = 1",
        format!("[{}a]", "a.".repeat(20_000)),
        format!("a = {}{}", "[".repeat(20_000), "]".repeat(20_000)),
        format!("a = {}", "{a=".repeat(20_000)),
        format!("[route.a]\nmatch = {}", "[{a=".repeat(20_000)),
    ] {
        answered(&text);
    }
}

/// Every problem lies in the text, and can be shown.
fn answered(text: &str) {
    let problems = match parse(text) {
        Ok(config) => config.warnings,
        Err(problems) => {
            assert!(!problems.is_empty());
            problems.iter().cloned().collect()
        }
    };
    let lines = text.split('\n').count();
    for problem in &problems {
        assert!(problem.line >= 1 && problem.column >= 1 && problem.line <= lines, "{problem:?}");
        assert!(problem.span.start <= problem.span.end && problem.span.end <= text.len());
    }
    let shown = sluice_config::render(&problems, "a.toml", text, false);
    assert!(problems.is_empty() || shown.contains("a.toml"));
}

fn border(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
