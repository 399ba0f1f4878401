//! The JSON Schema of a configuration, from the types that are read, so that editors and the
//! parser cannot disagree.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};
use sluice_policy::admit::rate_limit::LimitSpec;
use sluice_policy::admit::{FILTERS, Specs};
use sluice_policy::draft::{RouteSpec, UpstreamSpec};
use sluice_policy::shed::spec::ShedSpec;

use crate::store::StoreTable;
use crate::written::{AdminTable, LogTable, ServerTable};

/// JSON Schema (draft 2020-12) of a configuration file.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut generator = settings.into_generator();
    let filters = json_of::<Specs>(&mut generator);
    let mut root = generator.into_root_schema_for::<File>().to_value();
    turn_on(&mut root, &filters);
    without_null(&mut root);
    root
}

fn json_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    T::json_schema(generator).to_value()
}

/// A route is its own keys and those of the filters, each with the line that describes it.
fn turn_on(root: &mut Value, filters: &Value) {
    let Some(Value::Object(keys)) = root.pointer_mut("/$defs/RouteSpec/properties") else { return };
    for (name, line) in FILTERS {
        let mut filter = filters["properties"].get(*name).cloned().unwrap_or_else(|| json!({}));
        if let Some(filter) = filter.as_object_mut() {
            filter.entry("description").or_insert(json!(line));
        }
        keys.insert((*name).to_owned(), filter);
    }
}

/// TOML has no null: a key is left out instead.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(without_null),
        Value::Object(keys) => {
            keys.values_mut().for_each(without_null);
            if keys.get("default").is_some_and(Value::is_null) {
                keys.remove("default");
            }
            if let Some(Value::Array(types)) = keys.get_mut("type") {
                types.retain(|one| one != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    keys.insert("type".to_owned(), one);
                }
            }
            if let Some(Value::Array(either)) = keys.get_mut("anyOf") {
                either.retain(|one| one["type"] != "null");
                if let [Value::Object(one)] = either.as_slice() {
                    let one = one.clone();
                    keys.remove("anyOf");
                    for (key, value) in one {
                        keys.entry(key).or_insert(value);
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The outermost keys of a file.
#[derive(JsonSchema)]
#[schemars(title = "Sluice configuration", deny_unknown_fields)]
#[expect(dead_code, reason = "describes a file; the tables are read one by one")]
struct File {
    /// The version of this form of configuration. Always 1.
    #[schemars(range(min = 1, max = 1))]
    version: Option<u32>,
    #[schemars(default)]
    server: ServerTable,
    #[schemars(default)]
    admin: AdminTable,
    #[schemars(default)]
    log: LogTable,
    #[schemars(default)]
    store: StoreTable,
    #[schemars(default)]
    shed: ShedSpec,
    /// Services, by name.
    #[schemars(default)]
    upstream: BTreeMap<String, UpstreamSpec>,
    /// Rate limits, by name. A route turns them on with `limits`.
    #[schemars(default)]
    limit: BTreeMap<String, LimitSpec>,
    /// Which requests go where, by name. The most specific `match` wins; the order of the file
    /// never matters.
    #[schemars(default)]
    route: BTreeMap<String, RouteSpec>,
}
