//! A model of the store: what the script in `engine/src/store/reserve.lua` does, in Rust.
//!
//! The simulation runs against it, and a test holds it against the script on a real server.

mod log;
mod share;

use std::collections::BTreeMap;

use self::log::{Log, Span};
use crate::mechanism::lease::{Class, Count, Message, Reply};

const FORGET: i64 = 600_000_000;
const STEP: i64 = 200_000;
const AGAIN: i64 = 5_000;
const RETURN: i64 = 600_000;

/// One shard of a server.
#[derive(Clone, Debug, Default)]
pub struct Store {
    epoch: Epoch,
    tallies: BTreeMap<String, Tally>,
    /// Break it in one place, to see that a test notices.
    pub mutant: Option<Mutant>,
}

/// Which server run a shard belongs to, and since when.
#[derive(Clone, Debug, Default)]
struct Epoch {
    run: String,
    fence: i64,
    /// Runs that all of it was carried over from since the fence.
    moved: Vec<String>,
}

/// Ways in which the script could be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Fill up to the capacity whatever is outstanding.
    CapIgnoresOutstanding,
    /// What is missing is born as new, also when it has just been lost.
    BornFull,
    /// That the server was lost is not noticed.
    NoFence,
    /// What a node holds is taken for spent when half its lease is over.
    ReapsEarly,
    /// Messages that were overtaken count.
    NoOrder,
    /// Steps of the server's clock are believed.
    NoStepDetector,
    /// A node that holds what it was not given keeps it.
    NoVoid,
    /// Tokens spent without a lease are free.
    NoDebt,
    /// A part of a window is forgotten a window after its beginning, not its end.
    EarlySlots,
    /// That a shard was carried over is believed of whichever run it was.
    AnyMove,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    run: String,
    level: i64,
    filled: i64,
    units: i64,
    refill: i64,
    at: i64,
    skew: i64,
    out: i64,
    log: Log,
    nodes: BTreeMap<String, Record>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    seq: i64,
    held: i64,
    ends: i64,
    demand: i64,
    seen: i64,
    credit: i64,
    granted: i64,
    spent: i64,
    burned: i64,
    known: i64,
    knew: i64,
}

/// What a message is about, as the script reads it.
#[derive(Clone, Copy)]
struct Rule {
    count: Count,
    direct: bool,
    units: i64,
    refill: i64,
    capacity: i64,
    lease: i64,
    mutant: Option<Mutant>,
}

impl Store {
    /// The script's answer for one key. `now_us` is the server's clock; `run` is the server's, or
    /// `RUN<FROM`.
    pub fn call(&mut self, now_us: i64, run: &str, node: &str, key: &str, m: &Message) -> Reply {
        let fenced = self.mutant != Some(Mutant::NoFence);
        let (run, from) = run.split_once('<').unwrap_or((run, ""));
        if self.epoch.run != run {
            let any = self.mutant == Some(Mutant::AnyMove) && !self.epoch.run.is_empty();
            if !from.is_empty() && (any || self.epoch.run == from) {
                let from = core::mem::replace(&mut self.epoch.run, run.to_owned());
                self.epoch.moved.push(from);
            } else {
                let fence = if fenced { now_us } else { 0 };
                self.epoch = Epoch { run: run.to_owned(), fence, moved: Vec::new() };
            }
        }
        let run = if fenced { run } else { "1" };
        let mut tally = self.tallies.remove(key).unwrap_or_default();
        let reply = tally.call(now_us, (run, &self.epoch), node, m, self.mutant);
        self.tallies.insert(key.to_owned(), tally);
        reply
    }

    /// As after a long time without a restart: buckets that are missing were full.
    pub fn warm(&mut self, run: &str) {
        self.epoch = Epoch { run: run.to_owned(), ..Epoch::default() };
    }

    /// All data is gone.
    pub fn flush(&mut self) {
        *self = Self { mutant: self.mutant, ..Self::default() };
    }

    /// Level and outstanding, in units and tokens.
    pub fn bucket(&self, key: &str) -> Option<(i64, i64)> {
        self.tallies.get(key).map(|tally| (tally.level, tally.out))
    }

    /// What a window counts, and outstanding.
    pub fn window(&self, key: &str) -> Option<(i64, i64)> {
        self.tallies.get(key).map(|tally| (tally.log.total(), tally.out))
    }
}

impl Rule {
    fn of(m: &Message, mutant: Option<Mutant>) -> Self {
        Self {
            count: m.terms.count,
            direct: m.terms.class == Class::Direct && m.terms.count != Count::Places,
            units: int(m.terms.units),
            refill: int(m.terms.refill),
            capacity: i64::from(m.terms.capacity),
            lease: int(m.lease_us),
            mutant,
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn full(&self) -> i64 {
        self.capacity * self.units
    }

    fn span(&self) -> Span {
        Span { slot: self.units, then: self.refill, early: self.is(Mutant::EarlySlots) }
    }
}

impl Tally {
    fn call(
        &mut self,
        now: i64,
        (run, epoch): (&str, &Epoch),
        node: &str,
        m: &Message,
        mutant: Option<Mutant>,
    ) -> Reply {
        let rule = Rule::of(m, mutant);
        let mut flags = 0;
        let mut me = self.nodes.remove(node);
        let clock = self.clock(now, m, me.as_mut(), rule.is(Mutant::NoStepDetector));
        let missing = self.run.is_empty();
        if !missing && self.run != run && !epoch.moved.contains(&self.run) {
            flags += 4;
        }
        if missing || (flags == 4 && m.terms.strict) {
            me = None;
            self.birth(clock, epoch.fence, &rule, m.terms.strict);
        } else if rule.count == Count::Bucket {
            self.rewrite(clock, &rule);
        } else if rule.count == Count::Places && self.out > 0 && clock - self.at > rule.lease {
            self.filled = self.filled.max(clock + RETURN);
        }
        self.log.forget(clock, rule.span());
        self.reap(clock, &rule, me.as_mut());
        if rule.count == Count::Bucket {
            self.fill(clock, &rule);
        }
        let (mut granted, mut fair) = (0, 0);
        let known = me.is_some();
        let mut record =
            me.unwrap_or_else(|| Record { seen: clock, spent: int(m.spent), ..Record::default() });
        let late = record.seq >= int(m.seq) && !rule.is(Mutant::NoOrder);
        if late && record.seq == int(m.seq) {
            (granted, flags) = (record.granted, flags + 2);
        } else if late {
            flags += 8;
        } else {
            if known && record.seq < int(m.born) {
                (record.spent, record.burned) = (int(m.spent), 0);
            }
            flags += self.account(&mut record, m, &rule, clock);
            (granted, fair) = self.grant(&mut record, m, &rule, clock);
            (record.seq, record.seen, record.granted) = (int(m.seq), clock, granted);
            let lease = if rule.is(Mutant::ReapsEarly) { rule.lease / 2 } else { rule.lease };
            record.ends = clock + lease;
        }
        self.nodes.insert(node.to_owned(), record);
        (self.run, self.at) = (run.to_owned(), clock);
        (self.units, self.refill) = (rule.units, rule.refill);
        self.reply(m, &rule, [granted, fair, flags])
    }

    fn birth(&mut self, clock: i64, fence: i64, rule: &Rule, strict: bool) {
        let at = if rule.is(Mutant::BornFull) { 0 } else { fence + rule.lease };
        (self.out, self.level, self.log) = (0, 0, Log::default());
        self.nodes.clear();
        if rule.count == Count::Bucket {
            self.level = rule.full().min((clock - at).max(0).saturating_mul(rule.refill));
        }
        if rule.count == Count::Window && strict {
            self.log.note(rule.capacity, at, clock, rule.span());
        }
        self.filled = clock.max(at);
    }

    /// Under a rule that was written anew: until now it filled up by the old one.
    fn rewrite(&mut self, clock: i64, rule: &Rule) {
        if (self.units, self.refill) == (rule.units, rule.refill) {
            return;
        }
        let room = (rule.capacity - self.out) * self.units - self.level;
        if clock > self.filled && room > 0 {
            self.level += room.min((clock - self.filled).saturating_mul(self.refill));
        }
        self.level = rescaled(self.level, self.units, rule.units);
        self.filled = self.filled.max(clock);
    }

    fn reap(&mut self, clock: i64, rule: &Rule, me: Option<&mut Record>) {
        let (log, out) = (&mut self.log, &mut self.out);
        let mut reap = |r: &mut Record| {
            if r.ends > clock || r.held == 0 {
                return false;
            }
            *out -= r.held;
            if rule.count == Count::Window {
                log.note(r.held, r.ends, clock, rule.span());
            }
            r.burned += r.held;
            r.held = 0;
            true
        };
        for r in self.nodes.values_mut() {
            if reap(r) {
                r.demand = 0;
            }
        }
        self.nodes.retain(|_, r| clock - r.ends <= FORGET);
        if let Some(me) = me {
            reap(me);
        }
    }

    fn grant(&mut self, me: &mut Record, m: &Message, rule: &Rule, clock: i64) -> (i64, i64) {
        let avail = if rule.is(Mutant::CapIgnoresOutstanding) && rule.count == Count::Window {
            rule.capacity - self.log.total()
        } else {
            self.left(rule, clock)
        };
        let (granted, fair) = if rule.direct || rule.count == Count::Places {
            let (want, some) = (int(m.want), int(m.want).min(avail).max(0));
            (if some < want { some - some % quantum(m, rule) } else { some }, 0)
        } else {
            share::share(me, self.nodes.values(), m, avail, clock)
        };
        if rule.count == Count::Bucket {
            self.level -= granted * rule.units;
        }
        if !rule.direct {
            self.out += granted;
            me.held += granted;
        } else if rule.count == Count::Window {
            self.log.note(granted, clock, clock, rule.span());
        }
        (granted, fair)
    }

    fn left(&self, rule: &Rule, clock: i64) -> i64 {
        match rule.count {
            Count::Bucket => self.level.div_euclid(rule.units),
            Count::Window => rule.capacity - self.log.total() - self.out,
            Count::Places if clock < self.filled => 0,
            Count::Places => rule.capacity - self.out,
        }
    }

    fn reply(&self, m: &Message, rule: &Rule, told: [i64; 3]) -> Reply {
        let left = self.left(rule, self.at);
        let wait = match rule.count {
            Count::Bucket => {
                let short = quantum(m, rule) * rule.units - self.level;
                let until = (self.filled - self.at).max(0);
                if short > 0 { (short + rule.refill - 1) / rule.refill + until } else { 0 }
            }
            Count::Window => match quantum(m, rule) - left {
                short if short > 0 => {
                    self.log.wait(short, self.at, rule.span()).unwrap_or(rule.lease)
                }
                _ => 0,
            },
            Count::Places if left < 1 => AGAIN.max(self.filled - self.at),
            Count::Places => 0,
        };
        let [granted, fair, flags] = told.map(|n| u64::try_from(n).unwrap_or(0));
        let [left, wait_us] = [left, wait].map(|n| u64::try_from(n).unwrap_or(0));
        Reply { granted, left, wait_us, fair, flags }
    }

    fn clock(&mut self, now: i64, m: &Message, me: Option<&mut Record>, believe: bool) -> i64 {
        let (mut clock, since) = (now + self.skew, int(m.since_seq));
        let Some(me) = me else { return clock.max(self.at) };
        if me.seq == since {
            (me.known, me.knew) = (me.seq, me.seen);
        }
        if m.elapsed_us > 0 && me.known == since && !believe {
            let off = clock - (me.knew + int(m.elapsed_us));
            let fix = match off {
                off if off > STEP => -off,
                off if off < -STEP => -off - STEP,
                _ => 0,
            };
            clock += fix;
            self.skew += fix;
        }
        clock.max(self.at)
    }

    fn fill(&mut self, clock: i64, rule: &Rule) {
        if clock <= self.filled {
            return;
        }
        let room = rule.full() - self.beside(rule) * rule.units - self.level;
        if room > 0 {
            let filled = (clock - self.filled).saturating_mul(rule.refill);
            self.level += filled.min(room);
        }
        self.filled = clock;
    }

    /// What a bucket leaves room for.
    fn beside(&self, rule: &Rule) -> i64 {
        if rule.is(Mutant::CapIgnoresOutstanding) { 0 } else { self.out }
    }

    fn account(&mut self, me: &mut Record, m: &Message, rule: &Rule, clock: i64) -> i64 {
        let (mut held, spent, mut flags) = (int(m.held), int(m.spent), 0);
        let told = if rule.count == Count::Places { held + spent } else { held };
        if told > me.held && held > 0 && !rule.is(Mutant::NoVoid) {
            (held, flags) = (0, 1);
        }
        if rule.count == Count::Places {
            self.out += spent + held - me.held;
            held += spent;
        } else {
            let delta = (spent - me.spent).max(0);
            let covered = delta.min(me.held - held);
            let debt = (delta - covered - me.burned).max(0);
            let debt = if rule.is(Mutant::NoDebt) { 0 } else { debt };
            let returned = me.held - covered - held;
            self.out -= covered + returned;
            if rule.count == Count::Bucket {
                let room = rule.full() - self.beside(rule) * rule.units;
                let level = room.min(self.level + returned * rule.units);
                self.level = (level - debt * rule.units).max(-rule.full());
            } else {
                self.log.note(covered + debt, clock, clock, rule.span());
            }
        }
        (me.held, me.spent, me.burned, me.demand) = (held, spent, 0, int(m.demand));
        flags
    }
}

/// Less is of use to nobody.
fn quantum(m: &Message, rule: &Rule) -> i64 {
    if rule.direct { int(m.demand).max(1) } else { 1 }
}

fn rescaled(level: i64, was: i64, units: i64) -> i64 {
    whole(level as f64 / was as f64 * units as f64)
}

#[expect(clippy::cast_possible_truncation, reason = "the script's numbers stay below 2^53")]
fn whole(n: f64) -> i64 {
    n.floor() as i64
}

fn int(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}
