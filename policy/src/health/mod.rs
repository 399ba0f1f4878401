//! Which servers are well: when to ask, and what the answers mean.
//!
//! Servers are asked once for the whole node, never on the path of a request. So this memory is
//! not a worker's but the node's: whoever asks owns one [`Watch`], carries out its effects, and
//! tells every worker which endpoints are out ([`Signal::Vitals`]).

mod check;
mod standing;

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use self::check::Check;
pub use self::check::HealthSpec;
pub use self::standing::{Drained, Place, Reason, Standing, Witness, standings};
use crate::mechanism::dice::Dice;
use crate::plan::{EndpointKey, Plan};
use crate::time::{Instant, Now, Wall, nanos};
use crate::world::{Effect, Signal};

/// One question to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub endpoint: EndpointKey,
    /// Ask for it with GET. None: a connection is all that is wanted.
    pub path: Option<String>,
    pub host: String,
    /// From the first byte to connect with to the last of the answer's head.
    pub timeout: Duration,
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Well,
    Refused,
    Unreachable,
    TimedOut,
    /// Closed or reset before the answer's head was whole.
    Closed,
    /// The answer is not HTTP.
    Malformed,
    /// A status that is not from 200 to 399.
    Status(u16),
}

/// What is known of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vital {
    pub endpoint: EndpointKey,
    pub out: bool,
    /// When it went out or came in; None: it has been as it is from the start.
    pub since: Option<Wall>,
    /// The same, to reckon with.
    pub changed: Option<Instant>,
    /// The latest answers that are alike.
    pub streak: u32,
    pub last: Option<Sign>,
    /// The last that was not [`Sign::Well`].
    pub last_failure: Option<Sign>,
    pub probes_well: u64,
    pub probes_failed: u64,
}

/// The node's judgement of its servers.
///
/// ```text
///      fall failures in a row
///   in ──────────────────────► out       The first answer of all decides alone: a server
///      ◄──────────────────────           that is dead at the start is not sent requests
///      rise good answers in a row        for `fall` times `every`.
/// ```
#[derive(Debug)]
pub struct Watch {
    plan: Arc<Plan>,
    patients: BTreeMap<EndpointKey, Patient>,
    dice: Dice,
}

#[derive(Debug)]
struct Patient {
    check: Check,
    address: String,
    vital: Vital,
    asked: Instant,
    next: Instant,
    asking: bool,
}

/// The first questions are spread over at most this long, so that many servers are not all
/// connected to in one moment.
const SPREAD_MAX: Duration = Duration::from_millis(250);

impl Watch {
    pub fn new(now: Now, plan: Arc<Plan>, seed: u64) -> Self {
        let mut watch =
            Self { plan: Arc::clone(&plan), patients: BTreeMap::new(), dice: Dice::new(seed) };
        watch.adopt(now, plan);
        watch
    }

    /// Watch over the endpoints of this plan. What is known of those that stay, stays.
    pub fn adopt(&mut self, now: Now, plan: Arc<Plan>) {
        let mut known = core::mem::take(&mut self.patients);
        for upstream in plan.upstreams() {
            let Some(check) = &upstream.health else { continue };
            for endpoint in &upstream.endpoints {
                let spread = SPREAD_MAX.min(check.every / 4);
                let soon = now.at + Duration::from_nanos(self.dice.below(nanos(spread)));
                let mut patient = known.remove(&endpoint.key).unwrap_or_else(|| Patient {
                    check: check.clone(),
                    address: endpoint.address.clone(),
                    vital: Vital::new(endpoint.key),
                    asked: soon,
                    next: soon,
                    asking: false,
                });
                if patient.check != *check {
                    // The next answer is to what is asked now.
                    patient.next = soon;
                    patient.check = check.clone();
                }
                self.patients.insert(endpoint.key, patient);
            }
        }
        self.plan = plan;
    }

    /// True: the endpoints that are out are others than before.
    pub fn signal(&mut self, now: Now, signal: Signal<'_>) -> bool {
        let Signal::Probed { endpoint, sign } = signal else { return false };
        let Some(patient) = self.patients.get_mut(&endpoint) else { return false };
        if !core::mem::take(&mut patient.asking) {
            return false;
        }
        let changed = patient.vital.take(sign, now, &patient.check);
        // Up to a tenth less, or the gateways of a fleet would come to ask in step.
        let every = match patient.vital.doubted() {
            true => patient.check.every / 2,
            false => patient.check.every,
        };
        let less = Duration::from_nanos(self.dice.below(nanos(every / 10)));
        patient.next = (patient.asked + every.saturating_sub(less)).max(now.at);
        changed
    }

    /// Errands. Call until None.
    pub fn poll(&mut self, now: Now) -> Option<Effect> {
        let due = |patient: &&mut Patient| !patient.asking && patient.next <= now.at;
        let patient = self.patients.values_mut().find(due)?;
        (patient.asking, patient.asked) = (true, now.at);
        Some(Effect::Probe(Probe {
            endpoint: patient.vital.endpoint,
            path: patient.check.path.clone(),
            host: patient.check.host.as_ref().unwrap_or(&patient.address).clone(),
            timeout: patient.check.timeout,
        }))
    }

    /// When to call `poll` next, unless an answer comes before.
    pub fn deadline(&self) -> Option<Instant> {
        let waiting = self.patients.values().filter(|patient| !patient.asking);
        waiting.map(|patient| patient.next).min()
    }

    /// The endpoints that are out, for [`Signal::Vitals`].
    pub fn out(&self) -> Vec<EndpointKey> {
        self.vitals().filter(|vital| vital.out).map(|vital| vital.endpoint).collect()
    }

    /// Every endpoint that is asked.
    pub fn vitals(&self) -> impl Iterator<Item = &Vital> {
        self.patients.values().map(|patient| &patient.vital)
    }

    pub fn vital(&self, endpoint: EndpointKey) -> Option<&Vital> {
        self.patients.get(&endpoint).map(|patient| &patient.vital)
    }
}

impl Vital {
    const fn new(endpoint: EndpointKey) -> Self {
        Self {
            endpoint,
            out: false,
            since: None,
            changed: None,
            streak: 0,
            last: None,
            last_failure: None,
            probes_well: 0,
            probes_failed: 0,
        }
    }

    /// True: it went out or came in.
    fn take(&mut self, sign: Sign, now: Now, check: &Check) -> bool {
        let well = sign == Sign::Well;
        let first = self.last.is_none();
        let alike = self.last.is_some_and(|last| (last == Sign::Well) == well);
        self.streak = if alike { self.streak.saturating_add(1) } else { 1 };
        self.last = Some(sign);
        if well {
            self.probes_well = self.probes_well.saturating_add(1);
        } else {
            self.last_failure = Some(sign);
            self.probes_failed = self.probes_failed.saturating_add(1);
        }
        let needed = match (first, self.out) {
            (true, _) => 1,
            (false, true) => check.rise,
            (false, false) => check.fall,
        };
        let changed = self.doubted() && self.streak >= needed;
        if changed {
            self.out = !self.out;
            (self.since, self.changed) = (Some(now.wall), Some(now.at));
        }
        changed
    }

    /// The last answer contradicts what is believed.
    fn doubted(&self) -> bool {
        self.last.is_some_and(|last| (last == Sign::Well) == self.out)
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => f.write_str("well"),
            Self::Refused => f.write_str("connect refused"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Closed => f.write_str("closed without an answer"),
            Self::Malformed => f.write_str("the answer is not HTTP"),
            Self::Status(status) => write!(f, "status {status}"),
        }
    }
}

/// Why it is where it is: "3 failed probes, last: connect refused".
impl fmt::Display for Vital {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.last else { return f.write_str("not asked yet") };
        let (kind, s) = (if last == Sign::Well { "good" } else { "failed" }, plural(self.streak));
        write!(f, "{} {kind} probe{s}", self.streak)?;
        match (last, self.last_failure) {
            (Sign::Well, Some(failure)) if self.out => write!(f, ", before: {failure}"),
            (Sign::Well, _) => Ok(()),
            (failure, _) => write!(f, ", last: {failure}"),
        }
    }
}

const fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}
