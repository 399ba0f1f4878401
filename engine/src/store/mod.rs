//! Counts that several gateways share, kept in Redis: the control thread's part.
//!
//! What to ask and what answers mean is policy's ([`Keeper`]); here is the connection, with its
//! losses. Workers never wait for any of it.

mod clerk;
mod client;
pub(crate) mod examine;
mod find;
mod lines;
mod link;
pub(crate) mod overrides;
mod vouch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_config::StoreServer;
use sluice_policy::keeper::{Figures, Keeper, RuleFigures};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::Plan;
use tokio::sync::{mpsc, oneshot};

pub(crate) use client::Client;

use self::overrides::{Unread, Written};
use crate::clock::Clock;
use crate::worker::Wake;

/// What everybody else has of the store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    orders: mpsc::UnboundedSender<Order>,
    report: Arc<Mutex<Report>>,
}

/// To the clerk.
#[derive(Debug)]
pub(crate) enum Order {
    Adopt(Box<Setting>),
    /// Give back what is held; tell when that is done.
    Farewell(oneshot::Sender<()>),
    /// One key's own numbers; none: the limit's again.
    Override {
        field: String,
        value: Option<String>,
        tell: oneshot::Sender<Result<(), String>>,
    },
}

/// What a configuration says of the store.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) plan: Arc<Plan>,
    /// None: there is no store.
    pub(crate) client: Option<Client>,
}

/// How the store does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) state: State,
    pub(crate) figures: Figures,
    /// Those that hold something.
    pub(crate) servers: Vec<StoreServer>,
    pub(crate) rules: Vec<RuleFigures>,
    /// Keys that have numbers of their own, as written, and what could not be read of that.
    pub(crate) overrides: Written,
    pub(crate) unread: Unread,
    /// How often it was lost.
    pub(crate) losses: u64,
    pub(crate) why: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// No limit needs one.
    #[default]
    Off,
    Connecting,
    Up,
    /// Each limit does what it says for that.
    Lost,
}

/// How long the end of a drain waits for tokens to be given back.
const FAREWELL: Duration = Duration::from_millis(200);

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Lost => "lost",
        }
    }
}

impl Store {
    /// Starts the clerk.
    pub(crate) fn start(
        ledger: Arc<Ledger>,
        clock: Clock,
        wake: Arc<Wake>,
        setting: Setting,
    ) -> Self {
        let (orders, ordered) = mpsc::unbounded_channel();
        let report = Arc::new(Mutex::new(Report::default()));
        let keeper = Keeper::new(ledger);
        let clerk = clerk::Clerk::new(keeper, clock, wake, Arc::clone(&report), setting);
        tokio::spawn(clerk.work(ordered));
        Self { orders, report }
    }

    pub(crate) fn adopt(&self, setting: Setting) {
        // The clerk works as long as the process does.
        let _ = self.orders.send(Order::Adopt(Box::new(setting)));
    }

    /// Gives back what this node holds, as far as that can be done in a moment.
    pub(crate) async fn farewell(self) {
        let (tell, told) = oneshot::channel();
        if self.orders.send(Order::Farewell(tell)).is_ok() {
            let _ = tokio::time::timeout(FAREWELL, told).await;
        }
    }

    /// Writes one key's own numbers into the store, for every gateway.
    pub(crate) async fn set_override(
        self,
        field: String,
        value: Option<String>,
    ) -> Result<(), String> {
        let (tell, told) = oneshot::channel();
        let away = || "there is no store to write it to".to_owned();
        self.orders.send(Order::Override { field, value, tell }).map_err(|_| away())?;
        told.await.map_err(|_| away())?
    }

    pub(crate) fn report(&self) -> Report {
        locked(&self.report).clone()
    }
}

fn locked(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}
