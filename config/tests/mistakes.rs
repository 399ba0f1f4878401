//! Every mistake of a file is found in one run, where it is, with what would be right.

use sluice_config::{Problems, parse};

const BAD: &str = include_str!("../../examples/bad.toml");

#[test]
fn the_bad_example_has_exactly_its_ten_mistakes() {
    let problems = parse(BAD).unwrap_err();
    let found = places(BAD, &problems);
    let expected = [
        "6:9 \"30\" | write \"30s\"",
        "9:30 \"10.0.0.12\" | write the port",
        "10:11 \"p2cc\" | did you mean \"p2c\"?",
        "13:1 severs | did you mean \"servers\"?",
        "16:14 \"usr\" | ",
        "17:8 \"100 per second\" | write \"100/s\"",
        "21:6 \"order\" | did you mean \"orders\"?",
        "22:1 timout | did you mean \"timeout\"?",
        "23:40 \"110%\" | a share is between \"0%\" and \"100%\"",
        "24:19 \"plan\" | \"fair\" is the only one there is",
    ];
    assert_eq!(found.len(), expected.len(), "{}", problems.render("bad.toml", BAD, false));
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} instead of {expected}");
    }
}

/// `line:column text | hint` of each problem.
fn places(text: &str, problems: &Problems) -> Vec<String> {
    let place = |problem: &sluice_config::Problem| {
        let hint = problem.hint.as_deref().unwrap_or_default();
        let underlined = &text[problem.span.clone()];
        format!("{}:{} {underlined} | {hint}", problem.line, problem.column)
    };
    problems.iter().map(place).collect()
}
