//! Figures in Prometheus' text form, version 0.0.4: all workers' cells, summed when somebody
//! looks.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use super::cells::{BOUNDS_US, Cell, Cells, LimitCells, RouteCells, Timings};
use super::writer::{LOST, WRITTEN};

/// Reloads, by `result`: adopted or refused.
pub(crate) const RELOADS: &str = "sluice_reloads_total";
/// 1 when the newest reload was adopted.
pub(crate) const CONFIG_CURRENT: &str = "sluice_config_current";
pub(crate) const STORE_COMMANDS: &str = "sluice_store_commands_total";
pub(crate) const STORE_LOOKS: &str = "sluice_store_override_reads_total";
pub(crate) const STORE_LOSSES: &str = "sluice_store_losses_total";
pub(crate) const WORKER_RESTARTS: &str = "sluice_worker_restarts_total";

/// What the control thread counts through `metrics`.
pub(crate) fn describe() {
    use metrics::{describe_counter, describe_gauge};
    describe_counter!(RELOADS, "Reloads of the configuration, by how they ended.");
    describe_gauge!(CONFIG_CURRENT, "1 when the last reload was adopted, 0 when it was refused.");
    describe_counter!(WORKER_RESTARTS, "Workers that died and were replaced.");
    describe_counter!(STORE_COMMANDS, "Calls of the script in the store of shared counts.");
    describe_counter!(STORE_LOOKS, "Times that numbers of single keys were read.");
    describe_counter!(STORE_LOSSES, "Times that the store of shared counts was lost.");
    describe_counter!(WRITTEN, "Access log lines written.");
    describe_counter!(LOST, "Access log lines that could not be written.");
    // A counter that is there from the start shows its first step as one.
    for name in [WORKER_RESTARTS, STORE_COMMANDS, STORE_LOOKS, STORE_LOSSES, WRITTEN, LOST] {
        metrics::counter!(name).increment(0);
    }
    for result in ["adopted", "refused"] {
        metrics::counter!(RELOADS, "result" => result).increment(0);
    }
}

type Read = fn(&Cells) -> &Cell;

/// Name, help text, and where it is counted.
type Figure = (&'static str, &'static str, Read);

const GAUGES: [Figure; 5] = [
    ("sluice_connections_open", "Client connections open now.", |c| &c.connections_open),
    ("sluice_connections_resting", "Of these, at rest: without a task and buffers.", |c| {
        &c.connections_resting
    }),
    ("sluice_requests_in_flight", "Requests begun and not ended.", |c| &c.in_flight),
    ("sluice_upstream_connections_open", "Connections to upstreams open now.", |c| {
        &c.upstream_connections_open
    }),
    ("sluice_pool_waiting", "Requests that wait for a connection of a full pool now.", |c| {
        &c.pool_waiting
    }),
];

const COUNTERS: [Figure; 18] = [
    ("sluice_connections_total", "Client connections accepted.", |c| &c.connections_total),
    ("sluice_connections_refused_total", "Client connections refused at a bound.", |c| {
        &c.connections_refused
    }),
    ("sluice_accept_errors_total", "Accepts that failed: no descriptors or no memory.", |c| {
        &c.accept_errors
    }),
    ("sluice_clients_gone_total", "Clients that left before their response was whole.", |c| {
        &c.clients_gone
    }),
    ("sluice_upstream_connections_total", "Connections made to upstreams.", |c| {
        &c.upstream_connections_total
    }),
    ("sluice_upstream_connects_failed_total", "Connects to upstreams that failed.", |c| {
        &c.upstream_connects_failed
    }),
    ("sluice_upstream_reused_total", "Requests that found an idle connection.", |c| {
        &c.upstream_reused
    }),
    ("sluice_upstream_idle_closed_total", "Idle connections that the upstream ended.", |c| {
        &c.upstream_idle_closed
    }),
    ("sluice_pool_waits_total", "Requests that waited at a full pool.", |c| &c.pool_waits),
    ("sluice_pool_waits_timed_out_total", "Waits at a full pool that were in vain.", |c| {
        &c.pool_waits_timed_out
    }),
    ("sluice_upstream_cut_total", "Responses that broke off for the client, too.", |c| {
        &c.upstream_cut
    }),
    ("sluice_upstream_cut_held_total", "Attempts whose held response broke off or stalled.", |c| {
        &c.upstream_cut_held
    }),
    ("sluice_retries_total", "Attempts after the first, but for hedges.", |c| &c.retries),
    ("sluice_hedges_total", "Requests sent to a second server, too.", |c| &c.hedges),
    ("sluice_hedges_won_total", "Hedges that answered first.", |c| &c.hedges_won),
    ("sluice_panics_total", "Connection tasks that panicked and were caught.", |c| &c.panics),
    ("sluice_access_log_lines_total", "Access log lines made by the workers.", |c| &c.log_lines),
    ("sluice_access_log_dropped_lines_total", "Lines dropped: the writer was behind.", |c| {
        &c.log_dropped
    }),
];

/// Status, and where it is counted.
const HEADS: [(&str, Read); 7] = [
    ("400", |c| &c.refused_400),
    ("408", |c| &c.refused_408),
    ("414", |c| &c.refused_414),
    ("417", |c| &c.refused_417),
    ("431", |c| &c.refused_431),
    ("501", |c| &c.refused_501),
    ("505", |c| &c.refused_505),
];

/// Everything the workers count.
pub(crate) fn workers(workers: &[Arc<Cells>]) -> String {
    let mut text = Exposition::new();
    let sum = |read: Read| workers.iter().map(|c| read(c).value()).sum::<u64>();
    for (name, help, read) in GAUGES {
        text.single(name, "gauge", help, sum(read));
    }
    for (name, help, read) in COUNTERS {
        text.single(name, "counter", help, sum(read));
    }
    text.single(
        "sluice_busy_poll_seconds_total",
        "counter",
        "Time spent on looking for what comes next, when nothing did.",
        seconds(sum(|c| &c.busy_poll_us)),
    );
    text.family("sluice_heads_refused_total", "counter", "Requests refused before any route.");
    for (status, read) in HEADS {
        text.sample("sluice_heads_refused_total", &[("status", status)], sum(read));
    }
    let by_route = by_name(workers, Cells::routes);
    routes(&mut text, &by_route);
    super::kept::expose(&mut text, workers, &by_route);
    limits(&mut text, &by_name(workers, Cells::limits));
    super::shed::expose(&mut text, workers);
    text.finish()
}

fn routes(text: &mut Exposition, routes: &BTreeMap<String, Vec<Arc<RouteCells>>>) {
    const REQUESTS: &str = "sluice_requests_total";
    const DURATION: &str = "sluice_request_duration_seconds";
    const DEGRADED: &str = "sluice_degraded_total";
    text.family(REQUESTS, "counter", "Requests that have ended.");
    for (route, cells) in routes {
        let mut sums = BTreeMap::new();
        for (method, class, n) in cells.iter().flat_map(|cells| cells.counts()) {
            *sums.entry((method, class)).or_insert(0) += n;
        }
        for ((method, class), n) in sums {
            let labels = [("route", route.as_str()), ("method", method), ("status_class", class)];
            text.sample(REQUESTS, &labels, n);
        }
    }
    text.family(DURATION, "histogram", "From the request's head to the end of the response.");
    for (route, cells) in routes {
        let timings: Vec<_> = cells.iter().map(|cells| &cells.timings).collect();
        text.histogram(DURATION, ("route", route), &timings);
    }
    text.family(DEGRADED, "counter", "Answers that stood for what could not be had.");
    for (route, cells) in routes {
        let mut sums = BTreeMap::new();
        for (cause, source, n) in cells.iter().flat_map(|cells| cells.degraded()) {
            *sums.entry((cause, source)).or_insert(0) += n;
        }
        for ((cause, source), n) in sums {
            let labels = [("route", route.as_str()), ("cause", cause), ("source", source)];
            text.sample(DEGRADED, &labels, n);
        }
    }
}

fn limits(text: &mut Exposition, limits: &BTreeMap<String, Vec<Arc<LimitCells>>>) {
    const DECISIONS: &str = "sluice_limit_decisions_total";
    text.family(DECISIONS, "counter", "What each limit decided.");
    for (limit, cells) in limits {
        let sum =
            |read: fn(&LimitCells) -> &Cell| cells.iter().map(|c| read(c).value()).sum::<u64>();
        let (allowed, refused) = (sum(|c| &c.allowed), sum(|c| &c.refused));
        text.sample(DECISIONS, &[("limit", limit), ("decision", "allowed")], allowed);
        text.sample(DECISIONS, &[("limit", limit), ("decision", "refused")], refused);
        let shadow = sum(|c| &c.shadow_refused);
        text.sample(DECISIONS, &[("limit", limit), ("decision", "shadow_refused")], shadow);
    }
}

/// The cells of all workers under each name.
pub(crate) fn by_name<T>(
    workers: &[Arc<Cells>],
    read: impl Fn(&Cells) -> Vec<(String, Arc<T>)>,
) -> BTreeMap<String, Vec<Arc<T>>> {
    let mut named: BTreeMap<String, Vec<Arc<T>>> = BTreeMap::new();
    for (name, cells) in workers.iter().flat_map(|worker| read(worker)) {
        named.entry(name).or_default().push(cells);
    }
    named
}

/// The text form itself.
#[derive(Debug)]
pub(crate) struct Exposition {
    text: String,
}

impl Exposition {
    pub(crate) fn new() -> Self {
        Self { text: String::with_capacity(16 << 10) }
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        debug_assert!(!help.contains(['\\', '\n']), "help texts are ours and need no escaping");
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A family of one.
    pub(crate) fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (i, (label, value)) in labels.iter().enumerate() {
            self.text.push(if i == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            escape(&mut self.text, value);
            self.text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    fn histogram(&mut self, name: &str, label: (&str, &str), timings: &[&Timings]) {
        let mut buckets = [0; BOUNDS_US.len() + 1];
        for timings in timings {
            for (sum, n) in buckets.iter_mut().zip(timings.buckets()) {
                *sum += n;
            }
        }
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (n, bound) in buckets.iter().zip(BOUNDS_US.map(Some).into_iter().chain([None])) {
            below += n;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), seconds);
            self.sample(&bucket, &[label, ("le", &bound)], below);
        }
        let sum_us = timings.iter().map(|timings| timings.sum_us()).sum();
        self.sample(&format!("{name}_sum"), &[label], seconds(sum_us));
        self.sample(&format!("{name}_count"), &[label], below);
    }
}

fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

/// Microseconds as seconds in decimal, without a float's surprises.
pub(crate) fn seconds(us: u64) -> String {
    let (whole, rest) = (us / 1_000_000, us % 1_000_000);
    if rest == 0 {
        return whole.to_string();
    }
    let text = format!("{whole}.{rest:06}");
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn cells_of_all_workers_are_summed_and_buckets_are_cumulative() {
        let all = [Arc::new(Cells::default()), Arc::new(Cells::default())];
        for (worker, us) in [(0, 100), (0, 200), (1, 240), (1, 20_000_000)] {
            all[worker].connections_total.add(1);
            all[worker].route("odd\"\\\nname").count("GET", Some(200), Duration::from_micros(us));
        }
        all[1].limit("fair").refused.add(2);
        let text = workers(&all);
        for line in [
            "# TYPE sluice_connections_total counter",
            "sluice_connections_total 4",
            r#"sluice_requests_total{route="odd\"\\\nname",method="GET",status_class="2xx"} 4"#,
            "# TYPE sluice_request_duration_seconds histogram",
            r#"sluice_request_duration_seconds_bucket{route="odd\"\\\nname",le="0.0001"} 1"#,
            r#"sluice_request_duration_seconds_bucket{route="odd\"\\\nname",le="0.00025"} 3"#,
            r#"sluice_request_duration_seconds_bucket{route="odd\"\\\nname",le="10"} 3"#,
            r#"sluice_request_duration_seconds_bucket{route="odd\"\\\nname",le="+Inf"} 4"#,
            r#"sluice_request_duration_seconds_sum{route="odd\"\\\nname"} 20.00054"#,
            r#"sluice_request_duration_seconds_count{route="odd\"\\\nname"} 4"#,
            r#"sluice_limit_decisions_total{limit="fair",decision="refused"} 2"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn every_family_is_declared_once_and_before_its_samples() {
        let worker = Arc::new(Cells::default());
        worker.route("r").count("GET", None, Duration::ZERO);
        worker.limit("l").allowed.add(1);
        let mut declared: Vec<String> = Vec::new();
        for line in workers(&[worker]).lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap().to_owned();
                assert!(!declared.contains(&name), "{name} twice");
                declared.push(name);
            } else if !line.starts_with('#') {
                let family = declared.last().unwrap();
                assert!(line.starts_with(family.as_str()), "{line} in {family}");
            }
        }
    }

    #[test]
    fn seconds_have_no_needless_digits() {
        for (us, expected) in
            [(0, "0"), (100, "0.0001"), (2_500_000, "2.5"), (10_000_000, "10"), (1, "0.000001")]
        {
            assert_eq!(seconds(us), expected);
        }
    }
}
