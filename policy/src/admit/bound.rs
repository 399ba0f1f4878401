//! What a limit promises, in words and numbers, for operators.

use super::limit::{Kind, LimitSpec, calendar};
use crate::mechanism::calendar::Period;
use crate::mechanism::lease::LEASE;
use crate::unit::{Rate, Span};

/// A limit as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    pub name: String,
    pub kind: &'static str,
    /// What is counted apart.
    pub key: Vec<String>,
    pub rate: String,
    /// The most at once.
    pub quota: u32,
    /// In seconds, the time in which a limit that is used up is whole again.
    pub window_seconds: u64,
    pub shadow: bool,
    pub default: bool,
    /// Never more than this, whatever the timing.
    pub bound: String,
    /// The most that is admitted beyond that each time that the store loses something unseen.
    pub over_max: u64,
    /// The most that is admitted beyond that in each minute in which the store can't be asked,
    /// over all gateways and for each key. None: as many as come.
    pub lost_per_minute: Option<u64>,
}

impl Promise {
    pub(crate) fn of(
        name: &str,
        spec: &LimitSpec,
        quota: u32,
        window: core::time::Duration,
        store: Option<Stored>,
    ) -> Self {
        let key = if spec.key.is_empty() { vec!["ip".to_owned()] } else { spec.key.clone() };
        Self {
            name: name.to_owned(),
            kind: spec.kind.name(),
            key,
            rate: spec.rate.to_string(),
            quota,
            window_seconds: window.as_secs() + u64::from(window.subsec_nanos() > 0),
            shadow: spec.shadow,
            default: spec.default,
            bound: bound(spec, quota, store),
            over_max: store.and_then(|store| store.unseen).map_or(0, u64::from),
            lost_per_minute: store.map_or(Some(0), |store| store.loss.per_minute()),
        }
    }
}

fn bound(spec: &LimitSpec, quota: u32, store: Option<Stored>) -> String {
    let (rate, window) = (spec.rate, Span(spec.rate.period()));
    let words = match spec.kind {
        Kind::Bucket => {
            let within = u64::from(quota).saturating_add(rate.tokens().get());
            format!("at most {quota} at once and {within} in any {window}")
        }
        Kind::Leaky => {
            let wait = spec.max_wait.map(|wait| wait.to_string()).unwrap_or_default();
            format!("{} apart, at most {quota} waiting, none longer than {wait}", apart(rate))
        }
        Kind::Fixed => {
            let twice = u64::from(quota) * 2;
            format!("at most {quota} in each {window}, {twice} in {window} across an edge")
        }
        Kind::Sliding => format!("at most {quota} in any {window}"),
        Kind::Quota => {
            let period = match calendar(spec.rate.period()) {
                Some(Period::Hour) => "hour",
                Some(Period::Day) => "day",
                Some(Period::Month) | None => "month",
            };
            format!("at most {quota} in each {period} (UTC)")
        }
    };
    let enforced = if spec.shadow { "not enforced: " } else { "" };
    let busy = spec
        .busy
        .as_ref()
        .map(|busy| format!("while more than {} come to route {}: ", busy.above, busy.route));
    let keys = spec.heaviest.map(|keys| format!("the {keys} heaviest keys, each: "));
    let (busy, keys) = (busy.unwrap_or_default(), keys.unwrap_or_default());
    let words = format!("{busy}{keys}{words}");
    match store {
        None => format!("{enforced}{words}; 0 over, over all workers of this node"),
        Some(Stored { loss, unseen }) => {
            let hidden =
                |most| format!("; at most {most} more after a restart that its proxy hides");
            let (loss, hidden) = (loss.words(), unseen.map(hidden).unwrap_or_default());
            let away = format!("0 over, over all gateways while Redis answers{hidden}; {loss}");
            format!("{enforced}{words}; {away}")
        }
    }
}

/// What a store has to do with the bound of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) loss: Loss,
    /// It should notice when the store loses something, and can't: this much may be over then.
    pub(crate) unseen: Option<u32>,
}

/// How many requests of a route may be in progress, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacesPromise {
    pub route: String,
    /// What is counted apart. Empty: nothing is.
    pub key: Vec<String>,
    pub max: u32,
    pub bound: String,
    /// The most beyond `max`, for each key, while gateways can't reach the store. None: as many as
    /// come.
    pub over_max: Option<u64>,
}

/// Requests in progress on gateways that can't reach the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutOff {
    pub(crate) nodes: u32,
    /// At most, of those admitted before.
    pub(crate) before: u64,
    /// At most, of those admitted since. None: as many as come.
    pub(crate) alone: Option<u64>,
}

impl PlacesPromise {
    pub(crate) fn of(route: &str, key: &[String], max: u32, store: Option<CutOff>) -> Self {
        let (bound, over_max) = match store {
            None => ("0 over, over all workers of this node".to_owned(), Some(0)),
            Some(CutOff { nodes, before, alone }) => {
                let alone =
                    alone.map_or_else(|| "as many as come".to_owned(), |n| format!("{n} at most"));
                let bound = format!(
                    "0 over, over all gateways while each reaches Redis; what is in progress on one \
                     that has not for {} counts no longer, at most {before} on {nodes} gateways; \
                     admitted meanwhile: {alone}",
                    Span(LEASE)
                );
                (bound, store.and_then(|cut| Some(cut.before + cut.alone?)))
            }
        };
        let bound = format!("at most {max} in progress; {bound}");
        Self { route: route.to_owned(), key: key.to_vec(), max, bound, over_max }
    }
}

/// What may be admitted beyond the bound while the store can't be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    /// As many as come.
    Unbounded,
    /// A minute, when some gateways have lost it and others have not, or have just spent all.
    PerMinute(u64),
}

impl Loss {
    const fn per_minute(self) -> Option<u64> {
        match self {
            Self::Nothing => Some(0),
            Self::Unbounded => None,
            Self::PerMinute(n) => Some(n),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Nothing => "nothing more while it is away".to_owned(),
            Self::Unbounded => "without bound while it is away".to_owned(),
            Self::PerMinute(n) => format!("at most {n} more per minute while it is away"),
        }
    }
}

fn apart(rate: Rate) -> String {
    let ns = rate.period().as_nanos().div_ceil(u128::from(rate.tokens().get()));
    Span(core::time::Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))).to_string()
}
