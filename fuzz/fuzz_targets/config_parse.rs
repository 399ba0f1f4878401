//! Any text is answered with a configuration or with problems that lie inside the text.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match sluice_config::parse(text) {
        Ok(config) => {
            assert!(sluice_config::diff(&config, &config).is_empty());
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            for problem in &problems {
                assert!(problem.span.end <= text.len());
            }
            let _ = problems.render("fuzz.toml", text, false);
        }
    }
});
