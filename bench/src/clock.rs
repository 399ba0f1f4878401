//! The only reader of clocks in this package: monotonic nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// One second in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock that `timerfd` is armed with.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// The same point as `timerfd` wants it.
pub(crate) fn timespec(at_ns: u64) -> Timespec {
    let seconds = i64::try_from(at_ns / SECOND_NS).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: (at_ns % SECOND_NS).cast_signed() }
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * SECOND_NS + time.tv_nsec.unsigned_abs()
}
