//! One key's side of the reservation protocol: when to tell the store, what, and what its answer
//! means. Pure: the tokens themselves are in `ledger::leases`.
//!
//! A message is the node's state, never a change of it: all that was spent, all that is held. So
//! nothing needs to be repeated, and an answer to any but the latest message is ignored.

use core::time::Duration;

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
/// What will be used until the next look and an answer to it.
const LOW_US: u64 = FLUSH_US + ROUND_TRIPS_US;
/// After this long without a request, nothing is fetched ahead.
const QUIET_US: u64 = 100_000;
const PAUSE_MIN_US: u64 = 4_000;
const PAUSE_MAX_US: u64 = 250_000;
const REPORT_US: u64 = 250_000;

/// How tokens leave the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Held in advance: for limits that are fast enough for it.
    Lease,
    /// Consumed one by one, as requests come: for those that are slow, or small.
    Direct,
}

/// A limit as the store counts it: `units` to a token, `refill` units a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub class: Class,
    pub units: u64,
    pub refill: u64,
    pub capacity: u32,
    /// What one request takes.
    pub cost: u32,
}

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
    /// Thousandths of a token a second. Of a direct rule: what one request costs.
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
    /// were granted, and are not counted again.
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
        match self.terms.class {
            Class::Direct => (wanted > 0 && may_ask) || unsettled,
            Class::Lease => {
                let low = tokens <= self.demand.saturating_mul(LOW_US) / 1_000_000_000;
                let renew = tokens > 0 && now + LEASE_US * 2 / 3 > look.deadline;
                (wanted > 0 && may_ask)
                    || (low && may_ask && silent < QUIET_US)
                    || (renew && silent < LEASE_US)
                    || ((tokens > 0 || unsettled) && silent > self.idle_us())
                    || report
            }
        }
    }

    /// How much may stay in hand when the next message is made.
    pub(crate) fn keeps(&self, look: &Look, farewell: bool) -> u64 {
        match self.terms.class {
            Class::Direct => u64::MAX,
            Class::Lease if farewell || self.idle(look) => 0,
            Class::Lease => 2 * self.target(),
        }
    }

    pub(crate) fn bring(&mut self, tokens: u64) {
        if self.terms.class == Class::Lease {
            self.brought += tokens;
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
        let (held, want, demand) = match terms.class {
            Class::Direct => (0, look.wanted, u64::from(terms.cost)),
            Class::Lease if idle || self.debtor => (look.tokens, 0, 0),
            Class::Lease => {
                let most = u64::from(terms.capacity / 2).max(1);
                let want = self.target().max(look.wanted).min(most);
                (look.tokens, want.saturating_sub(look.tokens), self.demand)
            }
        };
        let message = Message {
            terms,
            lease_us: LEASE_US,
            seq,
            born: self.born,
            spent: self.spent(look),
            held,
            want,
            demand,
            elapsed_us,
            since_seq,
        };
        self.reported = now;
        self.sent = Some(Sent { at: now, message });
        message
    }

    /// None: an answer to a message that was given up.
    pub(crate) fn answer(&mut self, now: u64, seq: u64, reply: &Reply) -> Option<Outcome> {
        let Sent { at, message } = self.sent.filter(|sent| sent.message.seq == seq)?;
        self.sent = None;
        self.answered = Some((at, seq));
        self.settled = message.spent;
        self.plenty = reply.left * 8 > u64::from(message.terms.capacity) * 3;
        let void = reply.flags & Reply::VOID != 0;
        if message.terms.class == Class::Direct {
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
            return Some(Outcome { void, deadline, denied_until: self.settle_debt(now) });
        }
        self.batch = reply.granted.max(1);
        let limited = message.want > 0 && reply.granted < message.want;
        self.next = if limited { now + pause(&message.terms, reply) } else { now };
        let denied_until = if limited { self.next } else { 0 };
        Some(Outcome { void, deadline, denied_until })
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

    /// Whether nothing is lost when this key is forgotten.
    pub(crate) fn settled(&self, look: &Look) -> bool {
        let silent = look.now.saturating_sub(look.used);
        self.sent.is_none()
            && look.tokens == 0
            && look.wanted == 0
            && self.spent(look) == self.settled
            && look.now > self.next
            && silent > LEASE_US
    }

    fn spent(&self, look: &Look) -> u64 {
        self.brought.saturating_sub(look.tokens) + look.unleased
    }

    /// First tell, then give the other nodes time to tell, too, then ask.
    fn settle_debt(&mut self, now: u64) -> u64 {
        if self.grace {
            (self.debtor, self.grace, self.next) = (false, false, now);
            return 0;
        }
        self.grace = true;
        self.next = now + QUIET_US;
        self.next
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
        let needed = self.demand.saturating_mul(interval + ROUND_TRIPS_US) / 1_000_000_000 + 2;
        let target = needed.max(BATCH.min(2 * self.batch));
        target.min(u64::from(self.terms.capacity / 4).max(1))
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
        if self.plenty { LEASE_US } else { REPORT_US }
    }
}

/// How long to leave the store alone that gave less than was asked for: until a batch is there at
/// the node's fair rate.
fn pause(terms: &Terms, reply: &Reply) -> u64 {
    let batch = (BATCH * 1_000_000_000).checked_div(reply.fair).unwrap_or(PAUSE_MAX_US);
    let eighth = u64::from(terms.capacity).saturating_mul(terms.units)
        / terms.refill.saturating_mul(8).max(1);
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
