//! One key's side of the reservation protocol: when to tell the store, what, and what its answer
//! means. Pure: the tokens themselves are in `ledger::leases`.
//!
//! A message is the node's state, never a change of it: all that was spent, all that is held. So
//! nothing needs to be repeated, and an answer to any but the latest message is ignored.

use core::time::Duration;

pub use crate::mechanism::terms::{Class, Count, Terms};
use crate::time::Instant;

/// What is held may be spent for this long after it was asked for, by the store's clock.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// The node stops this much earlier: clocks drift, and threads are late.
pub(crate) const GUARD: Duration = Duration::from_millis(20);
/// Tokens of a direct rule wait this long for the request that they were consumed for.
pub(crate) const TICKET: Duration = Duration::from_millis(20);

/// Tokens that are worth a message.
const BATCH: u64 = 192;
const LEASE_US: u64 = 1_000_000;
const FLUSH_US: u64 = 5_000;
const ROUND_TRIPS_US: u64 = 2_000;
/// Until the next look but one, because looks are late at times.
const LOOKS_US: u64 = 2 * FLUSH_US;
/// A node that asks again by itself refuses until it has an answer, but for no longer than this:
/// a request that waited for it would most likely be refused as well. Then the store is lost.
const ASKING_US: u64 = 100_000;
/// After this long without a request, nothing is fetched ahead.
const QUIET_US: u64 = 100_000;
const PAUSE_MIN_US: u64 = 4_000;
const PAUSE_MAX_US: u64 = 250_000;
/// Free places that a node keeps for its next requests.
const SPARE: u64 = 4;

/// One key of one message. The store's script reads these in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub terms: Terms,
    pub lease_us: u64,
    pub seq: u64,
    pub born: u64,
    pub spent: u64,
    pub held: u64,
    pub want: u64,
    /// Thousandths of a token a second. Of a direct rule: the most that a request costs.
    pub demand: u64,
    pub elapsed_us: u64,
    pub since_seq: u64,
}

/// What the store says of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub granted: u64,
    pub left: u64,
    pub wait_us: u64,
    pub fair: u64,
    pub flags: u64,
}

impl Reply {
    /// What the node says it holds, it does not: drop it.
    pub const VOID: u64 = 1;
}

/// What the node knows of a key when it looks. Times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) now: u64,
    pub(crate) used: u64,
    pub(crate) deadline: u64,
    pub(crate) tokens: u64,
    pub(crate) seen: u64,
    pub(crate) wanted: u64,
    pub(crate) unleased: u64,
}

/// What to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Drop what is in hand.
    pub(crate) void: bool,
    /// Microseconds; None: no token, because it came too late to be of use.
    pub(crate) deadline: Option<u64>,
    pub(crate) denied_until: u64,
}

#[derive(Debug)]
pub(crate) struct Lease {
    terms: Terms,
    born: u64,
    /// Tokens brought in, less those given up unspent. Those of a direct rule were spent when they
    /// were granted, and are not counted again. Places: free ones and those in use.
    brought: u64,
    /// What the store knows to be spent.
    settled: u64,
    demand: u64,
    seen: u64,
    measured: u64,
    reported: u64,
    batch: u64,
    next: u64,
    sent: Option<Sent>,
    answered: Option<(u64, u64)>,
    /// Spent on its own since the store was lost: to be settled before anything is asked for.
    debtor: bool,
    grace: bool,
    plenty: bool,
    /// The most that a request costs of those that wait.
    dearest: u64,
    /// The store has not heard of these terms.
    anew: bool,
    /// Requests are refused until an answer that the node gets by itself.
    closed: bool,
    /// The store counts from what it was told first, so that must be nothing.
    known: bool,
    /// How long answers took of late: up at once, down slowly.
    trip: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: u64,
    message: Message,
}

pub(crate) fn micros(at: Instant) -> u64 {
    at.as_nanos() / 1_000
}

impl Lease {
    pub(crate) fn new(terms: Terms, born: u64, now: u64) -> Self {
        Self {
            terms,
            born,
            brought: 0,
            settled: 0,
            demand: 0,
            seen: 0,
            measured: now,
            reported: now,
            batch: 8,
            next: 0,
            sent: None,
            answered: None,
            debtor: false,
            grace: false,
            plenty: true,
            dearest: 0,
            anew: false,
            closed: false,
            known: false,
            trip: ROUND_TRIPS_US,
        }
    }

    /// Whether there is something to tell or to ask.
    pub(crate) fn due(&self, look: &Look) -> bool {
        let Look { now, tokens, wanted, .. } = *look;
        if self.sent.is_some() {
            return false;
        }
        let unsettled = self.spent(look) != self.settled;
        let (may_ask, silent) = (now >= self.next, now.saturating_sub(look.used));
        let report = unsettled && now.saturating_sub(self.reported) > self.report_us();
        let fetch = self.anew || (wanted > 0 && may_ask);
        match (self.terms.count, self.terms.class) {
            (Count::Places, class) => fetch || report || self.places_due(look, class),
            (_, Class::Direct) => fetch || unsettled,
            (_, Class::Lease) => {
                let low = tokens <= self.demand.saturating_mul(self.low_us()) / 1_000_000_000;
                let renew = tokens > 0 && now + LEASE_US * 2 / 3 > look.deadline;
                fetch
                    || (low && may_ask && silent < QUIET_US)
                    || (renew && silent < LEASE_US)
                    || ((tokens > 0 || unsettled) && silent > self.idle_us())
                    || report
            }
        }
    }

    /// Places that are taken are told of anew before their lease ends, and free ones go back.
    fn places_due(&self, look: &Look, class: Class) -> bool {
        let Look { now, tokens, .. } = *look;
        let since = now.saturating_sub(self.reported);
        let renew = (tokens > 0 || self.spent(look) > 0) && since > LEASE_US / 3;
        let spare = match class {
            Class::Direct => tokens > 0 && since >= us(TICKET),
            Class::Lease => {
                (tokens > 2 * self.target() && since > us(TICKET))
                    || (tokens > 0 && now.saturating_sub(look.used) > QUIET_US)
            }
        };
        renew || spare
    }

    /// How much may stay in hand when the next message is made.
    pub(crate) fn keeps(&self, look: &Look, farewell: bool) -> u64 {
        match (self.terms.count, self.terms.class) {
            (Count::Places, Class::Direct) if farewell => 0,
            (Count::Places, Class::Direct) => look.wanted,
            (Count::Bucket | Count::Window, Class::Direct) => u64::MAX,
            (_, Class::Lease) if farewell || self.idle(look) => 0,
            (_, Class::Lease) => 2 * self.target(),
        }
    }

    /// Somebody waits for this much.
    pub(crate) fn heed(&mut self, cost: u32) {
        self.dearest = self.dearest.max(u64::from(cost));
    }

    /// The same key, by other numbers.
    pub(crate) fn adopt(&mut self, terms: Terms) {
        (self.terms, self.next, self.anew) = (terms, 0, true);
    }

    pub(crate) fn bring(&mut self, tokens: u64) {
        if self.counts_brought() {
            self.brought += tokens;
        }
    }

    const fn counts_brought(&self) -> bool {
        match (self.terms.count, self.terms.class) {
            (Count::Places, _) | (_, Class::Lease) => true,
            (Count::Bucket | Count::Window, Class::Direct) => false,
        }
    }

    pub(crate) fn give(&mut self, tokens: u64) {
        self.brought = self.brought.saturating_sub(tokens);
    }

    /// The next message. `look` is as of after the cut to `keeps`.
    pub(crate) fn message(&mut self, look: &Look, seq: u64, farewell: bool) -> Message {
        let (now, terms) = (look.now, self.terms);
        self.measure(look);
        let idle = farewell || self.idle(look);
        let (elapsed_us, since_seq) =
            self.answered.map_or((0, 0), |(at, seq)| (now.saturating_sub(at), seq));
        let dearest = core::mem::take(&mut self.dearest).max(u64::from(terms.cost));
        let most = match terms.count {
            Count::Places => u64::from(terms.capacity),
            Count::Bucket | Count::Window => u64::from(terms.capacity / 2).max(dearest),
        };
        let ahead = |want: u64| want.max(look.wanted).min(most).saturating_sub(look.tokens);
        let (held, want, demand) = match (terms.count, terms.class) {
            (Count::Bucket | Count::Window, Class::Direct) => (0, look.wanted, dearest),
            (_, _) if idle || self.debtor => (look.tokens, 0, 0),
            (Count::Places, Class::Direct) => (look.tokens, ahead(0), 0),
            (_, Class::Lease) => (look.tokens, ahead(self.target()), self.demand),
        };
        let places = terms.count == Count::Places;
        let message = Message {
            terms,
            lease_us: LEASE_US,
            seq,
            born: self.born,
            spent: if self.known || places { self.spent(look) } else { 0 },
            held,
            want,
            demand,
            elapsed_us,
            since_seq,
        };
        (self.reported, self.anew) = (now, false);
        self.sent = Some(Sent { at: now, message });
        message
    }

    /// None: an answer to a message that was given up.
    pub(crate) fn answer(&mut self, now: u64, seq: u64, reply: &Reply) -> Option<Outcome> {
        let Sent { at, message } = self.sent.filter(|sent| sent.message.seq == seq)?;
        self.sent = None;
        self.answered = Some((at, seq));
        let trip = now.saturating_sub(at).clamp(ROUND_TRIPS_US, ASKING_US);
        self.trip = trip.max((7 * self.trip + trip) / 8);
        (self.settled, self.known) = (message.spent, true);
        self.plenty = reply.left * 8 > u64::from(message.terms.capacity) * 3;
        let void = reply.flags & Reply::VOID != 0;
        let places = message.terms.count == Count::Places;
        if message.terms.class == Class::Direct && !places {
            let short = reply.granted < message.want || (reply.left == 0 && reply.wait_us > 0);
            let denied_until = if short { now + reply.wait_us } else { 0 };
            self.next = denied_until;
            let deadline = Some(now + us(TICKET)).filter(|_| reply.granted > 0);
            return Some(Outcome { void, deadline, denied_until });
        }
        let deadline = at + message.lease_us - us(GUARD);
        if now >= deadline {
            return Some(Outcome { void: true, deadline: None, denied_until: 0 });
        }
        let deadline = Some(deadline);
        if self.debtor {
            self.settle_debt(now);
            self.closed = true;
            return Some(Outcome { void, deadline, denied_until: self.next + ASKING_US });
        }
        self.batch = reply.granted.max(1);
        let limited = message.want > 0 && reply.granted < message.want;
        let pause = if places { reply.wait_us } else { pause(&message.terms, reply) };
        self.next = if limited { now + pause } else { now };
        self.closed = limited && !places;
        let denied_until = match (limited, self.closed) {
            (true, true) => self.next + ASKING_US,
            (true, false) => self.next,
            (false, _) => 0,
        };
        Some(Outcome { void, deadline, denied_until })
    }

    /// Requests are to ask for themselves again: it is time to, and the node does not because few
    /// come.
    pub(crate) fn reopens(&mut self, look: &Look) -> bool {
        let due = self.closed && look.now >= self.next && self.sent.is_none();
        if due {
            self.closed = false;
        }
        due
    }

    /// No answer will come, or none that is of use.
    pub(crate) fn give_up(&mut self, seq: u64) {
        self.sent = self.sent.filter(|sent| sent.message.seq != seq);
    }

    pub(crate) fn waits(&self) -> bool {
        self.sent.is_some()
    }

    /// The store was lost, and requests have been admitted without it.
    pub(crate) fn owe(&mut self) {
        (self.debtor, self.grace) = (true, false);
    }

    /// Whether the store does not know of all that was spent.
    pub(crate) fn owes(&self, look: &Look) -> bool {
        self.spent(look) != self.settled
    }

    /// Whether it holds nothing, owes nothing and waits for nothing.
    pub(crate) fn rests(&self, look: &Look) -> bool {
        look.tokens == 0 && self.sent.is_none() && !self.owes(look) && !self.is_used(look)
    }

    /// Whether nothing is lost when this key is forgotten.
    pub(crate) fn settled(&self, look: &Look) -> bool {
        let silent = look.now.saturating_sub(look.used);
        self.rests(look) && look.wanted == 0 && look.now > self.next && silent > LEASE_US
    }

    /// Whether places of it are taken.
    pub(crate) fn is_used(&self, look: &Look) -> bool {
        self.terms.count == Count::Places && self.spent(look) > 0
    }

    /// Of places: those that are in use.
    fn spent(&self, look: &Look) -> u64 {
        self.brought.saturating_sub(look.tokens) + look.unleased
    }

    /// First tell, then give the other nodes time to tell, too, then ask.
    fn settle_debt(&mut self, now: u64) {
        if self.grace {
            (self.debtor, self.grace, self.next) = (false, false, now);
        } else {
            (self.grace, self.next) = (true, now + QUIET_US);
        }
    }

    fn measure(&mut self, look: &Look) {
        let span = look.now.saturating_sub(self.measured);
        if span < FLUSH_US {
            return;
        }
        let arrived = look.seen.saturating_sub(self.seen);
        let rate = arrived.saturating_mul(1_000_000_000) / span;
        // Up at once, down slowly.
        self.demand = if rate > self.demand { rate } else { (7 * self.demand + 3 * rate) / 10 };
        (self.seen, self.measured) = (look.seen, look.now);
    }

    /// Enough until the next message that is worth sending, and for the way there and back. Starts
    /// small and doubles.
    fn target(&self) -> u64 {
        let interval = (BATCH * 1_000_000_000)
            .checked_div(self.demand)
            .unwrap_or(LEASE_US)
            .clamp(FLUSH_US, LEASE_US / 2);
        let interval = match self.terms.count {
            Count::Bucket | Count::Places => interval,
            Count::Window => interval.min(self.terms.report_us()),
        };
        let needed = self.demand.saturating_mul(interval + self.low_us()) / 1_000_000_000 + 2;
        let target = needed.max(BATCH.min(2 * self.batch));
        match self.terms.count {
            Count::Bucket | Count::Window => target.min(u64::from(self.terms.capacity / 4).max(1)),
            Count::Places => SPARE,
        }
    }

    /// What is in hand must last until the next look and an answer to it.
    const fn low_us(&self) -> u64 {
        LOOKS_US + self.trip
    }

    fn idle(&self, look: &Look) -> bool {
        look.now.saturating_sub(look.used) > self.idle_us() && look.wanted == 0
    }

    /// Five requests' time without one.
    fn idle_us(&self) -> u64 {
        let five = 5_000_000_000_u64.checked_div(self.demand).unwrap_or(0);
        five.clamp(QUIET_US, LEASE_US / 2)
    }

    fn report_us(&self) -> u64 {
        if self.plenty { LEASE_US } else { self.terms.report_us() }
    }
}

/// How long to leave the store alone that gave less than was asked for: until a batch is there at
/// the node's fair rate.
fn pause(terms: &Terms, reply: &Reply) -> u64 {
    let batch = (BATCH * 1_000_000_000).checked_div(reply.fair).unwrap_or(PAUSE_MAX_US);
    let eighth = match terms.count {
        Count::Bucket | Count::Places => terms.whole_us() / 8,
        Count::Window => terms.whole_us() / 64,
    };
    let pause = batch.max(PAUSE_MIN_US).min(eighth.max(PAUSE_MIN_US)).min(PAUSE_MAX_US);
    if reply.granted > 0 {
        return pause;
    }
    let wait =
        if reply.wait_us < 2_000_000 { reply.wait_us.min(PAUSE_MAX_US) } else { reply.wait_us / 4 };
    pause.max(wait)
}

fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
