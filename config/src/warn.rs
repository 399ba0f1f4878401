//! What can be used but deserves a second look.

use std::collections::BTreeSet;

use sluice_policy::plan::Plan;

use crate::check::NAMED;
use crate::document::Document;
use crate::lint;
use crate::problem::{Problem, Severity};
use crate::reader::{Depends, Fault};
use crate::store::StoreTable;
use crate::written::{AdminTable, ServerTable};

pub(crate) fn warnings(
    document: &Document<'_>,
    server: &ServerTable,
    admin: &AdminTable,
    store: &StoreTable,
    plan: &Plan,
) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut warn = |path: &str, message: String, hint: &str| {
        let hint = Some(hint.to_owned());
        let span = document.underline(path);
        found.push(Fault { path: path.to_owned(), span, message, hint, depends: Depends::Nothing });
    };

    let used = used(document);
    for kind in NAMED {
        for (name, _) in document.named(kind) {
            let unused = *kind != "route" && !used.contains(&(*kind, name));
            if unused && !(*kind == "limit" && is_default(document, name)) {
                let message = format!("no route uses this {kind}");
                warn(&format!("{kind}.{name}"), message, "name it in a route, or take it out");
            }
        }
    }
    if document.named("route").next().is_none() {
        let message = "there is no route, so every request is answered 404".to_owned();
        warn("route", message, "write a [route.NAME] table");
    }
    for path in forwarding_nothing(document) {
        let hint = "take it out, or send the requests to an upstream";
        warn(&path, "without `to` this does nothing".to_owned(), hint);
    }
    if let Some(addr) = admin.listen.0
        && !addr.ip().is_loopback()
    {
        let message = "the admin API can be read from other machines".to_owned();
        warn("admin.listen", message, "listen on 127.0.0.1, or keep the port behind a firewall");
    }
    if let Some(redis) = &store.redis {
        lint::stored(document, plan, redis)
            .into_iter()
            .for_each(|(path, what, hint)| warn(&path, what, &hint));
    }
    if server.trusted_proxies.iter().any(|network| network.bits() == 0) {
        let message = "every client may claim to be another".to_owned();
        warn("server.trusted_proxies", message, "name the networks of your own proxies");
    }
    lint::findings(document, server)
        .into_iter()
        .for_each(|(path, what, hint)| warn(&path, what, &hint));
    found.into_iter().map(|fault| document.problem(fault, Severity::Warning)).collect()
}

/// Keys about an upstream, of routes that have none.
fn forwarding_nothing(document: &Document<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, route) in document.named("route") {
        let (to, route) = (route.get_ref().get("to"), route.get_ref());
        let idle = FORWARDING.iter().filter(|key| to.is_none() && route.get(**key).is_some());
        found.extend(idle.map(|key| format!("route.{name}.{key}")));
    }
    found
}

/// Whether the limit is that of every route without one.
fn is_default(document: &Document<'_>, limit: &str) -> bool {
    let default = document.at(&["limit", limit, "default"]);
    default.and_then(|node| node.get_ref().as_bool()).unwrap_or(false)
}

/// Every upstream and limit that a route names.
fn used<'d>(document: &'d Document<'_>) -> BTreeSet<(&'static str, &'d str)> {
    let mut used = BTreeSet::new();
    for (_, route) in document.named("route") {
        let route = route.get_ref();
        if let Some(to) = route.get("to").and_then(|to| to.get_ref().as_str()) {
            used.insert(("upstream", to));
        }
        let limits = route.get("limits").and_then(|limits| limits.get_ref().as_array());
        for limit in limits.into_iter().flatten() {
            used.extend(limit.get_ref().as_str().map(|limit| ("limit", limit)));
        }
    }
    used
}

/// Keys of a route that are about what is sent to an upstream.
const FORWARDING: &[&str] = &[
    "timeout",
    "client_timeout",
    "retries",
    "cache",
    "strip_prefix",
    "add_prefix",
    "request_headers",
];
