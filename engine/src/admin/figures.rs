//! Figures for machines: Prometheus' text, and percentiles.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sluice_policy::keeper::RuleFigures;
use sluice_policy::ledger::{Figures, Ledger};

use super::{Room, breakers, overload};
use crate::clock;
use crate::control::desk::Desk;
use crate::control::fleet::State as WorkerState;
use crate::observe::cells::Cells;
use crate::observe::exposition::{self, Exposition, by_name};
use crate::observe::percentile::Latency;
use crate::observe::process;
use crate::store::State as Store;

pub(super) async fn metrics(State(room): State<Room>) -> Response {
    let cells = room.desk.fleet().cells();
    room.desk.prometheus.run_upkeep();
    let mut text = exposition::workers(&cells);
    text.push_str(&room.desk.prometheus.render());
    text.push_str(&own(&room.desk));
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// How the process itself stands.
fn own(desk: &Desk) -> String {
    let mut text = Exposition::new();
    let fleet = desk.fleet();
    text.family("sluice_workers", "gauge", "Workers, by state and driver.");
    let mut workers: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for worker in &fleet.workers {
        let driver = match &worker.state {
            WorkerState::Running { driver, .. } => driver.name(),
            WorkerState::Starting | WorkerState::Draining | WorkerState::Ended => "",
        };
        *workers.entry((worker.state.name(), driver)).or_default() += 1;
    }
    for ((state, driver), n) in workers {
        text.sample("sluice_workers", &[("state", state), ("driver", driver)], n);
    }
    let number = fleet.generation().number;
    text.single(
        "sluice_config_version",
        "gauge",
        "Number of the configuration that serves.",
        number,
    );
    text.single(
        "sluice_connections_max",
        "gauge",
        "Client connections that may be open, by server.connections and the descriptors there are.",
        fleet.connections_max(),
    );
    counts(&mut text, fleet.ledger());
    drop(fleet);
    health(&mut text, desk);
    store(&mut text, desk);
    text.family("sluice_build_info", "gauge", "Always 1; the labels tell.");
    text.sample("sluice_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    process::expose(&mut text, desk.started);
    breakers::expose(&mut text, desk);
    overload::expose(&mut text, desk);
    text.finish()
}

/// How full the tables of the node's own limits are.
fn counts(text: &mut Exposition, ledger: &Ledger) {
    type Read = fn(&Figures) -> u64;
    let families: [(&str, &str, &str, Read); 4] = [
        ("sluice_limit_table_places", "gauge", "Places there are.", |it| it.capacity as u64),
        ("sluice_limit_table_held", "gauge", "Places that are held.", |it| it.held),
        (
            "sluice_limit_table_forgotten_total",
            "counter",
            "Keys as good as new that made room for others.",
            |it| it.forgotten,
        ),
        (
            "sluice_limit_table_full_total",
            "counter",
            "How often a key was judged by a count that it shares, or refused, for want of a place.",
            |it| it.full,
        ),
    ];
    for (name, kind, help, read) in families {
        text.family(name, kind, help);
        for (table, figures) in ledger.tables() {
            text.sample(name, &[("table", table)], read(&figures));
        }
    }
}

/// The servers that are asked how they are, and what is switched by hand.
fn health(text: &mut Exposition, desk: &Desk) {
    let plan = Arc::clone(&desk.fleet().generation().config.plan);
    let watch = desk.watch();
    let servers = || {
        let servers = plan.upstreams().iter().flat_map(|upstream| {
            upstream.endpoints.iter().map(|server| (upstream.name.as_str(), server))
        });
        servers.filter_map(|(upstream, server)| Some((upstream, server, watch.vital(server.key)?)))
    };
    text.family("sluice_server_in", "gauge", "1: its health lets a server be sent requests.");
    for (upstream, server, vital) in servers() {
        let labels = [("upstream", upstream), ("server", &server.address)];
        text.sample("sluice_server_in", &labels, u8::from(!vital.out));
    }
    text.family("sluice_probes_total", "counter", "Questions to servers, by what came of them.");
    for (upstream, server, vital) in servers() {
        for (result, n) in [("well", vital.probes_well), ("failed", vital.probes_failed)] {
            let labels = [("upstream", upstream), ("server", &server.address), ("result", result)];
            text.sample("sluice_probes_total", &labels, n);
        }
    }
    drop(watch);
    text.family("sluice_switches", "gauge", "What is switched by hand now.");
    let board = desk.switchboard();
    for kind in ["group", "survival", "drill"] {
        let count = board.all().iter().filter(|switch| switch.what.kind() == kind).count();
        text.sample("sluice_switches", &[("kind", kind)], count);
    }
}

fn store(text: &mut Exposition, desk: &Desk) {
    let report = desk.store.report();
    if report.state == Store::Off {
        return;
    }
    let figures = report.figures;
    let lost = u8::from(report.state == Store::Lost);
    text.single("sluice_store_degraded", "gauge", "1 while the store of counts is lost.", lost);
    text.single("sluice_store_keys", "gauge", "Keys of shared limits in use here.", figures.keys);
    let help = "Tokens of shared limits in hand.";
    text.single("sluice_store_tokens_held", "gauge", help, figures.held);
    if let Some(ago) = figures.answered_ago {
        let (name, help) = ("sluice_store_sync_age_seconds", "Since the store last answered.");
        text.single(name, "gauge", help, format_args!("{:.3}", ago.as_secs_f64()));
    }
    for (name, help, n) in [
        ("sluice_store_parked_total", "Requests that waited for the store.", figures.parked),
        ("sluice_store_voided_total", "Tokens in hand that turned out void.", figures.voided),
        ("sluice_store_crowded_total", "Keys for which there was no room.", figures.crowded),
    ] {
        text.single(name, "counter", help, n);
    }
    const OVERRIDES: &str = "Keys of shared limits that have numbers of their own.";
    text.single("sluice_store_overrides", "gauge", OVERRIDES, figures.overrides);
    shared(text, &report.rules);
    const DEGRADED: &str = "sluice_store_degraded_decisions_total";
    text.family(DEGRADED, "counter", "Decided by the rule for a lost store.");
    for (decision, n) in
        [("allowed", figures.degraded_allowed), ("refused", figures.degraded_refused)]
    {
        text.sample(DEGRADED, &[("decision", decision)], n);
    }
}

/// The same for each limit that a store counts.
fn shared(text: &mut Exposition, rules: &[RuleFigures]) {
    type Read = fn(&RuleFigures) -> u64;
    let families: [(&str, &str, &str, Read); 4] = [
        ("sluice_limit_store_keys", "gauge", "Keys in use here.", |rule| rule.keys),
        ("sluice_limit_store_tokens_held", "gauge", "Tokens in hand.", |rule| rule.held),
        ("sluice_limit_store_messages_total", "counter", "Told to the store, by key.", |rule| {
            rule.messages
        }),
        (
            "sluice_limit_store_parked_total",
            "counter",
            "Requests that waited for the store.",
            |r| r.parked,
        ),
    ];
    for (name, kind, help, read) in families {
        text.family(name, kind, help);
        rules.iter().for_each(|rule| text.sample(name, &[("limit", &rule.name)], read(rule)));
    }
    const DEGRADED: &str = "sluice_limit_store_degraded_decisions_total";
    text.family(DEGRADED, "counter", "Decided by what the limit says for a lost store.");
    for rule in rules {
        let decided = [("allowed", rule.degraded_allowed), ("refused", rule.degraded_refused)];
        for (decision, n) in decided {
            text.sample(DEGRADED, &[("limit", &rule.name), ("decision", decision)], n);
        }
    }
}

/// Exact percentiles since the start.
#[derive(Debug, Serialize)]
pub(super) struct Latencies {
    overall: Latency,
    routes: BTreeMap<String, Latency>,
    uptime_seconds: u64,
}

pub(super) async fn latency(State(room): State<Room>) -> Json<Latencies> {
    let cells = room.desk.fleet().cells();
    let routes = by_name(&cells, Cells::routes);
    Json(Latencies {
        overall: Latency::of(cells.iter().map(|cells| &cells.all)),
        routes: routes
            .into_iter()
            .map(|(route, cells)| (route, Latency::of(cells.iter().map(|cells| &cells.timings))))
            .collect(),
        uptime_seconds: clock::since_1970().saturating_sub(room.desk.started).as_secs(),
    })
}
