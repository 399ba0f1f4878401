//! What changes between two configurations, and what it takes to put each change into effect.

use core::iter;
use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};
use toml::de::DeValue;

use crate::check::NAMED;
use crate::document::Document;
use crate::model::Config;
use crate::reader::join;
use crate::store::StoreTable;
use crate::written::{AdminTable, LogTable, ServerTable};

/// One key that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// As in `route.orders.timeout`. A list is compared whole.
    pub path: String,
    /// None when it is new.
    pub old: Option<Value>,
    /// None when it is gone.
    pub new: Option<Value>,
    pub effect: Effect,
}

/// What it takes, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// A reload: new requests see it, nothing is dropped.
    Swap,
    /// Other listening sockets. A reload does not open or close any yet and refuses.
    Rebind,
    /// The process must start anew.
    Restart,
}

/// What changes from `old` to `new`, in the order of paths. Secrets are not in a configuration,
/// and what looks like one in a header is not shown.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", Some(&old.written), Some(&new.written), &mut changes);
    changes
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, changes: &mut Vec<Change>) {
    if old == new {
        return;
    }
    if let (Some(Value::Object(_)) | None, Some(Value::Object(_)) | None) = (old, new) {
        let tables = [old, new].map(|value| value.and_then(Value::as_object));
        let keys: BTreeSet<&String> = tables.into_iter().flatten().flat_map(Map::keys).collect();
        for key in keys {
            let [old, new] = tables.map(|table| table.and_then(|table| table.get(key)));
            compare(&join(path, key), old, new, changes);
        }
        return;
    }
    let shown = |value: Option<&Value>| value.map(|value| hidden(path, value));
    let (old, new) = (shown(old), shown(new));
    changes.push(Change { path: path.to_owned(), old, new, effect: effect(path) });
}

fn effect(path: &str) -> Effect {
    match path {
        "server.workers" | "server.io" | "server.limit_keys" => Effect::Restart,
        "server.listen" | "admin.listen" => Effect::Rebind,
        _ => Effect::Swap,
    }
}

/// A header may carry a credential, whatever the operator was told.
fn hidden(path: &str, value: &Value) -> Value {
    let key = path.rsplit('.').next().unwrap_or(path).to_lowercase();
    let header = path.contains("_headers.set.") || path.contains(".where.");
    let telling = ["auth", "cookie", "token", "secret", "key", "password", "credential"];
    if header && telling.iter().any(|word| key.contains(word)) {
        return Value::String("(hidden)".to_owned());
    }
    value.clone()
}

/// What is compared: the gateway's own tables with their defaults, so that a default that is
/// written out changes nothing, and the named tables as written.
pub(crate) fn tree(
    document: &Document<'_>,
    server: &ServerTable,
    admin: &AdminTable,
    log: &LogTable,
    store: &StoreTable,
) -> Value {
    let own = [
        ("server", serde_json::to_value(server)),
        ("admin", serde_json::to_value(admin)),
        ("log", serde_json::to_value(log)),
        ("store", serde_json::to_value(store)),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value.unwrap_or_default()));
    let named = NAMED.iter().filter_map(|key| {
        document.at(&[key]).map(|node| ((*key).to_owned(), as_json(node.get_ref())))
    });
    let shed = document.at(&["shed"]).map(|node| ("shed".to_owned(), as_json(node.get_ref())));
    iter::chain(own, named).chain(shed).collect()
}

fn as_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.clone().into_owned()),
        DeValue::Boolean(is) => Value::Bool(*is),
        DeValue::Integer(number) => number.to_string().parse().unwrap_or_default(),
        DeValue::Float(number) => number.as_str().parse().unwrap_or_default(),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Array(array) => array.iter().map(|node| as_json(node.get_ref())).collect(),
        DeValue::Table(table) => table
            .iter()
            .map(|(key, node)| (key.get_ref().clone().into_owned(), as_json(node.get_ref())))
            .collect(),
    }
}
