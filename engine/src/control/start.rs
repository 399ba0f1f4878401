//! From an order to serving: everything that can be refused is refused before the first worker
//! runs.

use std::net::TcpListener;
use std::num::NonZeroU16;
use std::sync::Arc;

use core_affinity::CoreId;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use rustix::process::Resource;
use rustix::rand::{GetRandomFlags, getrandom};
use sluice_config::Io;
use sluice_policy::ledger::Ledger;
use tokio::sync::mpsc;

use super::bind::Claim;
use super::desk::{Desk, Standing};
use super::ears::Ears;
use super::fleet::{Fleet, Supply};
use super::socket::{self, Place};
use super::source::{Loaded, Source};
use super::steward::{Inputs, Steward};
use super::{gauge, switchboard, vitals};
use crate::admin;
use crate::clock::Clock;
use crate::event::{self, event};
use crate::exit::{Exit, Failure};
use crate::observe::journal::journal;
use crate::observe::writer::{Pen, Sink};
use crate::observe::{exposition, process};
use crate::runtime::{Driver, Wanted};
use crate::store::{Setting, Store};
use crate::worker::descriptors::Share;
use crate::worker::{self, Generation, Seat, Wake};

/// What the command line asked for.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) source: Source,
    pub(crate) control: Place,
    /// Rather than what the configuration says.
    pub(crate) driver: Option<Wanted>,
    /// Rather than what the configuration says.
    pub(crate) workers: Option<NonZeroU16>,
    /// Sample services to offer from the control thread.
    pub(crate) samples: Vec<(TcpListener, axum::Router)>,
    /// Said before `ready`.
    pub(crate) notes: String,
    pub(crate) colour: bool,
}

/// Serve until told to stop. Returns only when serving could not begin.
pub(crate) fn run(order: Order) -> Failure {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return Failure::io("the control thread could not be set up", &e),
    };
    let failure = runtime.block_on(async {
        match start(order, |seat| worker::run(seat)).await {
            Ok(steward) => match steward.serve().await {},
            Err(failure) => failure,
        }
    });
    // A name lookup may still be waiting for an answer; the process does not wait for it.
    std::mem::forget(runtime);
    failure
}

async fn start(order: Order, body: fn(Seat)) -> Result<Steward, Failure> {
    // Before anything else: a signal must not find its default, which is death.
    let mut ears = Ears::open().map_err(|e| Failure::io("signals", &e))?;
    event::report_panics();
    let loaded = tokio::select! {
        loaded = order.source.load(order.colour) => loaded?,
        // A name lookup may take a minute.
        () = ears.stop() => return Err(Failure::new(Exit::Done, "stopped before it was ready")),
    };
    if !loaded.warnings.is_empty() {
        eprintln!("{}", loaded.warnings);
    }
    // std has set SIGPIPE to be ignored before main: a write to a closed socket is an error.
    raise_descriptor_limit();

    let claims = claim(&loaded)?;
    let admin = loaded.config.admin.listen.map(Claim::new).transpose()?;
    let admin = admin.map(|claim| Ok((claim.address, claim.listen()?))).transpose()?;
    let (door, file) = socket::bind(&order.control)?;

    let (journal, lines) = journal();
    let to = &loaded.config.log.access.to;
    let sink = Sink::open(to).map_err(|e| Failure::io("access log", &e))?;
    let prometheus = recorder();
    let pen = Pen::start(lines, to, sink).map_err(|e| Failure::io("access log", &e))?;

    let (news, heard) = mpsc::unbounded_channel();
    let (asks, asked) = mpsc::unbounded_channel();
    let clock = Clock::start();
    let server = &loaded.config.server;
    let ledger = Arc::new(Ledger::new(server.limit_keys as usize, secret()?));
    let wake = Arc::<Wake>::default();
    let cores = seats(order.workers.or(server.workers));
    let supply = Supply {
        share: share(cores.len(), claims.len()),
        wanted: order.driver.unwrap_or_else(|| wanted(server.io)),
        addresses: claims.iter().map(|claim| claim.address).collect(),
        ledger: Arc::clone(&ledger),
        wake: Arc::clone(&wake),
        clock,
        journal,
        news: news.clone(),
        body,
    };
    let standing = Standing::starting(
        order.source.name(),
        admin.as_ref().map(|(address, _)| *address),
        loaded.token,
    );
    let setting = Setting { plan: Arc::clone(&loaded.config.plan), client: loaded.store };
    let store = Store::start(ledger, clock, wake, setting);
    let generation = Generation { number: 1, config: loaded.config, addresses: loaded.addresses };
    let fleet = Fleet::start(supply, Arc::new(generation), &cores)?;
    drop(claims);
    let desk = Arc::new(Desk::new(clock, prometheus, fleet, store, standing, asks));
    tokio::spawn(vitals::keep(Arc::clone(&desk)));
    tokio::spawn(switchboard::keep(Arc::clone(&desk)));
    tokio::spawn(gauge::keep(Arc::clone(&desk)));
    admin::serve_control(Arc::clone(&desk), door)?;
    if let Some((address, listener)) = admin {
        admin::serve_tcp(Arc::clone(&desk), address, listener)?;
    }
    for (listener, app) in order.samples {
        admin::serve_app(listener, app)?;
    }
    let inputs = Inputs { ears, news: (news, heard), asked };
    Ok(Steward::new(desk, inputs, pen, order.source, file, order.notes))
}

/// Every listen address, held until the workers listen.
fn claim(loaded: &Loaded) -> Result<Vec<Claim>, Failure> {
    loaded.config.server.listen.iter().map(|listen| Claim::new(listen.addr)).collect()
}

fn wanted(io: Io) -> Wanted {
    match io {
        Io::Auto => Wanted::Auto,
        Io::Uring => Wanted::Uring,
        Io::Epoll => Wanted::Only(Driver::Epoll),
    }
}

/// One entry per worker: a core of its own among those that this process may use. More workers
/// than cores are left to the scheduler: two pinned to one core would starve each other.
fn seats(asked: Option<NonZeroU16>) -> Vec<Option<CoreId>> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let workers = asked.map_or_else(|| cores.len().max(1), |n| usize::from(n.get()));
    if workers > cores.len() {
        return vec![None; workers];
    }
    cores.into_iter().take(workers).map(Some).collect()
}

/// A connection is a descriptor, and so is its upstream's. The soft limit is 1024 on most
/// systems, for the sake of programs that use select(2).
fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(e) = rustix::process::setrlimit(Resource::Nofile, limit) {
        event!("descriptor_limit_not_raised", why = e.to_string());
    }
}

/// Of what the process may still open, once the control thread has what it needs.
fn share(workers: usize, listeners: usize) -> Share {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    Share::of(limit, process::open_descriptors().unwrap_or(0), workers, listeners)
}

/// Keys the hash of limit keys, so that clients can't choose which of them collide.
fn secret() -> Result<[u8; 16], Failure> {
    let mut secret = [0; 16];
    // Up to 256 bytes come whole once the pool is ready.
    match getrandom(&mut secret, GetRandomFlags::empty()) {
        Ok(n) if n == secret.len() => Ok(secret),
        Ok(_) => Err(Failure::new(Exit::Failed, "getrandom: too few bytes")),
        Err(e) => Err(Failure::io("getrandom", &e.into())),
    }
}

/// Where the control thread's own figures go.
fn recorder() -> PrometheusHandle {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    // A second one in a process happens in tests only: its figures are then the first one's.
    let _ = metrics::set_global_recorder(recorder);
    exposition::describe();
    handle
}
