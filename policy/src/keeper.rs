//! The control thread's part in counts that several gateways share: which keys have something to
//! tell the store, in which batches, and what its answers mean. Pure: whoever owns a keeper moves
//! the batches.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::admit::overrides::Override;
use crate::ledger::Ledger;
use crate::ledger::intake::Wish;
use crate::ledger::leases::{At, Leases};
use crate::ledger::rules::Tally;
use crate::mechanism::lease::{GUARD, LEASE, Lease, Look, Message, Reply, Terms, micros};
use crate::plan::Plan;
use crate::time::Instant;

/// Keys of a batch; the store works on a batch in one go.
pub const BATCH_KEYS: usize = 16;
/// Each in one slot of a cluster. Sets of them are bits of a word.
pub const SHARDS: u64 = 64;
pub const ALL: u64 = u64::MAX;
/// How often to look, while there is something to look at.
pub const TICK: Duration = Duration::from_millis(5);
/// A question that is unanswered for this long means that the store is lost.
const LOST: Duration = Duration::from_millis(100);

/// Messages for keys of one shard, to be answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub id: u64,
    pub shard: u64,
    pub keys: Vec<(String, Message)>,
}

/// How the keeper does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub keys: u64,
    /// Tokens in hand, over all keys.
    pub held: u64,
    pub batches: u64,
    pub given_up: u64,
    /// Tokens that the store said were void.
    pub voided: u64,
    /// Requests that had to wait for the store.
    pub parked: u64,
    pub degraded_allowed: u64,
    pub degraded_refused: u64,
    /// Keys that found no room.
    pub crowded: u64,
    /// Keys that have numbers of their own.
    pub overrides: u64,
    /// Since the store last answered; None: it never has.
    pub answered_ago: Option<Duration>,
}

/// How one limit does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFigures {
    pub name: String,
    /// In use now, on this node.
    pub keys: u64,
    /// Tokens in hand, over those keys.
    pub held: u64,
    /// Told to the store, or asked of it: one for each key of a batch.
    pub messages: u64,
    pub parked: u64,
    pub degraded_allowed: u64,
    pub degraded_refused: u64,
}

#[derive(Debug)]
pub struct Keeper {
    ledger: Arc<Ledger>,
    terms: BTreeMap<u64, Common>,
    /// By rule and key.
    overrides: BTreeMap<(u64, [u64; 2]), Terms>,
    keys: BTreeMap<At, Key>,
    seq: u64,
    batch: u64,
    sent: BTreeMap<u64, Sent>,
    /// Shards that can be asked.
    up: u64,
    answered: Option<Instant>,
    farewell: bool,
    counts: Figures,
}

/// What holds for the keys of a rule.
#[derive(Debug)]
struct Common {
    name: String,
    terms: Terms,
    messages: u64,
}

#[derive(Debug)]
struct Key {
    name: String,
    pair: [u64; 2],
    shard: u64,
    rule: u64,
    terms: Terms,
    /// Its rule has changed or gone: give everything back, and begin anew.
    retires: bool,
    lease: Lease,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    shard: u64,
    keys: Vec<(At, u64)>,
}

impl Keeper {
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            terms: BTreeMap::new(),
            overrides: BTreeMap::new(),
            keys: BTreeMap::new(),
            seq: 0,
            batch: 0,
            sent: BTreeMap::new(),
            up: 0,
            answered: None,
            farewell: false,
            counts: Figures::default(),
        }
    }

    /// Count by these rules from now on. The first that has shared limits takes the memory for
    /// them.
    pub fn adopt(&mut self, plan: &Plan) {
        let mut before = core::mem::take(&mut self.terms);
        self.terms = plan
            .shared()
            .map(|(name, rule, terms)| {
                let messages = before.remove(&rule).map_or(0, |common| common.messages);
                (rule, Common { name: name.into_owned(), terms, messages })
            })
            .collect();
        if !self.terms.is_empty() {
            self.leases().open();
        }
        self.terms.keys().for_each(|rule| self.leases().count(*rule));
        self.refit();
    }

    /// These keys have numbers of their own, and no others.
    pub fn override_with(&mut self, overrides: impl IntoIterator<Item = Override>) {
        let named = |own: Override| ((own.rule, own.name), own.terms);
        let overrides: BTreeMap<_, _> = overrides.into_iter().map(named).collect();
        if self.overrides != overrides {
            self.overrides = overrides;
            self.refit();
        }
    }

    fn terms_of(&self, rule: u64, pair: [u64; 2]) -> Option<Terms> {
        let common = self.terms.get(&rule)?;
        Some(self.overrides.get(&(rule, pair)).copied().unwrap_or(common.terms))
    }

    /// What was spent stays spent, also by new numbers; what was refused may be asked for again.
    fn refit(&mut self) {
        let all: Vec<(At, u64, [u64; 2])> =
            self.keys.iter().map(|(at, key)| (*at, key.rule, key.pair)).collect();
        for (at, rule, pair) in all {
            let terms = self.terms_of(rule, pair);
            let Some(key) = self.keys.get_mut(&at) else { continue };
            match terms {
                Some(terms) if terms == key.terms => {}
                Some(terms) if terms.becomes(&key.terms) => {
                    key.terms = terms;
                    key.lease.adopt(terms);
                    self.ledger.leases.note(at, 0, 0);
                }
                Some(_) | None => {
                    key.retires = true;
                    self.ledger.leases.note(at, 0, 0);
                }
            }
        }
    }

    /// These shards' store answers, under its connection's own run. What was asked of another is
    /// given up.
    pub fn linked(&mut self, now: Instant, shards: u64) {
        self.forget_sent(shards);
        let leases = &self.ledger.leases;
        for (at, key) in &mut self.keys {
            if shards & bit(key.shard) != 0 && leases.view(*at).unleased > 0 {
                key.lease.owe();
            }
        }
        leases.recover(shards);
        self.up |= shards;
        self.answered = Some(now);
    }

    /// There is no store to ask for these shards.
    pub fn unlinked(&mut self, now: Instant, shards: u64) {
        self.forget_sent(shards);
        self.up &= !shards;
        self.leases().lose(now, shards);
    }

    /// Shards that were asked and have not answered for too long: whoever owns their connection
    /// should make a new one.
    pub fn stuck(&self, now: Instant) -> u64 {
        let late = |sent: &&Sent| now.since(sent.at) >= LOST;
        self.sent.values().take_while(late).fold(0, |all, sent| all | bit(sent.shard)) & self.up
    }

    /// Whether there is anything to look after every [`TICK`].
    pub fn is_busy(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Give everything back, and take no more. Busy until that is done.
    pub fn farewell(&mut self) {
        self.farewell = true;
    }

    /// Somebody waits: look only at who that is.
    pub fn kicked(&mut self, now: Instant) -> Vec<Batch> {
        let mut stirred = self.heard(now);
        stirred.sort_unstable();
        stirred.dedup();
        self.flush(now, &stirred)
    }

    /// Look at every key.
    pub fn tick(&mut self, now: Instant) -> Vec<Batch> {
        self.heard(now);
        let all: Vec<At> = self.keys.keys().copied().collect();
        for at in &all {
            self.lapse(now, *at);
        }
        let batches = self.flush(now, &all);
        self.reopen(now, &all);
        self.forget_settled(now, &all);
        batches
    }

    /// The store's answers to a batch, in its order. An answer that makes no sense is none.
    pub fn answered(&mut self, now: Instant, batch: u64, replies: &[Reply]) {
        let Some(sent) = self.sent.remove(&batch) else { return };
        if replies.len() != sent.keys.len() {
            return self.abandon(&sent);
        }
        self.answered = Some(now);
        for ((at, seq), reply) in sent.keys.into_iter().zip(replies) {
            self.settle(now, at, seq, reply);
        }
    }

    /// There will be no answer to this batch.
    pub fn failed(&mut self, batch: u64) {
        if let Some(sent) = self.sent.remove(&batch) {
            self.abandon(&sent);
        }
    }

    pub fn figures(&self, now: Instant) -> Figures {
        let leases = self.leases();
        let sum = |read: fn(&Tally) -> &AtomicU64| leases.rules().map_or(0, |all| all.sum(read));
        Figures {
            keys: self.keys.len() as u64,
            held: self.keys.keys().map(|at| u64::from(leases.view(*at).tokens)).sum(),
            parked: sum(|tally| &tally.parked),
            degraded_allowed: sum(|tally| &tally.allowed),
            degraded_refused: sum(|tally| &tally.refused),
            overrides: self.overrides.len() as u64,
            answered_ago: self.answered.map(|at| now.since(at)),
            ..self.counts
        }
    }

    /// The same for each limit.
    pub fn rules(&self) -> Vec<RuleFigures> {
        let leases = self.leases();
        let mut all: BTreeMap<u64, RuleFigures> = BTreeMap::new();
        for (rule, common) in &self.terms {
            let tally = leases.tally(*rule);
            let read = |read: fn(&Tally) -> &AtomicU64| tally.map_or(0, |t| read(t).load(Relaxed));
            let figures = RuleFigures {
                name: common.name.clone(),
                messages: common.messages,
                parked: read(|tally| &tally.parked),
                degraded_allowed: read(|tally| &tally.allowed),
                degraded_refused: read(|tally| &tally.refused),
                ..RuleFigures::default()
            };
            all.insert(*rule, figures);
        }
        for (at, key) in &self.keys {
            if let Some(figures) = all.get_mut(&key.rule) {
                figures.keys += 1;
                figures.held += u64::from(leases.view(*at).tokens);
            }
        }
        all.into_values().collect()
    }

    fn leases(&self) -> &Leases {
        &self.ledger.leases
    }

    /// Takes in what workers wish for. Returns the keys that they wish it of.
    fn heard(&mut self, now: Instant) -> Vec<At> {
        let mut stirred = Vec::new();
        while let Some(wish) = self.ledger.leases.wished() {
            let Some(terms) = self.terms_of(wish.rule, wish.name) else { continue };
            let Some(at) = self.ledger.leases.settle(wish.hash) else {
                self.counts.crowded += 1;
                continue;
            };
            if !self.keys.contains_key(&at) {
                let key = self.key(now, &wish, terms);
                self.keys.insert(at, key);
            }
            if wish.spent {
                self.ledger.leases.charge(wish.hash, wish.cost);
                continue;
            }
            if let Some(key) = self.keys.get_mut(&at) {
                key.lease.heed(wish.cost);
            }
            self.ledger.leases.want(at, wish.cost, now.as_nanos());
            stirred.push(at);
        }
        stirred
    }

    fn key(&self, now: Instant, wish: &Wish, terms: Terms) -> Key {
        let ([first, second], shard) = (wish.name, shard_of(wish.name));
        let name = self.terms.get(&wish.rule).map_or("", |common| &common.name);
        let name = format!("{{s{shard:03}}}{name}:{first:016x}{second:016x}");
        let lease = Lease::new(terms, self.seq + 1, micros(now));
        let (rule, pair, retires) = (wish.rule, wish.name, false);
        Key { name, pair, shard, rule, terms, retires, lease }
    }

    fn flush(&mut self, now: Instant, these: &[At]) -> Vec<Batch> {
        let mut shards: BTreeMap<u64, Vec<(At, String, Message)>> = BTreeMap::new();
        for at in these {
            let up = |key: &Key| self.up & bit(key.shard) != 0;
            if !self.keys.get(at).is_some_and(up) {
                continue;
            }
            if let Some((shard, name, message)) = self.message(now, *at) {
                shards.entry(shard).or_default().push((*at, name, message));
            }
        }
        let mut batches = Vec::new();
        for (shard, messages) in shards {
            for some in messages.chunks(BATCH_KEYS) {
                self.batch += 1;
                let keys = some.iter().map(|(at, _, m)| (*at, m.seq)).collect();
                self.sent.insert(self.batch, Sent { at: now, shard, keys });
                let keys = some.iter().map(|(_, name, m)| (name.clone(), *m)).collect();
                batches.push(Batch { id: self.batch, shard, keys });
            }
        }
        self.counts.batches += batches.len() as u64;
        batches
    }

    fn message(&mut self, now: Instant, at: At) -> Option<(u64, String, Message)> {
        self.lapse(now, at);
        let look = self.look(now, at);
        let key = self.keys.get_mut(&at)?;
        let farewell = self.farewell || key.retires;
        let leaves = farewell && (look.tokens > 0 || key.lease.owes(&look));
        if key.lease.waits() || !(leaves || key.lease.due(&look)) {
            return None;
        }
        let leases = &self.ledger.leases;
        let most = key.lease.keeps(&look, farewell);
        let (held, returned) = leases.cut(at, u32::try_from(most).unwrap_or(u32::MAX));
        key.lease.give(u64::from(returned));
        let look = Look { tokens: u64::from(held), wanted: leases.asked(at), ..look };
        self.seq += 1;
        let message = key.lease.message(&look, self.seq, farewell);
        let told = (key.shard, key.name.clone(), message);
        if let Some(common) = self.terms.get_mut(&key.rule) {
            common.messages += 1;
        }
        Some(told)
    }

    /// What is in hand past its deadline is not good any more.
    fn lapse(&mut self, now: Instant, at: At) {
        let view = self.leases().view(at);
        if view.tokens > 0 && now.as_nanos() >= view.deadline {
            self.drop_held(at);
        }
    }

    fn drop_held(&mut self, at: At) -> u64 {
        let dropped = u64::from(self.ledger.leases.empty(at));
        if let Some(key) = self.keys.get_mut(&at) {
            key.lease.give(dropped);
        }
        dropped
    }

    /// Where nobody asks by itself, requests do.
    fn reopen(&mut self, now: Instant, these: &[At]) {
        for at in these {
            let look = self.look(now, *at);
            if self.keys.get_mut(at).is_some_and(|key| key.lease.reopens(&look)) {
                self.ledger.leases.admit(*at);
            }
        }
    }

    fn settle(&mut self, now: Instant, at: At, seq: u64, reply: &Reply) {
        let Some(key) = self.keys.get_mut(&at) else { return };
        let Some(outcome) = key.lease.answer(micros(now), seq, reply) else { return };
        if outcome.void {
            self.counts.voided += self.drop_held(at);
        }
        self.lapse(now, at);
        let leases = &self.ledger.leases;
        if let Some(deadline) = outcome.deadline {
            let granted = u32::try_from(reply.granted).unwrap_or(u32::MAX);
            leases.add(at, granted, deadline.saturating_mul(1_000));
            if let Some(key) = self.keys.get_mut(&at) {
                key.lease.bring(u64::from(granted));
            }
        }
        leases.note(at, reply.left, outcome.denied_until.saturating_mul(1_000));
    }

    fn look(&self, now: Instant, at: At) -> Look {
        let view = self.leases().view(at);
        Look {
            now: micros(now),
            used: view.used / 1_000,
            deadline: view.deadline / 1_000,
            tokens: u64::from(view.tokens),
            seen: view.seen,
            wanted: view.wanted,
            unleased: view.unleased,
        }
    }

    fn abandon(&mut self, sent: &Sent) {
        self.counts.given_up += 1;
        for (at, seq) in &sent.keys {
            if let Some(key) = self.keys.get_mut(at) {
                key.lease.give_up(*seq);
            }
        }
    }

    fn forget_sent(&mut self, shards: u64) {
        let all = core::mem::take(&mut self.sent);
        let these = |(_, sent): &(u64, Sent)| shards & bit(sent.shard) != 0;
        let (gone, kept): (BTreeMap<_, _>, BTreeMap<_, _>) = all.into_iter().partition(these);
        self.sent = kept;
        gone.values().for_each(|sent| self.abandon(sent));
    }

    fn forget_settled(&mut self, now: Instant, these: &[At]) {
        for at in these {
            let look = self.look(now, *at);
            let gone = |key: &Key| {
                let leaves = self.farewell || key.retires;
                key.lease.settled(&look) || (leaves && key.lease.rests(&look))
            };
            if self.keys.get(at).is_some_and(gone) {
                self.keys.remove(at);
                self.ledger.leases.leave(*at);
            }
        }
    }
}

/// Where a key is kept that every gateway calls so.
pub(crate) const fn shard_of([_, second]: [u64; 2]) -> u64 {
    second % SHARDS
}

/// The set of this one.
pub(crate) const fn bit(shard: u64) -> u64 {
    1 << (shard % SHARDS)
}

const _: () = assert!(GUARD.as_millis() < LEASE.as_millis());
