//! What the control thread knows and may be asked: the one thing that the control loop and the
//! admin API share. Both run on the control thread, so no lock is ever waited for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use sluice_policy::health::Watch;
use sluice_policy::time::Now;
use sluice_policy::world::Effect;
use tokio::sync::{Notify, mpsc, oneshot};

use super::fleet::Fleet;
use super::source::Token;
use super::switchboard::Switchboard;
use crate::clock::{self, Clock, WallOffset};
use crate::exit::Failure;
use crate::ids::Ids;
use crate::store::Store;
use crate::worker::Generation;

#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) clock: Clock,
    /// Since 1970.
    pub(crate) started: Duration,
    pub(crate) prometheus: PrometheusHandle,
    pub(crate) store: Store,
    fleet: Mutex<Fleet>,
    watch: Mutex<Watch>,
    /// The watch has taken up another plan.
    pub(crate) adopted: Notify,
    switchboard: Mutex<Switchboard>,
    pub(crate) switched: Notify,
    standing: Mutex<Standing>,
    asks: mpsc::UnboundedSender<Ask>,
}

/// How things stand.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) phase: Phase,
    /// What messages call the configuration's source.
    pub(crate) source: String,
    pub(crate) admin: Option<SocketAddr>,
    /// When the configuration that serves was taken up, since 1970.
    pub(crate) adopted: Duration,
    /// The last reload failed: when, and why. What serves is older than the source.
    pub(crate) refused: Option<(Duration, String)>,
    pub(crate) token: Option<Token>,
    pub(crate) restarts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Serving,
    Draining,
}

/// What the admin API asks of the control loop.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Answered by the number of the configuration that serves then.
    Reload(oneshot::Sender<Result<u64, Failure>>),
}

impl Phase {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }
}

impl Standing {
    pub(crate) fn starting(
        source: String,
        admin: Option<SocketAddr>,
        token: Option<Token>,
    ) -> Self {
        let (phase, adopted) = (Phase::Starting, clock::since_1970());
        Self { phase, source, admin, adopted, refused: None, token, restarts: 0 }
    }
}

impl Desk {
    pub(crate) fn new(
        clock: Clock,
        prometheus: PrometheusHandle,
        fleet: Fleet,
        store: Store,
        standing: Standing,
        asks: mpsc::UnboundedSender<Ask>,
    ) -> Self {
        let started = clock::since_1970();
        let plan = Arc::clone(&fleet.generation().config.plan);
        let now = WallOffset::read(clock).now(clock.at());
        Self {
            clock,
            started,
            prometheus,
            store,
            fleet: Mutex::new(fleet),
            watch: Mutex::new(Watch::new(now, plan, Ids::new().draw())),
            adopted: Notify::new(),
            switchboard: Mutex::default(),
            switched: Notify::new(),
            standing: Mutex::new(standing),
            asks,
        }
    }

    pub(crate) fn now(&self) -> Now {
        WallOffset::read(self.clock).now(self.clock.at())
    }

    /// Not to be held across an await.
    pub(crate) fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not to be held across an await.
    pub(crate) fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not to be held across an await.
    pub(crate) fn switchboard(&self) -> MutexGuard<'_, Switchboard> {
        self.switchboard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take_errand(&self, now: Now) -> Option<Effect> {
        self.watch().poll(now)
    }

    /// Every worker, and the watch over the servers, goes on by this.
    pub(crate) fn adopt(&self, generation: Arc<Generation>) {
        let plan = Arc::clone(&generation.config.plan);
        self.fleet().adopt(generation);
        let out = {
            let mut watch = self.watch();
            watch.adopt(self.now(), plan);
            watch.out()
        };
        self.fleet().tell_vitals(out.into());
        self.adopted.notify_one();
    }

    /// Something was switched: tell the workers, and look anew when the next switch ends.
    pub(crate) fn switch(&self) {
        let switches = self.switchboard().switches();
        self.fleet().tell_switches(Arc::new(switches));
        self.switched.notify_one();
    }

    /// Not to be held across an await.
    pub(crate) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None: the process is about to end.
    pub(crate) async fn reload(&self) -> Option<Result<u64, Failure>> {
        let (tell, told) = oneshot::channel();
        self.asks.send(Ask::Reload(tell)).ok()?;
        told.await.ok()
    }
}
