//! Bound how many requests are in progress at once, over all workers.

use serde::Deserialize;

use super::bound::PlacesPromise;
use super::key::{Key, PARTS};
use super::places::Places;
use super::shared::{Lost, StoreName};
use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::flight::{Flight, Step};
use crate::ledger::Ledger;
use crate::mechanism::lease::Terms;
use crate::plan::stable_hash;

/// Far above any node's connections, and low enough that counts never overflow.
const MAX: u32 = 1 << 24;

#[derive(Debug, Default)]
pub struct Concurrency;

/// `concurrency = { max = 100 }`
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConcurrencySpec {
    /// The most requests in progress at once, from arrival to the last byte. More are answered
    /// 503.
    pub max: u32,
    /// What is counted apart, as in a limit. Default: nothing, so the whole route is one count.
    #[serde(default)]
    pub key: Vec<String>,
    /// Where it is counted: `redis` is over all gateways that share the Redis of `[store.redis]`.
    /// Default: in this process.
    #[serde(default)]
    pub store: Option<StoreName>,
    /// What to do while the store can't be asked: `open` lets everything through, `closed` refuses
    /// everything new, `local` counts this gateway's share (`max` divided by `store.redis.nodes`).
    /// Default `local`.
    #[serde(default)]
    pub lost: Option<Lost>,
}

#[derive(Debug)]
pub struct Rule {
    rule: u64,
    key: Key,
    /// As written.
    parts: Vec<String>,
    max: u32,
    shared: Option<Places>,
}

impl Rule {
    /// Counted over several gateways: under which rule, and how.
    pub(crate) fn shared(&self) -> Option<(u64, Terms)> {
        Some((self.rule, self.shared.as_ref()?.terms))
    }

    pub(crate) fn promise(&self, route: &str) -> PlacesPromise {
        let store = self.shared.as_ref().map(Places::cut_off);
        PlacesPromise::of(route, &self.parts, self.max, store)
    }
}

impl Filter for Concurrency {
    type Spec = ConcurrencySpec;
    type Rule = Rule;

    fn compile(spec: ConcurrencySpec, context: &mut Context<'_>) -> Option<Rule> {
        if !(1..=MAX).contains(&spec.max) {
            let hint = Some(format!("write a number from 1 to {MAX}"));
            context.problem(".max", format!("at most {} at once", spec.max), hint);
        }
        let key = Key::parse(&spec.key).unwrap_or_else(|unread| {
            for i in unread {
                let message = format!("nothing is called `{}`", spec.key[i]);
                context.problem(&format!(".key[{i}]"), message, Some(PARTS.to_owned()));
            }
            Key::default()
        });
        let shared = Places::compile(&spec, context);
        let route = context.route.0.to_string();
        let rule = stable_hash(&["concurrency", &route]);
        Some(Rule { rule, key, parts: spec.key, max: spec.max, shared })
    }

    fn check(&mut self, ask: &Ask<'_>, rule: &Rule, flight: &mut Flight) -> Verdict {
        let key = rule.key.of(rule.rule, ask.ledger, ask);
        if let Some(places) = &rule.shared {
            return places.check(ask, key, || rule.key.name(rule.rule, ask), flight);
        }
        let permit = ask.ledger.acquire(key, rule.max);
        let (passed, left) = (permit.is_some(), permit.as_ref().map_or(0, |(_, left)| *left));
        flight.trail.push(Step { filter: "concurrency", rule: None, passed, left: Some(left) });
        flight.permit = permit.map(|(permit, _)| permit);
        if passed { Verdict::Pass } else { refused() }
    }

    fn end(&mut self, ledger: &Ledger, _: &Rule, flight: &mut Flight) {
        if let Some(permit) = flight.permit.take() {
            ledger.release(permit);
        }
        if let Some(occupied) = flight.occupied.take() {
            ledger.leases.vacate(occupied);
        }
    }
}

pub(super) fn refused() -> Verdict {
    Verdict::Deny(Answer::problem(503, "concurrency.exceeded"))
}
