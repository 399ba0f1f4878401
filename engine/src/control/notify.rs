//! Tells systemd how things stand. Without systemd, nobody.

use sd_notify::NotifyState;

use crate::clock;
use crate::event::event;

pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

pub(crate) fn reloading() {
    tell(&[NotifyState::Reloading, NotifyState::MonotonicUsec(clock::monotonic_us())]);
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        event!("notify_failed", why = e.to_string());
    }
}
