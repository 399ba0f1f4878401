//! What is shipped holds: it can be read, and it satisfies the schema.

use sluice_config::{parse, schema};

const EXAMPLES: &[(&str, &str)] = &[("sluice.toml", include_str!("../../examples/sluice.toml"))];

#[test]
fn the_examples_are_read_without_a_problem_or_a_warning() {
    for (name, text) in EXAMPLES {
        match parse(text) {
            Ok(config) => assert_eq!(config.warnings, [], "{name}"),
            Err(problems) => panic!("{}", problems.render(name, text, false)),
        }
    }
}

#[test]
fn the_examples_satisfy_the_schema() {
    let schema = jsonschema::validator_for(&schema()).unwrap();
    for (name, text) in EXAMPLES {
        let file: serde_json::Value = toml::from_str(text).unwrap();
        let wrong: Vec<String> = schema.iter_errors(&file).map(|e| e.to_string()).collect();
        assert_eq!(wrong, [] as [String; 0], "{name}");
    }
}
