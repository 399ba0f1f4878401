//! Waiting for an event, never for a time: gates, growing lists, and conditions with a hard limit.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// No wait in the suite is longer. Long enough for a loaded two-core machine, short enough that a
/// hung gateway costs a test and not the run.
pub const LIMIT: Duration = Duration::from_secs(10);

/// A door that scripts wait at and tests open. Clones are the same door.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Watched<bool>>);

impl Gate {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.0.change(|open| *open = true);
    }

    /// Waits until the gate is open; whether it opened within [`LIMIT`].
    #[must_use]
    pub fn wait(&self) -> bool {
        self.0.until(|open| open.then_some(())).is_some()
    }
}

/// A value that can be waited on.
#[derive(Debug, Default)]
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.lock())
    }

    /// Waits until `look` finds something; `None` after [`LIMIT`].
    pub fn until<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let end = Instant::now() + LIMIT;
        let mut value = self.lock();
        loop {
            if let Some(found) = look(&value) {
                return Some(found);
            }
            let left = end.checked_duration_since(Instant::now())?;
            value =
                self.changed.wait_timeout(value, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    // A script that panicked has already failed its test; its records are still worth reading.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets 50 ms pass. For what is itself a matter of pace, such as a client that reads slowly; never
/// to give the gateway time for something.
pub fn moment() {
    let never = Gate::new();
    let guard = never.0.lock();
    drop(never.0.changed.wait_timeout(guard, Duration::from_millis(50)));
}

/// Waits for a point in time. For load that comes at a rate; never to give the gateway time for
/// something.
pub fn pace(until: Instant) {
    let never = Gate::new();
    let guard = never.0.lock();
    drop(never.0.changed.wait_timeout(guard, until.saturating_duration_since(Instant::now())));
}

/// Asks again and again until `look` finds something. For what announces nothing, such as a file
/// another process writes; prefer [`Watched::until`].
///
/// # Panics
/// When nothing was found within [`LIMIT`].
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let never = Gate::new();
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        // Five milliseconds keep the asking cheap and the test quick.
        let guard = never.0.lock();
        drop(never.0.changed.wait_timeout(guard, Duration::from_millis(5)));
    }
    panic!("waited {LIMIT:?} in vain for: {what}");
}
