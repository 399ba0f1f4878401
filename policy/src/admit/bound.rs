//! What a limit promises, in words and numbers, for operators.

use super::limit::{Kind, LimitSpec, calendar};
use crate::mechanism::calendar::Period;
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
        lost: Option<Loss>,
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
            bound: bound(spec, quota, lost),
            lost_per_minute: lost.map_or(Some(0), Loss::per_minute),
        }
    }
}

fn bound(spec: &LimitSpec, quota: u32, lost: Option<Loss>) -> String {
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
    match lost {
        None => format!("{enforced}{words}; 0 over, over all workers of this node"),
        Some(lost) => {
            let lost = lost.words();
            format!("{enforced}{words}; 0 over, over all gateways while Redis answers; {lost}")
        }
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
