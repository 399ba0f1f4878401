//! What operators have switched by hand, until when, and the end of it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::degrade::{Cause, Switches};
use sluice_policy::health::Drained;
use sluice_policy::plan::{EndpointKey, GroupKey, RouteKey};
use sluice_policy::time::{Instant, Wall};

use super::desk::Desk;
use crate::clock;
use crate::event::event;

/// Everything that is switched. Lost when the process ends: it starts as its file says.
#[derive(Debug, Default)]
pub(crate) struct Switchboard {
    set: Vec<Switch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) what: What,
    /// Since 1970.
    pub(crate) since: Duration,
    /// None: until somebody switches back.
    pub(crate) until: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The routes of this group are off.
    Off { group: String },
    /// Only vital routes live.
    Survival,
    /// This route behaves as if that had happened.
    Drill { route: String, cause: Cause },
    /// This server gets no requests. It is called `upstream/server`.
    Drain { server: String, key: EndpointKey },
}

impl What {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Off { .. } => "group",
            Self::Survival => "survival",
            Self::Drill { .. } => "drill",
            Self::Drain { .. } => "drain",
        }
    }

    /// Of the group or the route; none for what is about all of them.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Off { group } => Some(group),
            Self::Survival => None,
            Self::Drill { route, .. } => Some(route),
            Self::Drain { server, .. } => Some(server),
        }
    }

    pub(crate) const fn cause(&self) -> Option<Cause> {
        match self {
            Self::Off { .. } | Self::Survival | Self::Drain { .. } => None,
            Self::Drill { cause, .. } => Some(*cause),
        }
    }

    fn same_switch(&self, other: &Self) -> bool {
        (self.kind(), self.name()) == (other.kind(), other.name())
    }
}

impl Switchboard {
    /// Switch this, or switch it anew with another end.
    pub(crate) fn set(&mut self, what: What, until: Option<Instant>) {
        self.set.retain(|switch| !switch.what.same_switch(&what));
        self.set.push(Switch { what, since: clock::since_1970(), until });
    }

    /// Switch this back. A drill is named by its route, whatever its cause.
    pub(crate) fn clear(&mut self, what: &What) {
        self.set.retain(|switch| !switch.what.same_switch(what));
    }

    pub(crate) fn all(&self) -> &[Switch] {
        &self.set
    }

    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.set.iter().filter_map(|switch| switch.until).min()
    }

    /// Takes out what is over by now.
    pub(crate) fn end(&mut self, now: Instant) -> Vec<What> {
        let over = |switch: &Switch| switch.until.is_some_and(|until| until <= now);
        let ended = self.set.iter().filter(|switch| over(switch));
        let ended = ended.map(|switch| switch.what.clone()).collect();
        self.set.retain(|switch| !over(switch));
        ended
    }

    /// Servers that get no requests.
    pub(crate) fn drained(&self) -> Vec<Drained> {
        let drained = self.set.iter().filter_map(|switch| match switch.what {
            What::Drain { key, .. } => {
                let since = Wall(switch.since.as_secs());
                Some(Drained { endpoint: key, since, until: switch.until })
            }
            What::Off { .. } | What::Survival | What::Drill { .. } => None,
        });
        drained.collect()
    }

    /// For the workers.
    pub(crate) fn switches(&self) -> Switches {
        let mut switches = Switches::default();
        for switch in &self.set {
            match &switch.what {
                What::Off { group } => switches.off.push(GroupKey::of(&[group])),
                What::Survival => switches.survival = true,
                What::Drill { route, cause } => {
                    switches.drills.push((RouteKey::of(&[route]), *cause));
                }
                What::Drain { key, .. } => switches.drained.push(*key),
            }
        }
        switches
    }
}

/// Ends switches when their time is over. Until the process ends.
pub(crate) async fn keep(desk: Arc<Desk>) {
    loop {
        let now = desk.now().at;
        let ended = desk.switchboard().end(now);
        if !ended.is_empty() {
            desk.switch();
        }
        for what in ended {
            event!("switch_ended", kind = what.kind(), name = what.name());
        }
        let next = desk.switchboard().next_end();
        let rest = async {
            match next {
                Some(next) => tokio::time::sleep(next.since(now)).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = rest => {}
            () = desk.switched.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_set_once_and_ends_on_time() {
        let mut board = Switchboard::default();
        let off = |group: &str| What::Off { group: group.to_owned() };
        let drill = |cause| What::Drill { route: "r".to_owned(), cause };
        let at = Instant::from_nanos;
        board.set(off("a"), Some(at(5)));
        board.set(off("a"), Some(at(10)));
        board.set(off("b"), None);
        board.set(What::Survival, Some(at(20)));
        board.set(drill(Cause::Open), Some(at(7)));
        board.set(drill(Cause::Timeout), Some(at(8)));
        assert_eq!((board.all().len(), board.next_end()), (4, Some(at(8))));
        assert_eq!(board.end(at(7)), []);
        assert_eq!(board.end(at(10)), [off("a"), drill(Cause::Timeout)]);
        let expected =
            Switches { off: vec![GroupKey::of(&["b"])], survival: true, ..Switches::default() };
        assert_eq!(board.switches(), expected);
        board.clear(&off("b"));
        board.clear(&What::Survival);
        assert_eq!((board.switches(), board.next_end()), (Switches::default(), None));
    }
}
