//! From text to a configuration, or to every mistake in it at once.
//!
//! In the order of this file: the tree, each table as its type, names and references, bounds, the
//! plan, and then what deserves a second look.

use std::sync::Arc;

use serde::Deserialize;
use sluice_policy::admit::{FILTERS, Specs};
use sluice_policy::draft::{Draft, RouteSpec};
use sluice_policy::plan::{self, Plan};
use toml::de::{DeTable, DeValue};

use crate::document::Document;
use crate::model::Config;
use crate::near;
use crate::problem::{Problem, Problems, Severity};
use crate::reader::{Depends, FAULTS_MAX, Fault, Keys, Reader, unknown_key};
use crate::store::{self, StoreTable};
use crate::syntax::{self, Recovered};
use crate::written::{AdminTable, LogTable, ServerTable};
use crate::{bounds, diff, identity, later, warn};

/// Reads a configuration. Pure: opens no file, reads no environment.
///
/// # Errors
/// Every mistake in the text, in its order.
pub fn parse(text: &str) -> Result<Config, Problems> {
    let recovered = syntax::recover(text);
    let document = Document::parse(&recovered.text);
    let mut reader = Reader::default();
    later::refuse(&document, &mut reader);
    let written = Written::read(&document, &mut reader);
    names(&document, &mut reader);
    references(&document, &mut reader);
    identity::refuse(&document, &mut reader);
    bounds::check(&document, &mut reader, &written.server, &written.admin);
    store::check(&document, &mut reader, &written.store);
    let Written { server, admin, log, store, draft } = written;
    let plan = compile(&document, &mut reader, draft);
    match plan {
        Some(plan) if reader.faults.is_empty() && recovered.faults.is_empty() => Ok(Config {
            warnings: warn::warnings(&document, &server, &admin, &store, &plan),
            written: diff::tree(&document, &server, &admin, &log, &store),
            server: server.into(),
            admin: admin.into(),
            log: log.into(),
            store: store.redis.map(Into::into),
            plan: Arc::new(plan),
        }),
        Some(_) | None => Err(problems(&document, reader, &recovered)),
    }
}

/// What could be read. What could not has its default, and a fault.
struct Written {
    server: ServerTable,
    admin: AdminTable,
    log: LogTable,
    store: StoreTable,
    draft: Draft,
}

impl Written {
    fn read(document: &Document<'_>, reader: &mut Reader) -> Self {
        root(document, reader);
        let store: StoreTable = table(document, reader, "store");
        let server: ServerTable = table(document, reader, "server");
        Self {
            admin: table(document, reader, "admin"),
            log: table(document, reader, "log"),
            draft: Draft {
                upstreams: each(document, reader, "upstream", PLACEHOLDER_UPSTREAM),
                limits: each(document, reader, "limit", PLACEHOLDER_LIMIT),
                routes: routes(document, reader),
                shed: table(document, reader, "shed"),
                // Nobody tells tenants apart in this version.
                tenants: Vec::new(),
                nodes: store.redis.as_ref().map(|redis| redis.nodes),
                proxied: store.redis.as_ref().is_some_and(|redis| redis.proxied),
                zone: server.zone.clone(),
            },
            server,
            store,
        }
    }
}

/// The outermost keys: all known, tables where tables belong, the right version.
fn root(document: &Document<'_>, reader: &mut Reader) {
    let Some(table) = document.root.get_ref().as_table() else { return };
    for (key, node) in table {
        let name = key.get_ref().as_ref();
        if reader.is_skipped(name) {
            continue;
        }
        if !ROOT.contains(&name) {
            let known = ROOT.iter().copied();
            reader.note(unknown_key(name.to_owned(), key, known));
        } else if name == "version" {
            let version = reader.read::<u32>(name, key.span(), node, Keys::All);
            if version.is_some_and(|version| version != VERSION) {
                let message = format!("this version of Sluice reads version {VERSION} only");
                let hint = Some(format!("write version = {VERSION}"));
                reader.note(fault(name, node.span(), message, hint));
            }
        } else if !node.get_ref().is_table() {
            let hint = NAMED.contains(&name).then(|| format!("write [{name}.NAME]"));
            let message = format!("wanted a table, found {}", kind(node.get_ref()));
            reader.note(fault(name, node.span(), message, hint));
        }
    }
}

/// A table that may be left out.
fn table<T: for<'d> Deserialize<'d> + Default>(
    document: &Document<'_>,
    reader: &mut Reader,
    key: &str,
) -> T {
    let node = document.at(&[key]);
    node.and_then(|node| reader.read(key, document.key_span(key), node, Keys::All))
        .unwrap_or_default()
}

/// `[key.NAME]` for every name. One that cannot be read is still known by its name.
fn each<T: for<'d> Deserialize<'d>>(
    document: &Document<'_>,
    reader: &mut Reader,
    key: &str,
    placeholder: &str,
) -> Vec<(String, T)> {
    let stand_ins = DeTable::parse_recoverable(placeholder).0;
    let mut all = Vec::new();
    for (name, node) in document.named(key) {
        let path = format!("{key}.{name}");
        let span = document.key_span(&path);
        let spec = reader
            .read(&path, span.clone(), node, Keys::All)
            .or_else(|| reader.read_with(&path, span, node, stand_ins.get_ref()))
            .or_else(|| toml::from_str(placeholder).ok());
        if let Some(spec) = spec {
            all.push((name.to_owned(), spec));
        }
    }
    all
}

fn routes(document: &Document<'_>, reader: &mut Reader) -> Vec<(String, RouteSpec, Specs)> {
    let filters: Vec<&str> = FILTERS.iter().map(|(name, _)| *name).collect();
    let mut all = Vec::new();
    for (name, node) in document.named("route") {
        let path = format!("route.{name}");
        let key = document.key_span(&path);
        // The filters first: a route that cannot be read must not hide what is wrong in them.
        let specs = match node.get_ref() {
            DeValue::Table(_) => reader.read(&path, key.clone(), node, Keys::Only(&filters)),
            _ => None,
        };
        let route = reader.read(&path, key, node, Keys::Except(&filters));
        if let Some(route) = route {
            all.push((name.to_owned(), route, specs.unwrap_or_default()));
        }
    }
    all
}

/// Names end up in metrics, log lines and paths of problems.
fn names(document: &Document<'_>, reader: &mut Reader) {
    for key in NAMED {
        for (name, _) in document.named(key) {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
                let path = format!("{key}.{name}");
                let span = document.key_span(&path);
                let message = format!("{name:?} cannot be the name of a {key}");
                let hint = format!("a name is up to {NAME_MAX} letters, digits, - and _");
                reader.note(fault(&path, span, message, Some(hint)));
            }
        }
    }
}

fn references(document: &Document<'_>, reader: &mut Reader) {
    for (name, node) in document.named("route") {
        reference(document, reader, &format!("route.{name}.to"), "upstream");
        let limits = node.get_ref().get("limits").and_then(|limits| limits.get_ref().as_array());
        for i in 0..limits.map_or(0, |limits| limits.len()) {
            reference(document, reader, &format!("route.{name}.limits[{i}]"), "limit");
        }
    }
}

/// What stands at this path must be the name of a `[kind.NAME]`.
pub(crate) fn reference(document: &Document<'_>, reader: &mut Reader, path: &str, kind: &str) {
    let Some(wanted) = document.text_at(path) else { return };
    if document.at(&[kind, wanted]).is_some() {
        return;
    }
    let known: Vec<&str> = document.named(kind).map(|(name, _)| name).collect();
    let hint = near::hint(wanted, known.iter().copied())
        .unwrap_or_else(|| format!("write a [{kind}.{wanted}] table"));
    let message = format!("there is no {kind} named {wanted:?}");
    let fault = fault(path, document.underline(path), message, Some(hint));
    reader.note(Fault { depends: Depends::Tables, ..fault });
}

/// The plan of what could be read, with what policy finds wrong in it.
fn compile(document: &Document<'_>, reader: &mut Reader, draft: Draft) -> Option<Plan> {
    let problems = match Plan::compile(draft) {
        Ok(plan) => return Some(plan),
        Err(problems) => problems,
    };
    for plan::Problem { path, message, hint } in problems {
        // What was left out or stands in for it may be all that is wrong here.
        if !reader.touches(&path) {
            let depends = if document.is_table(&path) { Depends::Keys } else { Depends::Nothing };
            let fault = fault(&path, document.underline(&path), message, hint);
            reader.note(Fault { depends, ..fault });
        }
    }
    None
}

/// All faults but those that may only follow from what could not be read as TOML.
fn problems(document: &Document<'_>, reader: Reader, syntax: &Recovered<'_>) -> Problems {
    let certain = |fault: &Fault| match fault.depends {
        Depends::Nothing => true,
        Depends::Keys => syntax.faults.is_empty(),
        Depends::Tables => !syntax.tables_lost,
    };
    let faults = reader.faults.into_iter().filter(certain).chain(syntax.faults.iter().cloned());
    let faults = faults.map(|fault| document.problem(fault, Severity::Error));
    let mut all: Vec<Problem> = faults.collect();
    all.sort_by_key(|problem| (problem.span.start, problem.span.end));
    all.truncate(FAULTS_MAX);
    Problems(all)
}

pub(crate) fn fault(
    path: &str,
    span: core::ops::Range<usize>,
    message: String,
    hint: Option<String>,
) -> Fault {
    Fault { path: path.to_owned(), span, message, hint, depends: Depends::Nothing }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

const VERSION: u32 = 1;
const ROOT: &[&str] =
    &["version", "server", "admin", "log", "store", "shed", "upstream", "limit", "route"];
/// Tables of named tables.
pub(crate) const NAMED: &[&str] = &["upstream", "limit", "route"];
const NAME_MAX: usize = 64;
const PLACEHOLDER_UPSTREAM: &str = r#"servers = ["placeholder:1"]"#;
const PLACEHOLDER_LIMIT: &str = r#"rate = "1/s""#;
