//! A circuit breaker: one word of state for the whole node, judged by what all workers saw.
//!
//! | state | event | then |
//! |---|---|---|
//! | closed | a result: enough calls, and too many of them bad, or slow, or bad in a row | openings + 1 → open |
//! | closed | closed for as long as it was open last, and a minute | openings = 0 |
//! | open | a request before its time | refused |
//! | open | a request after | → probing, as the first probe |
//! | probing | a request | a probe while fewer than `probes` are out or judged; refused otherwise |
//! | probing | a probe went well, and fast | enough of them → recovering |
//! | probing | a probe went badly, or slowly | too many → openings + 1 → open |
//! | probing | a probe came to nothing (the client left) | another may go |
//! | probing | its time is over | all that were sent went well → recovering; one hangs → open |
//! | recovering | a request | let through by dice: 10, 25, 50, 100 % of them, a step each |
//! | recovering | a result: a few calls, and too many of them bad or slow | openings + 1 → open |
//! | recovering | the last step is done | → closed |
//! | any | a result of an older era | ignored |
//! | any | the operator | forced open, forced closed, or only watched; then closed, in a new era |
//!
//! Every change of state is one compare-and-swap, and begins a new *era*. A [`Permit`] remembers
//! the era it was given in, so nothing that was begun before a change is held against what came
//! after.

mod cause;
mod more;
mod mutant;
mod ring;
mod rule;
mod tuned;
mod word;

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use std::sync::OnceLock;

use crate::mechanism::breaker::ring::{Mark, Ring};
use crate::mechanism::breaker::rule::{DONE, too_many};
use crate::mechanism::breaker::tuned::Tuned;
use crate::mechanism::breaker::word::{ATTEMPT_MAX, PROBING, Word, mark};
use crate::mechanism::dice::Dice;
use crate::mechanism::window::{Counts, Era, Local, Window};
use crate::time::{Instant, nanos};

pub use crate::mechanism::breaker::cause::Cause;
pub(crate) use crate::mechanism::breaker::mutant::Mutant;
pub(crate) use crate::mechanism::breaker::ring::CALLS_MAX;
pub(crate) use crate::mechanism::breaker::rule::{Rule, share};
pub use crate::mechanism::breaker::tuned::Thresholds;

/// The node's part: what all workers share of one breaker.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: AtomicU64,
    /// What the operator wants, and until when. Zero: nothing.
    forced: AtomicU64,
    /// Bad results in a row, and the era they are of.
    streak: AtomicU64,
    /// Changes into each state since the start.
    entered: [AtomicU32; 4],
    window: Window,
    /// Why it opened last, and when.
    cause: AtomicU64,
    opened_ns: AtomicU64,
    more: OnceLock<Box<More>>,
}

/// What few breakers need.
#[derive(Debug, Default)]
struct More {
    tuned: Tuned,
    ring: OnceLock<Ring>,
}

/// ```text
///            too many bad or slow          its time is over
///   Closed ───────────────────────► Open ───────────────────► Probing
///     ▲                              ▲ ▲   a probe is bad        │
///     │                              │ └─────────────────────────┤
///     │  the last step is done       │ bad again                 │ probes are good
///     └───────────────────────── Recovering ◄────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    Open,
    /// Half-open: a few requests are let through to see.
    Probing,
    /// A growing share of requests is let through.
    Recovering,
}

impl State {
    pub const ALL: [Self; 4] = [Self::Closed, Self::Open, Self::Probing, Self::Recovering];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Probing => "half_open",
            Self::Recovering => "recovering",
        }
    }
}

/// What an operator may want of a breaker, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Let nothing through.
    Open,
    /// Let everything through, and judge nothing.
    Closed,
    /// Let everything through, and count.
    Disabled,
}

/// How an attempt went, in the eyes of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    Slow,
    Bad,
    /// It says nothing: the client left, or nothing was tried.
    Unknown,
}

/// Leave to try. Goes back through [`Board::settle`].
#[derive(Debug)]
#[must_use = "give it back with Board::settle"]
pub(crate) struct Permit {
    pub(crate) era: Era,
}

/// Why not, and when it may be worth trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) wait: Duration,
}

/// How a breaker stands, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub state: State,
    pub forced: Option<Force>,
    /// Openings since it was last healthy for long.
    pub openings: u8,
    /// Until it may be tried again (open), or until what the operator wants is over.
    pub left: Option<Duration>,
    /// Changes into each state of `State::ALL`, since the start.
    pub entered: [u64; 4],
    /// Why it is not closed, and when it opened.
    pub opened: Option<(Cause, Instant)>,
    /// Probes that are out or judged, and how many of them went well.
    pub probes: (u8, u8),
    /// How long it has been in its state; of a closed or recovering one.
    pub age: Duration,
    /// What the operator wants of its thresholds, and for how long.
    pub thresholds: Option<(Thresholds, Duration)>,
}

/// What a board is judged with: its rule, the time, the dice.
pub(crate) struct Judge<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) now: Instant,
    pub(crate) dice: &'a mut Dice,
}

impl Board {
    /// Whether `admit` would let a request with this throw (below 100) through.
    pub(crate) fn ready(&self, rule: &Rule, now: Instant, throw: u64) -> bool {
        match self.forced(now) {
            Some(Force::Open) => return false,
            Some(Force::Closed | Force::Disabled) => return true,
            None => {}
        }
        let word = Word::unpack(self.state.load(Acquire));
        match word.state {
            State::Closed => true,
            State::Open => word.left(now, rule).is_none(),
            State::Probing => word.issued < rule.probes || word.left(now, rule).is_none(),
            State::Recovering => throw < share(word.age(now), rule),
        }
    }

    /// Whether requests are kept from it: open, or only probed.
    pub(crate) fn is_out(&self, now: Instant) -> bool {
        match self.forced(now) {
            Some(Force::Open) => true,
            Some(Force::Closed | Force::Disabled) => false,
            None => {
                let state = Word::unpack(self.state.load(SeqCst)).state;
                matches!(state, State::Open | State::Probing)
            }
        }
    }

    /// Whether it lets everything through and always has, lately.
    pub(crate) fn is_closed(&self, now: Instant) -> bool {
        match self.forced(now) {
            Some(force) => force != Force::Open,
            None => Word::unpack(self.state.load(SeqCst)).state == State::Closed,
        }
    }

    /// Leave to try, or when to come again. `throw` is below 100.
    pub(crate) fn admit(&self, judge: &mut Judge<'_>, throw: u64) -> Result<Permit, Refusal> {
        let (rule, now) = (judge.rule, judge.now);
        match self.forced(now) {
            Some(Force::Open) => return Err(Refusal { wait: self.forced_left(now) }),
            Some(Force::Closed | Force::Disabled) => {
                return Ok(Permit { era: Word::unpack(self.state.load(Acquire)).era });
            }
            None => {}
        }
        let most = rule.probes + u8::from(rule.errs(Mutant::ExtraProbe));
        let mut bits = self.state.load(Acquire);
        loop {
            let word = Word::unpack(bits);
            let next = match word.state {
                State::Closed => return Ok(Permit { era: word.era }),
                State::Open => match word.left(now, rule).filter(|_| !rule.errs(Mutant::NoWait)) {
                    Some(_) if rule.errs(Mutant::OpenAdmits) && throw == 0 => {
                        return Ok(Permit { era: word.era });
                    }
                    Some(wait) => return Err(Refusal { wait }),
                    None => Word { issued: 1, ..word.enter(State::Probing, now, PROBING) },
                },
                State::Probing if word.left(now, rule).is_none() => judge.overdue(word),
                State::Probing if word.issued < most => Word { issued: word.issued + 1, ..word },
                State::Probing => return Err(Refusal { wait: AGAIN }),
                State::Recovering => match share(word.age(now), rule) {
                    DONE => word.enter(State::Closed, now, Duration::ZERO),
                    share if throw < share => return Ok(Permit { era: word.era }),
                    _ => return Err(Refusal { wait: AGAIN }),
                },
            };
            match self.swap(bits, word, next) {
                Ok(now_bits) if next.state == State::Open => {
                    self.note(now, Cause::Probe);
                    bits = now_bits;
                }
                Ok(now_bits) if next.state == State::Probing => {
                    let probe = next.issued > word.issued || word.state != State::Probing;
                    if probe {
                        return Ok(Permit { era: next.era });
                    }
                    bits = now_bits;
                }
                Ok(now_bits) | Err(now_bits) => bits = now_bits,
            }
        }
    }

    /// The attempt is over. `may_open` is asked before it opens, and again right after: when it
    /// then says no, it is closed as before.
    #[expect(clippy::needless_pass_by_value, reason = "a permit is spent by giving it back")]
    pub(crate) fn settle(
        &self,
        judge: &mut Judge<'_>,
        local: &Local,
        permit: Permit,
        outcome: Outcome,
        may_open: &dyn Fn() -> bool,
    ) {
        let bits = self.state.load(Acquire);
        let word = Word::unpack(bits);
        let forced = self.forced(judge.now);
        let old = word.era != permit.era && !judge.rule.errs(Mutant::OldEra);
        if old || matches!(forced, Some(Force::Open | Force::Closed)) {
            return;
        }
        match word.state {
            State::Closed | State::Recovering => {
                let look = match outcome {
                    Outcome::Unknown => return,
                    Outcome::Good => self.good(judge, local, word.era),
                    Outcome::Slow | Outcome::Bad => {
                        let (bad, slow) = match outcome {
                            Outcome::Bad => (1, 0),
                            Outcome::Slow | Outcome::Good | Outcome::Unknown => (0, 1),
                        };
                        let counts = Counts { total: 1, bad, slow };
                        self.count(judge, local, word.era, counts);
                        true
                    }
                };
                if look && forced.is_none() {
                    self.judge(judge, may_open);
                }
            }
            State::Probing => self.probed(judge, bits, outcome),
            // Let through by the operator's will, just before it was taken back.
            State::Open => {}
        }
    }

    /// A call that was counted as good has turned out bad: its response broke off.
    pub(crate) fn retract(
        &self,
        judge: &mut Judge<'_>,
        local: &Local,
        era: Era,
        may_open: &dyn Fn() -> bool,
    ) {
        let word = Word::unpack(self.state.load(Acquire));
        if word.era != era || self.forced(judge.now).is_some() {
            return;
        }
        match word.state {
            State::Closed | State::Recovering => {
                self.count(judge, local, era, Counts { total: 0, bad: 1, slow: 0 });
                self.judge(judge, may_open);
            }
            State::Open | State::Probing => {}
        }
    }

    /// Hands over what this worker kept, and looks at it.
    pub(crate) fn tick(&self, judge: &mut Judge<'_>, local: &Local, may_open: &dyn Fn() -> bool) {
        if local.hand_over(&self.window) && self.forced(judge.now).is_none() {
            self.judge(judge, may_open);
        }
    }

    /// True: it is time to look at the window.
    fn good(&self, judge: &Judge<'_>, local: &Local, era: Era) -> bool {
        // Written only when there is something to end: most of the time this line stays shared.
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
        if let Some(ring) = self.ring(judge.rule) {
            return ring.push(era, Mark::Good).is_multiple_of(LOOK_EACH);
        }
        local.good(&self.window, era, judge.now, nanos(judge.rule.bucket))
    }

    fn count(&self, judge: &Judge<'_>, local: &Local, era: Era, counts: Counts) {
        local.hand_over(&self.window);
        if let Some(ring) = self.ring(judge.rule) {
            // One that was counted as good and has turned out bad is counted once more.
            ring.push(era, if counts.bad > 0 { Mark::Bad } else { Mark::Slow });
        } else {
            let bucket = judge.now.as_nanos() / nanos(judge.rule.bucket).max(1);
            self.window.add(era, bucket, counts);
        }
        if counts.bad == 0 {
            self.streak.store(0, Relaxed);
            return;
        }
        let streak = |word: u64| match word >> 32 == era.bits() {
            true => (word & u64::from(u32::MAX)).saturating_add(1).min(u64::from(u32::MAX)),
            false => 1,
        };
        let mut word = self.streak.load(Relaxed);
        while let Err(found) = self.streak.compare_exchange_weak(
            word,
            (era.bits() << 32) | streak(word),
            SeqCst,
            Relaxed,
        ) {
            word = found;
        }
    }

    /// Opens it when what was counted says so; forgets old openings when it was well for long.
    fn judge(&self, judge: &mut Judge<'_>, may_open: &dyn Fn() -> bool) {
        let bits = self.state.load(SeqCst);
        let word = Word::unpack(bits);
        let tuned = self.tuned(judge.now).map(|(it, _)| it.over(judge.rule));
        let rule = tuned.as_ref().unwrap_or(judge.rule);
        let requests_min = match word.state {
            State::Closed => rule.requests_min,
            State::Recovering => (rule.requests_min / 4).max(5),
            State::Open | State::Probing => return,
        };
        let streak = self.streak.load(SeqCst);
        let streak = if streak >> 32 == word.era.bits() { streak & u64::from(u32::MAX) } else { 0 };
        let counts = self.counts(rule, word.era, judge.now);
        if let Some(cause) = too_many(rule, counts, streak, requests_min) {
            self.open(judge, bits, cause, may_open);
            return;
        }
        let calm = rule.open_for(word.attempt).max(CALM);
        let calm = if rule.errs(Mutant::ForgetsAtOnce) { Duration::ZERO } else { calm };
        if word.state == State::Closed && word.attempt > 0 && word.age(judge.now) >= calm {
            let _ = self.swap(bits, word, Word { attempt: 0, ..word });
        }
    }

    fn open(&self, judge: &mut Judge<'_>, bits: u64, cause: Cause, may_open: &dyn Fn() -> bool) {
        if !may_open() {
            return;
        }
        let word = Word::unpack(bits);
        let open = judge.opened(word);
        if self.swap(bits, word, open).is_err() {
            return;
        }
        self.note(judge.now, cause);
        if !may_open() {
            // Another one opened at the same moment, and together they are too many.
            let _ = self.state.compare_exchange(open.pack(), bits, SeqCst, Relaxed);
        }
    }

    fn probed(&self, judge: &mut Judge<'_>, mut bits: u64, outcome: Outcome) {
        let era = Word::unpack(bits).era;
        let enough = judge.rule.probes - u8::from(judge.rule.errs(Mutant::FewProbes));
        loop {
            let word = Word::unpack(bits);
            if word.era != era {
                return;
            }
            let next = match outcome {
                Outcome::Unknown if judge.rule.errs(Mutant::LostProbe) => word,
                Outcome::Unknown => Word { issued: word.issued.saturating_sub(1), ..word },
                Outcome::Good if word.good + 1 >= enough => {
                    word.enter(State::Recovering, judge.now, Duration::ZERO)
                }
                Outcome::Good => Word { good: word.good + 1, ..word },
                // All must go well, so one is too many.
                Outcome::Slow | Outcome::Bad => judge.opened(word),
            };
            match self.swap(bits, word, next) {
                Ok(_) if next.state == State::Open => return self.note(judge.now, Cause::Probe),
                Ok(_) => return,
                Err(found) => bits = found,
            }
        }
    }

    /// Replaces the word; the one that stands there then.
    fn swap(&self, bits: u64, word: Word, next: Word) -> Result<u64, u64> {
        self.state.compare_exchange(bits, next.pack(), SeqCst, SeqCst)?;
        if word.era != next.era {
            self.entered[next.state as usize].fetch_add(1, Relaxed);
        }
        Ok(next.pack())
    }
}

impl Judge<'_> {
    /// Open: for as long as its openings say, less up to a fifth, so that the nodes of a fleet do
    /// not probe all at once.
    fn opened(&mut self, word: Word) -> Word {
        let before = if self.rule.errs(Mutant::NoBackoff) { 0 } else { word.attempt };
        let attempt = (before + 1).min(ATTEMPT_MAX);
        let whole = nanos(self.rule.open_for(attempt));
        let open = Duration::from_nanos(whole - self.dice.below(whole / 5 + 1));
        Word { attempt, ..word.enter(State::Open, self.now, open) }
    }

    /// Probing has taken too long: too few requests came, or a probe hangs.
    fn overdue(&mut self, word: Word) -> Word {
        if word.issued > word.good && !self.rule.errs(Mutant::HungProbe) {
            self.opened(word)
        } else if word.good > 0 || self.rule.errs(Mutant::HungProbe) {
            word.enter(State::Recovering, self.now, Duration::ZERO)
        } else {
            Word { mark: mark(self.now + PROBING), ..word }
        }
    }
}

/// Openings are forgotten after this long, at least.
const CALM: Duration = Duration::from_secs(60);
/// What a request is told to wait that found no probe to be.
const AGAIN: Duration = Duration::from_secs(1);
/// Where calls are counted, not time, every so many are looked at, however good they are.
const LOOK_EACH: u32 = 32;
/// No open time is longer.
const LONGEST: Duration = Duration::from_secs(3600);
