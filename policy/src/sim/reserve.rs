//! A model of the store: what the script in `engine/src/store/reserve.lua` does, in Rust.
//!
//! The simulation runs against it, and a test holds it against the script on a real server.

use std::collections::BTreeMap;

use crate::mechanism::lease::{Class, Message, Reply};

const ACTIVE: i64 = 1_000_000;
const FORGET: i64 = 600_000_000;
const STEP: i64 = 200_000;

/// One shard of a server.
#[derive(Clone, Debug, Default)]
pub struct Store {
    run: String,
    fence: i64,
    buckets: BTreeMap<String, Bucket>,
    /// Break it in one place, to see that a test notices.
    pub mutant: Option<Mutant>,
}

/// Ways in which the script could be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Fill up to the capacity whatever is outstanding.
    CapIgnoresOutstanding,
    /// A bucket that is missing is born full.
    BornFull,
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
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    run: String,
    level: i64,
    filled: i64,
    units: i64,
    at: i64,
    skew: i64,
    out: i64,
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

impl Store {
    /// The script's answer for one key. `now_us` is the server's clock.
    pub fn call(&mut self, now_us: i64, run: &str, node: &str, key: &str, m: &Message) -> Reply {
        if self.run != run {
            (self.run, self.fence) = (run.to_owned(), now_us);
        }
        let known = self.buckets.remove(key);
        let mut bucket = known.unwrap_or_else(|| self.birth(now_us, m));
        let reply = bucket.call(now_us, run, node, m, self.mutant);
        self.buckets.insert(key.to_owned(), bucket);
        reply
    }

    /// As after a long time without a restart: buckets that are missing were full.
    pub fn warm(&mut self, run: &str) {
        (self.run, self.fence) = (run.to_owned(), 0);
    }

    /// All data is gone.
    pub fn flush(&mut self) {
        *self = Self { mutant: self.mutant, ..Self::default() };
    }

    /// Level and outstanding, in units and tokens.
    pub fn bucket(&self, key: &str) -> Option<(i64, i64)> {
        self.buckets.get(key).map(|bucket| (bucket.level, bucket.out))
    }

    fn birth(&self, now: i64, m: &Message) -> Bucket {
        let full = i64::from(m.terms.capacity) * int(m.terms.units);
        let at = self.fence + int(m.lease_us);
        let since = match self.mutant {
            Some(Mutant::BornFull) => i64::MAX,
            _ => (now - at).max(0),
        };
        let level = full.min(since.saturating_mul(int(m.terms.refill)));
        Bucket { level, filled: now.max(at), units: int(m.terms.units), ..Bucket::default() }
    }
}

impl Bucket {
    fn call(
        &mut self,
        now: i64,
        run: &str,
        node: &str,
        m: &Message,
        mutant: Option<Mutant>,
    ) -> Reply {
        let is = |which| mutant == Some(which);
        let (units, capacity) = (int(m.terms.units), i64::from(m.terms.capacity));
        let full = capacity * units;
        let quantum = match m.terms.class {
            Class::Lease => 1,
            Class::Direct => int(m.demand).max(1),
        };
        let mut flags = 0;
        let mut me = self.nodes.remove(node);
        let clock = self.clock(now, m, me.as_mut(), is(Mutant::NoStepDetector));
        if !self.run.is_empty() && self.run != run {
            flags += 4;
        }
        if self.units != units {
            self.level = rescaled(self.level, self.units, units);
        }
        self.nodes.values_mut().for_each(|r| reap(r, clock, &mut self.out, true));
        self.nodes.retain(|_, r| clock - r.ends <= FORGET);
        if let Some(me) = &mut me {
            reap(me, clock, &mut self.out, false);
        }
        self.fill(clock, full, m, is(Mutant::CapIgnoresOutstanding));
        let (mut granted, mut fair) = (0, 0);
        let mut record =
            me.unwrap_or_else(|| Record { seen: clock, spent: int(m.spent), ..Record::default() });
        let late = record.seq >= int(m.seq) && !is(Mutant::NoOrder);
        if late && record.seq == int(m.seq) {
            (granted, flags) = (record.granted, flags + 2);
        } else if late {
            flags += 8;
        } else {
            if me.is_some() && record.seq < int(m.born) {
                (record.spent, record.burned) = (int(m.spent), 0);
            }
            flags += self.account(&mut record, m, full, mutant);
            let avail = self.level.div_euclid(units);
            (granted, fair) = match m.terms.class {
                Class::Lease => self.share(&mut record, m, avail, clock),
                Class::Direct => {
                    let some = int(m.want).min(avail).max(0);
                    (some - some % quantum, 0)
                }
            };
            if m.terms.class == Class::Lease {
                self.out += granted;
                record.held += granted;
            }
            self.level -= granted * units;
            (record.seq, record.seen, record.granted) = (int(m.seq), clock, granted);
            let lease = int(m.lease_us);
            record.ends = clock + if is(Mutant::ReapsEarly) { lease / 2 } else { lease };
        }
        self.nodes.insert(node.to_owned(), record);
        (self.run, self.units, self.at) = (run.to_owned(), units, clock);
        self.reply(m, quantum, [granted, fair, flags])
    }

    fn reply(&self, m: &Message, quantum: i64, told: [i64; 3]) -> Reply {
        let (units, refill) = (int(m.terms.units), int(m.terms.refill));
        let short = quantum * units - self.level;
        let wait = if short > 0 {
            (short + refill - 1) / refill + (self.filled - self.at).max(0)
        } else {
            0
        };
        let left = self.level.div_euclid(units).max(0);
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

    fn fill(&mut self, clock: i64, full: i64, m: &Message, ignore_outstanding: bool) {
        if clock <= self.filled {
            return;
        }
        let out = if ignore_outstanding { 0 } else { self.out };
        let room = full - out * int(m.terms.units) - self.level;
        if room > 0 {
            let filled = (clock - self.filled).saturating_mul(int(m.terms.refill));
            self.level += filled.min(room);
        }
        self.filled = clock;
    }

    fn account(&mut self, me: &mut Record, m: &Message, full: i64, mutant: Option<Mutant>) -> i64 {
        let (units, mut held, mut flags) = (int(m.terms.units), int(m.held), 0);
        if held > me.held && mutant != Some(Mutant::NoVoid) {
            (held, flags) = (0, 1);
        }
        let delta = (int(m.spent) - me.spent).max(0);
        let covered = delta.min(me.held - held);
        let debt = (delta - covered - me.burned).max(0);
        let debt = if mutant == Some(Mutant::NoDebt) { 0 } else { debt };
        let returned = me.held - covered - held;
        self.out -= covered + returned;
        let level = (full - self.out * units).min(self.level + returned * units);
        self.level = (level - debt * units).max(-full);
        (me.held, me.spent, me.burned, me.demand) = (held, int(m.spent), 0, int(m.demand));
        flags
    }

    fn share(&self, me: &mut Record, m: &Message, avail: i64, clock: i64) -> (i64, i64) {
        let (want, demand, cap) = (int(m.want), int(m.demand), i64::from(m.terms.capacity) * 1000);
        let rate = whole(m.terms.refill as f64 * 1e9 / m.terms.units as f64);
        let active = || self.nodes.values().filter(|r| clock - r.seen < ACTIVE && r.demand > 0);
        let mut demands: Vec<i64> =
            [demand].into_iter().chain(active().map(|r| r.demand)).collect();
        if demands.len() == 1 || demands.iter().sum::<i64>() <= rate {
            me.credit = 0;
            return (want.min(avail).max(0), rate);
        }
        demands.sort_unstable();
        let fair = water(&demands, rate);
        let earned = |demand: i64, seen: i64| {
            whole((demand.min(fair) * (clock - seen)) as f64 / 1_000_000.0)
        };
        let credits = || active().map(|r| cap.min(r.credit + earned(r.demand, r.seen)));
        let (aside, top) = (credits().sum::<i64>(), credits().max().unwrap_or(0));
        me.credit = cap.min(me.credit + earned(demand, me.seen));
        let mut bound = (me.credit / 1000).max(whole(avail as f64 - aside as f64 / 1000.0));
        if bound < 1 && me.credit >= top {
            bound = 1;
        }
        let granted = want.min(avail).min(bound).max(0);
        me.credit = if granted < want { (me.credit - granted * 1000).max(0) } else { 0 };
        (granted, demand.min(fair))
    }
}

fn reap(r: &mut Record, clock: i64, out: &mut i64, other: bool) {
    if r.ends <= clock && r.held > 0 {
        *out -= r.held;
        r.burned += r.held;
        r.held = 0;
        if other {
            r.demand = 0;
        }
    }
}

fn water(demands: &[i64], rate: i64) -> i64 {
    let (mut left, mut n, mut fair) = (rate, demands.len(), 0);
    for &demand in demands {
        fair = left / i64::try_from(n.max(1)).unwrap_or(1);
        if demand > fair {
            break;
        }
        (left, n) = (left - demand, n - 1);
    }
    fair
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
