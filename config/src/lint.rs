//! What can be used, but not on the night that a server half dies: retries that nothing stops,
//! shares of too few calls, times that do not fit into each other.

use core::time::Duration;

use sluice_policy::mechanism::lease::{Class, Count};
use sluice_policy::plan::Plan;
use sluice_policy::unit::{ByteSize, Span};

use crate::document::Document;
use crate::store::RedisTable;
use crate::written::ServerTable;

/// A place, what is odd there, and what to do about it.
pub(crate) type Finding = (String, String, String);

pub(crate) fn findings(document: &Document<'_>, server: &ServerTable) -> Vec<Finding> {
    let mut found = Vec::new();
    // None is one per core.
    let workers = server.workers.0.map(|workers| u32::from(workers.get()));
    for (name, route) in document.named("route") {
        let path = format!("route.{name}");
        let route = route.get_ref();
        let to = route.get("to").and_then(|to| to.get_ref().as_str()).unwrap_or_default();
        let again = route.get("retries").is_some_and(|retries| retries.get_ref().is_table());
        if again && document.at(&["upstream", to]).is_some() && !guarded(document, to) {
            let message = "a server that fails gets more requests, and nothing stops them";
            let hint = format!("give [upstream.{to}] a `breaker`, like `breaker = \"default\"`");
            found.push((format!("{path}.retries"), message.to_owned(), hint));
        }
        times(document, &path, to, &mut found);
        order(document, &path, to, &mut found);
        lonely(document, &path, to, &mut found);
        large(document, &path, server.cache_memory, &mut found);
    }
    for (name, _) in document.named("upstream") {
        pool(document, name, workers, &mut found);
        for at in ["breaker", "eject.breaker"] {
            let path = format!("upstream.{name}.{at}.min_requests");
            let keys: Vec<&str> = path.split('.').collect();
            let number = document.at(&keys).and_then(|node| node.get_ref().as_integer());
            let number = number.and_then(|number| number.as_str().parse::<u32>().ok());
            if let Some(few) = number.filter(|number| *number < REQUESTS_MIN) {
                let message = format!("a share of {few} calls is mostly chance");
                let hint = format!("from {REQUESTS_MIN} on, better 50 to 100, it tells something");
                found.push((path, message, hint));
            }
        }
    }
    found
}

/// Limits of a store that can't be kept as written, or not well.
pub(crate) fn stored(document: &Document<'_>, plan: &Plan, redis: &RedisTable) -> Vec<Finding> {
    let nodes = redis.nodes;
    let mut found = Vec::new();
    let mut warn = |path: &str, message: String, hint: String| {
        found.push((path.to_owned(), message, hint));
    };
    for (name, _, terms) in plan.shared() {
        let route = name.strip_prefix("route.").is_some();
        let path = if route { format!("{name}.concurrency") } else { format!("limit.{name}") };
        let whole_us = terms.whole_us().max(1);
        let fast = u64::from(terms.capacity).saturating_mul(1_000_000) / whole_us > FAST && !route;
        if fast && terms.class == Class::Direct {
            let what = if terms.count == Count::Bucket { "a burst" } else { "a number" };
            let message = format!(
                "asks Redis for every request: {nodes} gateways can't hold parts of {what} of {}",
                terms.capacity
            );
            let enough = 16 * nodes * terms.cost;
            warn(&path, message, format!("{what} of {enough} or more is reserved in batches"));
        }
        let leased = terms.count == Count::Window && terms.class == Class::Lease;
        if leased && terms.whole_us() < LEASE_US {
            let message = "gateways hold parts of it for longer than its window".to_owned();
            let hint = "up to a quarter of it stays unused; write a period of 1s or more";
            warn(&path, message, hint.to_owned());
        }
        if terms.strict && redis.proxied {
            let message = format!(
                "the proxy before Redis hides its restarts, and what they lose: up to {} more then",
                terms.capacity
            );
            let hint = "reach Redis itself for it, or take `strict` out and accept that";
            warn(&format!("{path}.strict"), message, hint.to_owned());
        }
        let lost = document.text_at(&format!("{path}.lost")).unwrap_or("local");
        if lost == "local" && document.at(&["store", "redis", "nodes"]).is_none() {
            let message = "while Redis is away, each gateway allows the whole limit".to_owned();
            let hint = "write how many there are as `nodes` of [store.redis]";
            warn(&path, message, hint.to_owned());
        }
    }
    found
}

fn guarded(document: &Document<'_>, upstream: &str) -> bool {
    ["breaker", "eject"].iter().any(|key| document.at(&["upstream", upstream, key]).is_some())
}

/// Each wait has to fit into the one around it, or it never ends by itself.
fn times(document: &Document<'_>, path: &str, to: &str, found: &mut Vec<Finding>) {
    let span = |path: &str| document.text_at(path)?.parse::<Span>().ok();
    let whole = span(&format!("{path}.timeout")).unwrap_or(ROUTE_TIMEOUT);
    for inner in [
        format!("{path}.retries.per_try"),
        format!("upstream.{to}.timeout.connect"),
        format!("upstream.{to}.timeout.first_byte"),
    ] {
        if let Some(time) = span(&inner).filter(|time| *time > whole) {
            let message = format!("{time} never pass: {path} gives up after {whole}");
            found.push((inner, message, "make it less than the route's `timeout`".to_owned()));
        }
    }
}

/// Who stands further out must wait longer, or work goes on that nobody waits for: the client longer
/// than the gateway, the gateway longer than the server.
fn order(document: &Document<'_>, path: &str, to: &str, found: &mut Vec<Finding>) {
    let span = |path: &str| document.text_at(path)?.parse::<Span>().ok();
    let (own, client) = (format!("{path}.timeout"), format!("{path}.client_timeout"));
    let whole = span(&own).unwrap_or(ROUTE_TIMEOUT);
    if let Some(waits) = span(&client).filter(|waits| *waits <= whole) {
        let message = format!("clients give up after {waits}, {path} only after {whole}");
        found.push((client, message, "make the route's `timeout` less than that".to_owned()));
    }
    let Some(server) = span(&format!("upstream.{to}.backend.timeout")) else { return };
    let own = if document.text_at(&own).is_some() { own } else { path.to_owned() };
    let each = format!("{path}.retries.per_try");
    for (at, time) in [(own, Some(whole)), (each.clone(), span(&each))] {
        if let Some(time) = time.filter(|time| *time <= server) {
            let message = format!("{to} works on for {server}, when nobody waits after {time}");
            found.push((at, message, "make it more than the server's own timeout".to_owned()));
        }
    }
}

/// More connections than a server has workers only fill its queue.
fn pool(document: &Document<'_>, name: &str, workers: Option<u32>, found: &mut Vec<Finding>) {
    let number = |key: &[&str]| -> Option<u64> {
        let path: Vec<&str> = ["upstream", name].iter().chain(key).copied().collect();
        document.at(&path)?.get_ref().as_integer()?.as_str().parse().ok()
    };
    let Some(theirs) = number(&["backend", "workers"]) else { return };
    let each = number(&["connections"]).unwrap_or(CONNECTIONS);
    let all = each.saturating_mul(workers.unwrap_or(1).into());
    if all > theirs {
        let times = match workers {
            Some(workers) => format!("{workers} workers of {each} connections each"),
            None => format!("{each} connections for each core"),
        };
        let message = format!("{times}, and each server works on {theirs} requests at once");
        let hint = "give it fewer `connections`; a short `queue` evens out bursts".to_owned();
        found.push((format!("upstream.{name}.backend.workers"), message, hint));
    }
}

/// A hedge needs somewhere else to go.
fn lonely(document: &Document<'_>, path: &str, to: &str, found: &mut Vec<Finding>) {
    let at = format!("{path}.retries.hedge");
    let keys: Vec<&str> = at.split('.').collect();
    let hedges = document.at(&keys).and_then(|node| node.get_ref().as_bool()).unwrap_or(false);
    let servers = document.at(&["upstream", to, "servers"]).and_then(|s| s.get_ref().as_array());
    if hedges && servers.is_some_and(|servers| servers.len() < 2) {
        let message = format!("{to} has one server, so there is none to hedge with");
        found.push((at, message, "take it out, or add a server".to_owned()));
    }
}

/// What does not fit into a worker's memory for responses is never kept, whatever `max_body` says.
fn large(document: &Document<'_>, path: &str, memory: ByteSize, found: &mut Vec<Finding>) {
    let cache = format!("{path}.cache");
    if !document.is_table(&cache) {
        return;
    }
    let written = format!("{cache}.max_body");
    let most = document.text_at(&written).and_then(|text| text.parse().ok());
    let (at, most) = most.map_or((cache, CACHE_BODY), |most: ByteSize| (written, most));
    if most.0 > memory.0 {
        let message = format!("bodies of {most} are never kept: a worker has {memory} for all");
        let hint = "raise `server.cache_memory`, or lower `max_body`".to_owned();
        found.push((at, message, hint));
    }
}

const CACHE_BODY: ByteSize = ByteSize(1 << 20);
const CONNECTIONS: u64 = 64;
/// Requests a second from which parts are reserved.
const FAST: u64 = 20;
const LEASE_US: u64 = 1_000_000;
const REQUESTS_MIN: u32 = 20;
const ROUTE_TIMEOUT: Span = Span(Duration::from_secs(10));
