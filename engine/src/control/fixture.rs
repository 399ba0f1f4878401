//! A control thread's world for tests: workers that are not, real everything else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use metrics_exporter_prometheus::PrometheusBuilder;
use sluice_policy::ledger::Ledger;
use tokio::sync::mpsc;

use super::bind::Claim;
use super::desk::{Ask, Desk, Standing};
use super::fleet::{Fleet, Supply};
use super::source::{Loaded, Source};
use crate::clock::Clock;
use crate::observe::journal::journal;
use crate::runtime::{Driver, Fallen, Wanted};
use crate::store::{Setting, Store};
use crate::worker::descriptors::Share;
use crate::worker::{Generation, Message, News, Seat};

const TOML: &str = r#"
version = 1
[server]
listen = ["127.0.0.1:0"]
[upstream.app]
servers = ["127.0.0.1:9"]
[route.all]
match = "/{*rest}"
to = "app"
"#;

pub(crate) async fn loaded(toml: &str) -> Loaded {
    let source = Source::Text { name: "test", text: toml.to_owned() };
    source.load(false).await.unwrap()
}

pub(crate) async fn fleet(
    workers: usize,
    body: fn(Seat),
) -> (Fleet, mpsc::UnboundedReceiver<News>) {
    let (news, heard) = mpsc::unbounded_channel();
    let claim = Claim::new(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let supply = Supply {
        wanted: Wanted::Auto,
        addresses: vec![claim.address],
        share: Share::of(None, 0, workers, 1),
        ledger: Arc::new(Ledger::new(1024, [0; 16])),
        wake: Arc::default(),
        clock: Clock::start(),
        journal: journal().0,
        news,
        body,
    };
    let Loaded { config, addresses, .. } = loaded(TOML).await;
    let generation = Arc::new(Generation { number: 1, config, addresses });
    (Fleet::start(supply, generation, &vec![None; workers]).unwrap(), heard)
}

pub(crate) fn desk(fleet: Fleet) -> (Desk, mpsc::UnboundedReceiver<Ask>) {
    let (asks, asked) = mpsc::unbounded_channel();
    let prometheus = PrometheusBuilder::new().build_recorder().handle();
    let standing = Standing::starting("test".to_owned(), None, None);
    let ledger = Arc::new(Ledger::new(1024, [0; 16]));
    let plan = Arc::clone(&fleet.generation().config.plan);
    let setting = Setting { plan, client: None };
    let store = Store::start(ledger, Clock::start(), Arc::default(), setting);
    (Desk::new(Clock::start(), prometheus, fleet, store, standing, asks), asked)
}

/// Starts, and does what it is told without serving anybody.
pub(crate) fn obedient(seat: Seat) {
    let why = "not on this kernel".to_owned();
    let fallen = vec![Fallen { driver: Driver::UringDefer, why }];
    let _ = seat.news.send(News::Started { worker: seat.index, driver: Driver::Epoll, fallen });
    while let Ok(message) = seat.inbox.messages.recv() {
        match message {
            Message::Drain => {
                let _ = seat.news.send(News::Ended { worker: seat.index });
            }
            Message::Adopt(generation) => {
                seat.cells.route(&format!("adopted-{}", generation.number));
            }
            Message::Vitals(_) | Message::Switches(_) | Message::Purge(_) => {}
            Message::Inspect(tell) => {
                let snapshot =
                    sluice_policy::world::Snapshot { in_flight: 7, ..Default::default() };
                let _ = tell.send(snapshot);
            }
        }
    }
}

/// Serves one moment, then unwinds.
pub(crate) fn mortal(seat: Seat) {
    seat.cells.connections_open.add(3);
    seat.cells.connections_total.add(3);
    std::panic::resume_unwind(Box::new("a worker's bug"));
}

/// The first two are mortal, and their successors obedient. For one test: it counts the process's.
pub(crate) fn two_die(seat: Seat) {
    static BORN: AtomicU32 = AtomicU32::new(0);
    match BORN.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => mortal(seat),
        _ => obedient(seat),
    }
}
