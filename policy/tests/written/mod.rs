//! Plans as an operator writes them, for the tests: `[upstream.*]`, `[limit.*]`, `[route.*]`.

use std::sync::Arc;

use sluice_policy::admit::FILTERS;
use sluice_policy::draft::Draft;
use sluice_policy::plan::{Plan, Problem};
use toml::{Table, Value};

/// What is written, or the test's own mistake.
fn draft(mut file: Table) -> Draft {
    let nodes = file.remove("nodes").map(|nodes| nodes.try_into().expect("a number"));
    let zone = file.remove("zone").map(|zone| zone.try_into().expect("a text"));
    let proxied = file.remove("proxied").is_some_and(|is| is.try_into().expect("true or false"));
    let mut draft = Draft { nodes, proxied, zone, ..Draft::default() };
    if let Some(shed) = file.remove("shed") {
        draft.shed = shed.try_into().expect("bounds of the node");
    }
    for (name, value) in section(&mut file, "upstream") {
        draft.upstreams.push((name, value.try_into().expect("an upstream")));
    }
    for (name, value) in section(&mut file, "limit") {
        draft.limits.push((name, value.try_into().expect("a limit")));
    }
    for (name, value) in section(&mut file, "tenant") {
        let limits = value.get("limits").cloned().expect("limits of the tenant");
        draft.tenants.push((name, limits.try_into().expect("names of limits")));
    }
    for (name, value) in section(&mut file, "route") {
        let Value::Table(all) = value else { panic!("a route is a table") };
        let filter = |key: &str| FILTERS.iter().any(|(name, _)| *name == key);
        let (specs, route): (Table, Table) = all.into_iter().partition(|(key, _)| filter(key));
        let (route, specs) = (Value::Table(route), Value::Table(specs));
        let route = route.try_into().expect("a route");
        draft.routes.push((name, route, specs.try_into().expect("filters")));
    }
    assert!(file.is_empty(), "nothing reads {file:?}");
    draft
}

pub(crate) fn compile(file: Table) -> Result<Arc<Plan>, Vec<Problem>> {
    Plan::compile(draft(file)).map(Arc::new)
}

pub(crate) fn plan(text: &str) -> Arc<Plan> {
    compile(text.parse().expect("TOML")).expect("a plan")
}

fn section(file: &mut Table, name: &str) -> Table {
    match file.remove(name) {
        Some(Value::Table(table)) => table,
        None => Table::new(),
        Some(other) => panic!("{name} is {other:?}"),
    }
}
