//! The loop that drives a load: sends what is due, reads what comes, keeps the tally.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use mio::{Events, Poll, Token};

use super::connection::{Connection, Happened};
use super::request::Payload;
use super::schedule::Schedule;
use super::tally::{End, Failure, Outcome};
use super::{Pace, Step, Work};
use crate::alarm::Alarm;
use crate::clock;
use crate::cpu::{self, Scheduled};
use crate::origin::Origin;
use crate::unit::nanoseconds;

/// What a watcher of a run is told, from the load's own thread: answer quickly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// The warm-up is over; the measured window begins.
    Measuring,
    /// Another second has passed; counts are of that second.
    Second { warming: bool, answered: u64, failed: u64 },
    /// The measured window is over; late answers are still awaited.
    Measured,
}

/// Does the work on this thread and says what it saw. `stop` ends it early.
pub fn run(work: &Work, stop: &AtomicBool, watch: &mut dyn FnMut(Moment)) -> Result<Outcome> {
    let mut drive = Drive::new(work, TICK).context("cannot set up the load")?;
    while drive.turn(watch).context("the load's event loop broke")? != Turn::Last {
        if stop.load(Ordering::Relaxed) {
            drive.end_now();
        }
    }
    Ok(drive.settle())
}

/// As [`run`], with the origin on the same thread, which never sleeps. Load and origin on one CPU
/// otherwise wait for each other, and at high percentiles that is most of what is seen.
pub fn run_looking(
    work: &Work,
    origin: &mut Origin,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Moment),
) -> Result<Outcome> {
    let mut drive = Drive::new(work, Duration::ZERO).context("cannot set up the load")?;
    loop {
        let began = clock::now_ns();
        let turn = drive.turn(watch).context("the load's event loop broke")?;
        let served = origin.turn(Duration::ZERO).context("the origin's event loop broke")?;
        match turn {
            Turn::Last => return Ok(drive.settle()),
            Turn::Vain if !served => drive.looked(clock::now_ns() - began),
            Turn::Vain | Turn::Some => {}
        }
        if stop.load(Ordering::Relaxed) {
            drive.end_now();
        }
    }
}

/// What a turn of the loop came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing was due and nothing came.
    Vain,
    Some,
    /// Everything is over.
    Last,
}

struct Drive<'a> {
    work: &'a Work,
    payload: Payload,
    poll: Poll,
    alarm: Alarm,
    /// How long to wait for something to come. Zero: somebody else has the thread between.
    patience: Duration,
    events: Events,
    buffer: Vec<u8>,
    /// `None` in a closed loop.
    schedule: Option<Schedule>,
    connections: Vec<Connection>,
    /// Free connections, longest rested first, so that all of them are used.
    idle: VecDeque<usize>,
    /// Failed a moment ago; free again at the next tick, so that a dead target is not hammered.
    resting: Vec<usize>,
    in_flight: usize,
    warm_end_ns: u64,
    end_ns: u64,
    started: u64,
    phase: Phase,
    cpu: Scheduled,
    /// Went by in the window in looking when nothing had come.
    vain: Duration,
    /// Until the window began.
    moved_bytes: u64,
    next_tick_ns: u64,
    next_second_ns: u64,
    second: (u64, u64),
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    WarmUp,
    Window,
    Grace,
}

impl<'a> Drive<'a> {
    fn new(work: &'a Work, patience: Duration) -> io::Result<Self> {
        let poll = Poll::new()?;
        let alarm = Alarm::new(poll.registry(), TIMER)?;
        let payload = Payload::new(work);
        let now = clock::now_ns();
        let warm_end_ns = now + nanoseconds(work.warm_up);
        let schedule = match &work.pace {
            Pace::Closed => None,
            Pace::Open { rate, arrivals } => {
                let step = Step { rate: *rate, lasts: Duration::MAX };
                Some(Schedule::new(now, vec![step], *arrivals, work.seed))
            }
            Pace::Stepped { steps, arrivals } => {
                Some(Schedule::new(now, steps.clone(), *arrivals, work.seed))
            }
        };
        let count = work.connections as usize;
        Ok(Self {
            work,
            connections: (0..count).map(|_| Connection::new(payload.is_head)).collect(),
            payload,
            poll,
            alarm,
            patience,
            events: Events::with_capacity(EVENTS),
            buffer: vec![0; READ_BYTES],
            schedule,
            idle: (0..count).collect(),
            resting: Vec::new(),
            in_flight: 0,
            warm_end_ns,
            end_ns: warm_end_ns + nanoseconds(work.duration),
            started: 0,
            phase: Phase::WarmUp,
            cpu: Scheduled::default(),
            vain: Duration::ZERO,
            moved_bytes: 0,
            next_tick_ns: now,
            next_second_ns: now + clock::SECOND_NS,
            second: (0, 0),
            outcome: Outcome::default(),
        })
    }

    /// One turn of the loop.
    fn turn(&mut self, watch: &mut dyn FnMut(Moment)) -> io::Result<Turn> {
        let now = clock::now_ns();
        self.advance_phase(now, watch);
        let begun = self.dispatch(now);
        if self.phase == Phase::Grace && self.is_over(now) {
            return Ok(Turn::Last);
        }
        if !self.patience.is_zero() {
            self.arm()?;
        }
        match self.poll.poll(&mut self.events, Some(self.patience)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let came = self.take_events();
        let now = clock::now_ns();
        if now >= self.next_tick_ns {
            self.next_tick_ns = now + nanoseconds(TICK);
            self.idle.extend(self.resting.drain(..));
            self.time_out(now);
        }
        Ok(if begun || came { Turn::Some } else { Turn::Vain })
    }

    /// False: there were none.
    fn take_events(&mut self) -> bool {
        let events = mem::replace(&mut self.events, Events::with_capacity(0));
        for event in events.iter().filter(|event| event.token() != TIMER) {
            let (ends, slot) = (event.is_read_closed() || event.is_error(), event.token().0);
            let connection = &mut self.connections[slot];
            let happened = connection.ready(
                event.is_writable(),
                event.is_readable(),
                ends,
                &self.payload,
                &mut self.buffer,
            );
            self.note(slot, &happened);
        }
        let came = !events.is_empty();
        self.events = events;
        came
    }

    /// A turn was in vain and took so long.
    fn looked(&mut self, lasted_ns: u64) {
        if self.phase == Phase::Window {
            self.vain += Duration::from_nanos(lasted_ns.min(LOOK_NS_MAX));
        }
    }

    fn advance_phase(&mut self, now: u64, watch: &mut dyn FnMut(Moment)) {
        if self.phase == Phase::WarmUp && now >= self.warm_end_ns {
            self.phase = Phase::Window;
            self.cpu = cpu::this_task();
            self.moved_bytes = self.moved();
            watch(Moment::Measuring);
        }
        if self.phase < Phase::Grace && now >= self.end_ns {
            if self.phase == Phase::Window {
                let used = cpu::this_task().since(self.cpu);
                let ran = used.ran.saturating_sub(self.vain);
                self.outcome.load_cpu = Scheduled { ran, ..used };
                self.outcome.moved_bytes = self.moved() - self.moved_bytes;
                watch(Moment::Measured);
            }
            self.phase = Phase::Grace;
        }
        if now >= self.next_second_ns {
            self.next_second_ns += clock::SECOND_NS;
            let (answered, failed) = mem::take(&mut self.second);
            watch(Moment::Second { warming: self.phase == Phase::WarmUp, answered, failed });
        }
    }

    /// Sends what is due on what is free; false: nothing. In a closed loop a request is due when it
    /// is sent.
    fn dispatch(&mut self, now: u64) -> bool {
        let mut begun = false;
        while let Some(&slot) = self.idle.front() {
            let due = self.schedule.as_ref().map_or(now, Schedule::peek);
            if due > now || due >= self.end_ns || self.started >= self.work.requests_max {
                break;
            }
            begun = true;
            self.idle.pop_front();
            let sent = clock::now_ns();
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
                self.begin(slot, due, sent);
            } else {
                self.begin(slot, sent, sent);
            }
        }
        begun
    }

    fn begin(&mut self, slot: usize, due: u64, sent: u64) {
        if self.is_measured(due) {
            self.started += 1;
            if self.started == self.work.requests_max {
                self.end_ns = due + 1;
            }
        }
        self.in_flight += 1;
        let connection = &mut self.connections[slot];
        (connection.due_ns, connection.sent_ns) = (due, sent);
        let (registry, address) = (self.poll.registry(), self.work.target.address);
        let happened = connection.begin(address, registry, Token(slot), &self.payload);
        self.note(slot, &happened);
    }

    fn note(&mut self, slot: usize, happened: &Happened) {
        let (due, sent) = (self.connections[slot].due_ns, self.connections[slot].sent_ns);
        match happened {
            Happened::Nothing => {}
            Happened::Answered(answer) => {
                let now = clock::now_ns();
                self.in_flight -= 1;
                self.idle.push_back(slot);
                self.second.0 += 1;
                if self.is_measured(now) {
                    self.outcome.in_window += 1;
                    self.outcome.body_bytes += answer.body_bytes;
                }
                if self.is_measured(due) {
                    self.outcome.answered += 1;
                    *self.outcome.statuses.entry(answer.status).or_default() += 1;
                    self.outcome.latency.record_ns(now.saturating_sub(due));
                    self.outcome.service.record_ns(now.saturating_sub(sent));
                }
                self.keep(due, now, Ok(answer.status));
            }
            Happened::Failed(failure) => {
                self.in_flight -= 1;
                self.resting.push(slot);
                self.second.1 += 1;
                if self.is_measured(due) {
                    self.outcome.fail(*failure);
                }
                self.keep(due, clock::now_ns(), Err(*failure));
            }
        }
    }

    fn time_out(&mut self, now: u64) {
        let oldest = now.saturating_sub(nanoseconds(self.work.timeout));
        for slot in 0..self.connections.len() {
            let connection = &mut self.connections[slot];
            if connection.is_busy() && connection.sent_ns < oldest {
                let due = connection.due_ns;
                let happened = connection.fail(Failure::Timeout);
                self.record_age(due, now);
                self.note(slot, &happened);
            }
        }
    }

    /// A request that was given up waited at least this long.
    fn record_age(&mut self, due: u64, now: u64) {
        if self.is_measured(due) {
            self.outcome.latency.record_ns(now.saturating_sub(due));
        }
    }

    fn keep(&mut self, due: u64, now: u64, came: Result<u16, Failure>) {
        if self.work.keep_ends && self.is_measured(due) {
            let since = |at: u64| Duration::from_nanos(at - self.warm_end_ns);
            self.outcome.ends.push(End { due: since(due), ended: since(now), came });
        }
    }

    fn moved(&self) -> u64 {
        self.connections.iter().map(|connection| connection.moved).sum()
    }

    fn is_measured(&self, at: u64) -> bool {
        (self.warm_end_ns..self.end_ns).contains(&at)
    }

    fn is_over(&self, now: u64) -> bool {
        (self.in_flight == 0 && !self.has_backlog())
            || now >= self.end_ns + nanoseconds(self.work.grace)
    }

    fn has_backlog(&self) -> bool {
        self.schedule.as_ref().is_some_and(|schedule| schedule.peek() < self.end_ns)
    }

    /// Wakes the poll exactly when the next request is due.
    fn arm(&mut self) -> io::Result<()> {
        let due = self.schedule.as_ref().map(Schedule::peek).filter(|due| *due < self.end_ns);
        match due {
            Some(due) if !self.idle.is_empty() => self.alarm.set(due),
            Some(_) | None => Ok(()),
        }
    }

    fn end_now(&mut self) {
        self.end_ns = self.end_ns.min(clock::now_ns());
    }

    /// Counts what never got an answer.
    fn settle(mut self) -> Outcome {
        let now = clock::now_ns();
        for slot in 0..self.connections.len() {
            if self.connections[slot].is_busy() {
                let due = self.connections[slot].due_ns;
                self.record_age(due, now);
                self.note(slot, &Happened::Failed(Failure::Unanswered));
            }
        }
        while let Some(due) =
            self.schedule.as_ref().map(Schedule::peek).filter(|due| *due < self.end_ns)
        {
            if self.is_measured(due) {
                self.record_age(due, now);
                self.outcome.fail(Failure::Unsent);
                self.keep(due, now, Err(Failure::Unsent));
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
        }
        self.outcome.window = Duration::from_nanos(self.end_ns.saturating_sub(self.warm_end_ns));
        self.outcome
    }
}

/// A turn in vain takes less; longer, and somebody else had the CPU meanwhile.
const LOOK_NS_MAX: u64 = 20_000;
const TIMER: Token = Token(usize::MAX);
const EVENTS: usize = 1024;
/// One read takes a whole ordinary answer, and a large one in few.
const READ_BYTES: usize = 256 * 1024;
/// How often timeouts, rests and the end of a phase are looked at when nothing else happens.
const TICK: Duration = Duration::from_millis(10);
