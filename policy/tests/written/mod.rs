//! Plans as an operator writes them, for the tests: `[upstream.*]`, `[limit.*]`, `[route.*]`.

use std::sync::Arc;

use sluice_policy::admit::FILTERS;
use sluice_policy::draft::Draft;
use sluice_policy::plan::{Plan, Problem};
use toml::{Table, Value};

/// What is written, or the test's own mistake.
pub(crate) fn draft(text: &str) -> Draft {
    let mut file: Table = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let mut draft = Draft::default();
    for (name, value) in section(&mut file, "upstream") {
        draft.upstreams.push((name, value.try_into().expect("an upstream")));
    }
    for (name, value) in section(&mut file, "limit") {
        draft.limits.push((name, value.try_into().expect("a limit")));
    }
    for (name, value) in section(&mut file, "route") {
        let Value::Table(all) = value else { panic!("a route is a table") };
        let filter = |key: &str| FILTERS.iter().any(|(name, _)| *name == key);
        let (specs, route): (Table, Table) = all.into_iter().partition(|(key, _)| filter(key));
        let (route, specs) = (Value::Table(route), Value::Table(specs));
        let route = route.try_into().unwrap_or_else(|e| panic!("{e}"));
        draft.routes.push((name, route, specs.try_into().unwrap_or_else(|e| panic!("{e}"))));
    }
    assert!(file.is_empty(), "nothing reads {file:?}");
    draft
}

pub(crate) fn plan(text: &str) -> Arc<Plan> {
    Arc::new(Plan::compile(draft(text)).unwrap_or_else(|problems| panic!("{problems:#?}")))
}

#[expect(dead_code, reason = "not every test binary asks for problems")]
pub(crate) fn problems(text: &str) -> Vec<Problem> {
    Plan::compile(draft(text)).err().unwrap_or_default()
}

fn section(file: &mut Table, name: &str) -> Table {
    match file.remove(name) {
        Some(Value::Table(table)) => table,
        None => Table::new(),
        Some(other) => panic!("{name} is {other:?}"),
    }
}
