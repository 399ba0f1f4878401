//! Whether a request may go on: the filters, in order.
//!
//! To add one: write `admit/your_filter.rs` beside the others, and add its line to `filters!`.

pub mod addresses;
pub mod associated;
pub mod bound;
pub mod concurrency;
pub mod heavy;
pub mod key;
pub mod limit;
pub(crate) mod named;
pub mod overrides;
mod places;
pub mod rate_limit;
pub mod shared;
pub mod size;
pub(crate) mod terms;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::admit::named::{Limits, Whose};
use crate::decision::{Answer, Need};
use crate::facts::Facts;
use crate::flight::{Flight, Step};
use crate::ledger::Ledger;
use crate::plan::{Problem, RouteId, RouteKey};
use crate::time::{Instant, Now};

/// One reason to stop a request.
///
/// `Spec` is what an operator writes, `Rule` is what it means, `Self` is what a worker remembers
/// beyond the ledger. Rules belong to the plan and are shared; memory belongs to one worker. The
/// chain joins them, so a filter is only asked about routes that have a rule, and a reload keeps
/// its memory.
pub trait Filter: Default {
    type Spec: DeserializeOwned + core::fmt::Debug;
    type Rule: core::fmt::Debug;

    /// Checks what was written. A `Rule` cannot hold a bad value. Problems are pushed with paths
    /// below the filter's own key (`[1]`, `.body`, or nothing).
    fn compile(spec: Self::Spec, context: &mut Context<'_>) -> Option<Self::Rule>;

    /// Judges. Called again after `Verdict::Need`, with the fact in place. Whatever it takes and
    /// must give back goes into the flight, and is given back in `end`.
    fn check(&mut self, ask: &Ask<'_>, rule: &Self::Rule, flight: &mut Flight) -> Verdict;

    /// A later filter refuses what this one has passed just now: nothing was used of what it took.
    fn undo(&mut self, _ask: &Ask<'_>, _rule: &Self::Rule, _flight: &mut Flight) {}

    /// A request that passed `check` is over. Called exactly once for each pass.
    fn end(&mut self, _ledger: &Ledger, _rule: &Self::Rule, _flight: &mut Flight) {}
}

/// What a filter is compiled in.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) route: RouteKey,
    pub(crate) limits: &'a Limits,
    /// Who has said which limits count.
    pub(crate) whose: Whose,
    pub(crate) path: String,
    pub(crate) problems: &'a mut Vec<Problem>,
}

impl Context<'_> {
    /// Reports a problem below the filter's key.
    pub(crate) fn problem(&mut self, below: &str, message: String, hint: Option<String>) {
        self.problems.push(Problem { path: format!("{}{below}", self.path), message, hint });
    }
}

impl Rules {
    /// The limits of a route.
    pub(crate) fn limits_of(&self, route: RouteId) -> Option<&rate_limit::Rule> {
        self.limits.get(route.index())?.as_ref()
    }
}

impl Chain {
    pub(crate) fn tick(&mut self, ledger: &Ledger, limits: &Limits, now: Instant) {
        self.limits.watches.tick(ledger, limits, now);
    }

    /// The heaviest keys of the limits that watch them.
    pub(crate) fn top(&self, limits: &Limits) -> Vec<heavy::TopKey> {
        self.limits.watches.top(limits)
    }
}

/// What a filter is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub now: Now,
    pub facts: &'a Facts<'a>,
    pub route: RouteKey,
    pub(crate) ledger: &'a Ledger,
    pub(crate) limits: &'a Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    Pass,
    Deny(Answer),
    Need(Need),
    /// Ask again then: the store is being asked for tokens.
    Park(Instant),
}

impl Verdict {
    /// The verdict of a filter that counts nothing, noted in the trail.
    pub(crate) fn noted(self, flight: &mut Flight, filter: &'static str) -> Self {
        let passed = self == Self::Pass;
        flight.trail.push(Step { filter, rule: None, passed, left: None });
        self
    }
}

/// Declares the filters, in the order they are asked: cheap and certain first, costly last.
macro_rules! filters {
    ($(#[doc = $doc:literal] $name:ident: $filter:ty,)+) => {
        /// What an operator may write in a route to turn filters on.
        #[derive(Debug, Default, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields, default)]
        pub struct Specs {
            $(#[doc = $doc] pub $name: Option<<$filter as Filter>::Spec>,)+
        }

        /// The rules of every route, per filter.
        #[derive(Debug, Default)]
        pub(crate) struct Rules {
            $($name: Vec<Option<<$filter as Filter>::Rule>>,)+
        }

        /// The filters' memory. One per worker.
        #[derive(Debug, Default)]
        pub(crate) struct Chain {
            $($name: $filter,)+
        }

        /// Name and one line of each filter, in order, for the docs, the schema and the console.
        pub const FILTERS: &[(&str, &str)] = &[$((stringify!($name), $doc.trim_ascii()),)+];

        impl Rules {
            /// Those of `concurrency`, route by route.
            pub(crate) fn concurrency(&self) -> impl Iterator<Item = Option<&concurrency::Rule>> {
                self.concurrency.iter().map(Option::as_ref)
            }

            /// Adds the next route. `path` is where it is written.
            pub(crate) fn push(
                &mut self,
                specs: Specs,
                route: RouteKey,
                path: &str,
                (limits, whose): (&Limits, Whose),
                problems: &mut Vec<Problem>,
            ) {
                $(self.$name.push(specs.$name.and_then(|spec| {
                    let path = format!("{path}.{}", stringify!($name));
                    let mut context = Context { route, limits, whose, path, problems };
                    <$filter as Filter>::compile(spec, &mut context)
                }));)+
            }
        }

        impl Chain {
            /// Asks the filters from `flight.stage` on, until one does not pass.
            pub(crate) fn check(
                &mut self,
                ask: &Ask<'_>,
                rules: &Rules,
                route: RouteId,
                flight: &mut Flight,
            ) -> Verdict {
                let (from, mut stage) = (flight.stage, 0);
                $(
                    if flight.stage == stage {
                        if let Some(Some(rule)) = rules.$name.get(route.index()) {
                            match self.$name.check(ask, rule, flight) {
                                Verdict::Pass => {}
                                stop @ (Verdict::Need(_) | Verdict::Park(_)) => return stop,
                                stop @ Verdict::Deny(_) => {
                                    self.undo(ask, rules, route, flight, from);
                                    return stop;
                                }
                            }
                        }
                        flight.stage += 1;
                    }
                    stage += 1;
                )+
                debug_assert_eq!(stage, flight.stage);
                Verdict::Pass
            }

            /// Tells each filter that passed this flight since stage `from` that another refused.
            fn undo(
                &mut self,
                ask: &Ask<'_>,
                rules: &Rules,
                route: RouteId,
                flight: &mut Flight,
                from: u8,
            ) {
                let mut stage = 0;
                $(
                    if (from..flight.stage).contains(&stage)
                        && let Some(Some(rule)) = rules.$name.get(route.index())
                    {
                        self.$name.undo(ask, rule, flight);
                    }
                    stage += 1;
                )+
                debug_assert!(flight.stage < stage);
            }

            /// Tells each filter that passed this flight that it is over.
            pub(crate) fn end(
                &mut self,
                ledger: &Ledger,
                rules: &Rules,
                route: RouteId,
                flight: &mut Flight,
            ) {
                let mut stage = 0;
                $(
                    if stage < flight.stage
                        && let Some(Some(rule)) = rules.$name.get(route.index())
                    {
                        self.$name.end(ledger, rule, flight);
                    }
                    stage += 1;
                )+
                debug_assert!(flight.stage <= stage);
            }
        }
    };
}

filters! {
    /// Refuse or admit by client address.
    addresses: addresses::Addresses,
    /// Bound the size of a request.
    size: size::Size,
    /// Bound the rate of requests, by the named limits.
    limits: rate_limit::RateLimit,
    /// Bound how many requests are in progress at once.
    concurrency: concurrency::Concurrency,
}
