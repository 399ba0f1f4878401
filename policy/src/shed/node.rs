//! The node's own protection: how near it is to its bounds, and what is shed then.
//!
//! Pressure is the worst signal, as a share of its bound. From 80% on what is low is shed, from
//! 90% what is normal, at the bound what is high; what is critical never. Lag, processor and load
//! answer late, so what they shed grows while they stand above a threshold, and goes back within
//! a second when they have fallen below nine tenths of it: a share of a class, not all or none.
//! What is in progress answers at once, and is a plain bound.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use super::Priority;
use crate::mechanism::dice::Dice;
use crate::time::nanos;

/// What the node measures once for all workers.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Requests in progress, as the workers have told.
    in_flight: AtomicU32,
    /// Of all processors of the machine.
    cpu_permille: AtomicU32,
    /// The machine's, over a minute.
    load_permille: AtomicU32,
}

/// Bounds of the node; what is not there bounds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) lag: Option<Duration>,
    pub(crate) in_flight: Option<u32>,
    pub(crate) cpu_permille: Option<u32>,
    pub(crate) load: Option<u32>,
}

/// What is at its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Lag,
    InFlight,
    Cpu,
    Load,
}

impl Signal {
    pub const ALL: [Self; 4] = [Self::Lag, Self::InFlight, Self::Cpu, Self::Load];

    /// As metrics call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lag => "lag",
            Self::InFlight => "in_flight",
            Self::Cpu => "cpu",
            Self::Load => "load",
        }
    }

    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Lag => "shed.lag",
            Self::InFlight => "shed.in_flight",
            Self::Cpu => "shed.cpu",
            Self::Load => "shed.load",
        }
    }
}

/// The classes that may be shed, and at how many thousandths of a bound.
const CLASSES: [(Priority, u64); 3] =
    [(Priority::Low, 800), (Priority::Normal, 900), (Priority::High, 1000)];
/// All of a class.
const ALL: u16 = 256;
/// What grows in a tick: all of a class in four ticks by lag, in a second by what is measured once
/// a second.
const GROWS: u16 = 64;
const GROWS_SLOWLY: u16 = 5;
/// What goes back in a tick: all within a second.
const SHRINKS: u16 = 5;
/// One late tick is the scheduler's; so many in a row are not.
const LAGS: usize = 4;

/// One worker's part of it.
#[derive(Debug)]
pub(crate) struct Watcher {
    lags: [Duration; LAGS],
    next: usize,
    /// What is shed of each class, in 256ths.
    shares: [u16; CLASSES.len()],
    worst: Signal,
    told: u32,
    dice: Dice,
}

impl Gauges {
    pub(crate) fn weigh(&self, cpu_permille: u32, load_permille: u32) {
        self.cpu_permille.store(cpu_permille, Relaxed);
        self.load_permille.store(load_permille, Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// In thousandths of its bound, by what is measured for the whole node.
    pub(crate) fn pressure(&self, rule: &Rule, signal: Signal) -> u64 {
        let part = |of: u64, bound: Option<u32>| {
            bound.map_or(0, |bound| of * 1_000 / u64::from(bound.max(1)))
        };
        match signal {
            Signal::Lag => 0,
            Signal::InFlight => part(self.in_flight().into(), rule.in_flight),
            Signal::Cpu => part(self.cpu_permille.load(Relaxed).into(), rule.cpu_permille),
            Signal::Load => part(u64::from(self.load_permille.load(Relaxed)) / 1_000, rule.load),
        }
    }
}

impl Watcher {
    pub(crate) fn new(seed: u64) -> Self {
        let (lags, shares, told) = Default::default();
        Self { lags, next: 0, shares, worst: Signal::Lag, told, dice: Dice::new(seed) }
    }

    /// How late the worker's loop came round.
    pub(crate) fn lagged(&mut self, lag: Duration) {
        self.lags[self.next % LAGS] = lag;
        self.next = (self.next + 1) % LAGS;
    }

    /// The least of the last few: what nobody can blame on one bad moment.
    pub(crate) fn lag(&self) -> Duration {
        self.lags.iter().copied().min().unwrap_or_default()
    }

    /// Tells the node what is in progress here, and takes in how things stand.
    pub(crate) fn tick(&mut self, rule: &Rule, gauges: &Gauges, in_flight: u32) {
        let change = in_flight.wrapping_sub(self.told);
        if change != 0 {
            gauges.in_flight.fetch_add(change, Relaxed);
            self.told = in_flight;
        }
        let lag = rule.lag.map_or(0, |bound| nanos(self.lag()) * 1_000 / nanos(bound).max(1));
        let pressed = |signal| (gauges.pressure(rule, signal), signal);
        let all = [(lag, Signal::Lag), pressed(Signal::Cpu), pressed(Signal::Load)];
        let (pressure, worst) =
            all.into_iter().max_by_key(|(pressure, _)| *pressure).unwrap_or((0, Signal::Lag));
        let grows = if worst == Signal::Lag { GROWS } else { GROWS_SLOWLY };
        for (share, (_, threshold)) in self.shares.iter_mut().zip(CLASSES) {
            if pressure >= threshold {
                *share = (*share + grows).min(ALL);
                self.worst = worst;
            } else if pressure * 10 < threshold * 9 {
                *share = share.saturating_sub(SHRINKS);
            }
        }
    }

    /// What this request is shed by, if it is.
    pub(crate) fn sheds(
        &mut self,
        rule: &Rule,
        gauges: &Gauges,
        in_flight: u32,
        priority: Priority,
    ) -> Option<Signal> {
        let at = CLASSES.iter().position(|(class, _)| *class == priority)?;
        let (share, (_, threshold)) = (*self.shares.get(at)?, *CLASSES.get(at)?);
        if share > 0 && self.dice.below(ALL.into()) < u64::from(share) {
            return Some(self.worst);
        }
        let bound = rule.in_flight?;
        // The others' by what they told last, our own by what it is.
        let all = gauges.in_flight().wrapping_sub(self.told).wrapping_add(in_flight);
        let over = u64::from(all) * 1_000 > u64::from(bound) * threshold;
        over.then_some(Signal::InFlight)
    }

    /// Whether anything is being shed, class by class from what is low: in thousandths.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (Priority, u32)> {
        let permille = |share: u16| u32::from(share) * 1_000 / u32::from(ALL);
        CLASSES.iter().zip(self.shares).map(move |((class, _), share)| (*class, permille(share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        lag: Some(Duration::from_millis(100)),
        in_flight: Some(1000),
        cpu_permille: Some(900),
        load: Some(8),
    };

    fn ticks(watcher: &mut Watcher, gauges: &Gauges, n: usize, lag_ms: u64) {
        for _ in 0..n {
            watcher.lagged(Duration::from_millis(lag_ms));
            watcher.tick(&RULE, gauges, watcher.told);
        }
    }

    fn shed(watcher: &mut Watcher, gauges: &Gauges) -> [usize; 4] {
        Priority::ALL.map(|priority| {
            let told = watcher.told;
            (0..100).filter(|_| watcher.sheds(&RULE, gauges, told, priority).is_some()).count()
        })
    }

    #[test]
    fn the_low_go_first_and_the_critical_never() {
        for (lag_ms, expected) in [
            (79, [0, 0, 0, 0]),
            (80, [0, 0, 0, 100]),
            (90, [0, 0, 100, 100]),
            (100, [0, 100, 100, 100]),
            (900, [0, 100, 100, 100]),
        ] {
            let (mut watcher, gauges) = (Watcher::new(1), Gauges::default());
            ticks(&mut watcher, &gauges, LAGS + 4, lag_ms);
            assert_eq!(shed(&mut watcher, &gauges), expected, "{lag_ms} ms");
        }
    }

    #[test]
    fn one_late_tick_sheds_nobody_and_a_quiet_second_ends_it() {
        let (mut watcher, gauges) = (Watcher::new(1), Gauges::default());
        ticks(&mut watcher, &gauges, LAGS, 1);
        ticks(&mut watcher, &gauges, LAGS - 1, 5_000);
        assert_eq!(shed(&mut watcher, &gauges), [0; 4]);
        ticks(&mut watcher, &gauges, LAGS, 95);
        assert_eq!(shed(&mut watcher, &gauges)[2], 100);
        ticks(&mut watcher, &gauges, 1, 85);
        let held = watcher.shares;
        ticks(&mut watcher, &gauges, 10, 85);
        assert_eq!(watcher.shares[1], held[1], "between nine tenths and all of it nothing changes");
        ticks(&mut watcher, &gauges, 30, 1);
        let half = shed(&mut watcher, &gauges)[2];
        assert!((20..70).contains(&half), "{half}");
        ticks(&mut watcher, &gauges, 30, 1);
        assert_eq!(shed(&mut watcher, &gauges), [0; 4]);
    }

    #[test]
    fn what_is_in_progress_is_a_plain_bound() {
        for (others, mine, expected) in [
            (700, 100, [0, 0, 0, 0]),
            (700, 101, [0, 0, 0, 100]),
            (800, 101, [0, 0, 100, 100]),
            (1000, 1, [0, 100, 100, 100]),
        ] {
            let (mut watcher, gauges) = (Watcher::new(1), Gauges::default());
            gauges.in_flight.store(others, Relaxed);
            watcher.tick(&RULE, &gauges, mine);
            assert_eq!(gauges.in_flight(), others + mine);
            assert_eq!(shed(&mut watcher, &gauges), expected, "{others} and {mine}");
            watcher.tick(&RULE, &gauges, 0);
            assert_eq!(gauges.in_flight(), others, "what has ended is taken back");
        }
    }

    #[test]
    fn what_is_measured_once_a_second_sheds_by_and_by() {
        for (cpu, load, reason) in [(890, 0, Signal::Cpu), (0, 8_000, Signal::Load)] {
            let (mut watcher, gauges) = (Watcher::new(1), Gauges::default());
            gauges.weigh(cpu, load);
            ticks(&mut watcher, &gauges, 26, 0);
            let some = shed(&mut watcher, &gauges)[3];
            assert!((30..70).contains(&some), "{some}");
            ticks(&mut watcher, &gauges, 26, 0);
            assert_eq!(watcher.sheds(&RULE, &gauges, 0, Priority::Low), Some(reason));
        }
    }
}
