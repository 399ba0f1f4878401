//! What operators switch by hand: route groups off, survival mode, drills.

use super::Cause;
use crate::decision::Answer;
use crate::plan::{EndpointKey, GroupKey, Route, RouteKey};

/// Everything that is switched, and nothing when there is nothing. The whole truth each time.
/// When a switch ends is its owner's business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Groups of routes that are off.
    pub off: Vec<GroupKey>,
    /// Only routes marked `vital` live.
    pub survival: bool,
    /// Routes that behave as if this had happened.
    pub drills: Vec<(RouteKey, Cause)>,
    /// Servers that get no requests.
    pub drained: Vec<EndpointKey>,
}

impl Switches {
    /// The answer that this route gives because of them.
    pub(crate) fn verdict(&self, route: &Route) -> Option<Answer> {
        if !self.survival && self.off.is_empty() && self.drills.is_empty() {
            return None;
        }
        if route.group.as_ref().is_some_and(|(_, key)| self.off.contains(key)) {
            return Some(Answer::problem(503, "switch.off"));
        }
        if self.survival && !route.vital {
            return Some(Answer::problem(503, "switch.survival"));
        }
        let drill = self.drills.iter().find(|(key, _)| *key == route.key);
        drill.map(|(_, cause)| cause.drill())
    }
}
