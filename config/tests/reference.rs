//! The reference in `docs/` is the one that the types give.

use std::path::Path;
use std::{env, fs};

use serde_json::Value;

#[test]
fn the_committed_reference_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let generated = sluice_config::reference();
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/configuration.md is not up to date; run: UPDATE_DOCS=1 cargo test -p sluice-config"
    );
}

#[test]
fn the_committed_schema_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/sluice.schema.json");
    let generated = sluice_config::schema();
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{generated:#}\n")).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        serde_json::from_str(&committed).ok().as_ref() == Some(&generated),
        "examples/sluice.schema.json is not up to date; run: UPDATE_DOCS=1 cargo test -p sluice-config"
    );
}

#[test]
fn every_key_says_what_it_is_for() {
    let schema = sluice_config::schema();
    let tables = schema["$defs"].as_object().unwrap().iter();
    let mut silent = Vec::new();
    for (table, meant) in tables.chain([(&"(file)".to_owned(), &schema)]) {
        for (key, value) in meant["properties"].as_object().into_iter().flatten() {
            let target = value["$ref"].as_str().map(|at| at.trim_start_matches('#'));
            let described = |value: &Value| value["description"].is_string();
            if !described(value) && !target.and_then(|at| schema.pointer(at)).is_some_and(described)
            {
                silent.push(format!("{table}.{key}"));
            }
        }
    }
    assert_eq!(silent, [] as [String; 0]);
}
