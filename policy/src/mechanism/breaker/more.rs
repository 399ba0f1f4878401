//! What a breaker is asked beside requests: its counts, why it opened, other thresholds for a while.

use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::time::Duration;

use crate::mechanism::breaker::ring::Ring;
use crate::mechanism::breaker::word::Word;
use crate::mechanism::breaker::{
    Board, Cause, Force, Judge, LONGEST, More, Rule, State, Thresholds, View,
};
use crate::mechanism::window::{Counts, Era};
use crate::time::{Instant, nanos};

impl Board {
    /// Before the first request of a plan: makes room for what its rule counts.
    pub(crate) fn prepare(&self, rule: &Rule) {
        let Some(calls) = rule.calls else { return };
        if !self.more().ring.get_or_init(Ring::default).resize(calls) {
            return;
        }
        // What is in the ring is of another length: begin anew, where anything is counted at all.
        let bits = self.state.load(SeqCst);
        let word = Word::unpack(bits);
        match word.state {
            State::Closed | State::Recovering => {
                let _ = self.swap(bits, word, Word { era: word.era.next(), ..word });
            }
            State::Open | State::Probing => {}
        }
    }

    /// From when on a call is slow.
    pub(crate) fn slow(&self, rule: &Rule, now: Instant) -> Option<Duration> {
        let tuned = self.tuned(now).and_then(|(it, _)| it.slow);
        tuned.or_else(|| rule.slow.map(|(slow, _)| slow))
    }

    /// What the operator wants until then; None gives it back its own judgement, closed.
    pub(crate) fn force(&self, now: Instant, force: Option<(Force, Instant)>) {
        let forced = force.map_or(0, |(force, until)| {
            let kind = match force {
                Force::Open => 1,
                Force::Closed => 2,
                Force::Disabled => 3,
            };
            (until.as_nanos() & !3) | kind
        });
        self.forced.store(forced, SeqCst);
        let mut bits = self.state.load(SeqCst);
        loop {
            let word = Word::unpack(bits);
            let next = Word { attempt: 0, ..word.enter(State::Closed, now, Duration::ZERO) };
            match self.swap(bits, word, next) {
                Ok(_) => return,
                Err(found) => bits = found,
            }
        }
    }

    pub(crate) fn view(&self, now: Instant) -> View {
        let word = Word::unpack(self.state.load(SeqCst));
        let forced = self.forced(now);
        let open = matches!(word.state, State::Open).then(|| word.left_at_most(now, LONGEST));
        View {
            state: word.state,
            forced,
            openings: word.attempt,
            left: if forced.is_some() { Some(self.forced_left(now)) } else { open.flatten() },
            entered: core::array::from_fn(|i| self.entered[i].load(Relaxed).into()),
            opened: self.opened(word.state),
            probes: (word.issued, word.good),
            age: word.age(now),
            thresholds: self.tuned(now).map(|(it, until)| (it, until.since(now))),
        }
    }

    pub(super) fn forced(&self, now: Instant) -> Option<Force> {
        let forced = self.forced.load(Relaxed);
        if forced == 0 || now.as_nanos() >= forced & !3 {
            return None;
        }
        match forced & 3 {
            1 => Some(Force::Open),
            2 => Some(Force::Closed),
            3 => Some(Force::Disabled),
            _ => None,
        }
    }

    pub(super) fn forced_left(&self, now: Instant) -> Duration {
        Instant::from_nanos(self.forced.load(Relaxed) & !3).since(now)
    }

    /// Other thresholds, until then; None: those that are written.
    pub(crate) fn tune(&self, wanted: Option<(Thresholds, Instant)>) {
        if wanted.is_some() || self.more.get().is_some() {
            self.more().tuned.set(wanted);
        }
    }

    /// Takes it out for a reason that lies in others.
    pub(crate) fn eject(&self, judge: &mut Judge<'_>, cause: Cause, may_open: &dyn Fn() -> bool) {
        let bits = self.state.load(SeqCst);
        if Word::unpack(bits).state == State::Closed && self.forced(judge.now).is_none() {
            self.open(judge, bits, cause, may_open);
        }
    }

    /// What was counted, of one that is closed and left to itself.
    pub(crate) fn tally(&self, rule: &Rule, now: Instant) -> Option<Counts> {
        let word = Word::unpack(self.state.load(Acquire));
        let judges = word.state == State::Closed && self.forced(now).is_none();
        judges.then(|| self.counts(rule, word.era, now))
    }

    pub(super) fn counts(&self, rule: &Rule, era: Era, now: Instant) -> Counts {
        match self.ring(rule) {
            Some(ring) => ring.sum(era),
            None => self.window.sum(era, now.as_nanos() / nanos(rule.bucket).max(1)),
        }
    }

    pub(super) fn ring(&self, rule: &Rule) -> Option<&Ring> {
        rule.calls.and_then(|_| self.more.get()?.ring.get())
    }

    pub(super) fn tuned(&self, now: Instant) -> Option<(Thresholds, Instant)> {
        self.more.get()?.tuned.at(now)
    }

    /// It has opened.
    pub(super) fn note(&self, now: Instant, cause: Cause) {
        self.cause.store(cause.pack(), Relaxed);
        self.opened_ns.store(now.as_nanos(), Relaxed);
    }

    pub(super) fn opened(&self, state: State) -> Option<(Cause, Instant)> {
        let cause = Cause::unpack(self.cause.load(Relaxed))?;
        let at = Instant::from_nanos(self.opened_ns.load(Relaxed));
        (state != State::Closed).then_some((cause, at))
    }

    fn more(&self) -> &More {
        self.more.get_or_init(Box::default)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::draft::breaker::BreakerSpec;
    use crate::mechanism::dice::Dice;

    #[test]
    fn two_that_open_at_the_same_moment_and_are_too_many_are_closed_again() {
        let (rule, _) = BreakerSpec::default().compile("b", &mut Vec::new());
        let (board, mut dice) = (Board::default(), Dice::new(1));
        let now = Instant::from_nanos(1_000_000_000);
        let mut eject = |answers: [bool; 2]| {
            let asked = Cell::new(0);
            let may = || answers[asked.replace(asked.get() + 1)];
            let mut judge = Judge { rule: &rule, now, dice: &mut dice };
            board.eject(&mut judge, Cause::Probe, &may);
            board.view(now).state
        };
        assert_eq!(eject([false, false]), State::Closed);
        assert_eq!(eject([true, false]), State::Closed, "another one did meanwhile");
        assert_eq!(eject([true, true]), State::Open);
    }
}
