//! Breakers that are wrong on purpose: whoever states laws shows with them that the laws bite.

use crate::mechanism::breaker::Mutant;
use crate::plan::Plan;

/// One thing that a breaker does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mistake(Mutant);

/// Of a breaker by itself.
pub const MISTAKES: [Mistake; 10] = [
    Mistake(Mutant::ExtraProbe),
    Mistake(Mutant::OpenAdmits),
    Mistake(Mutant::NoWait),
    Mistake(Mutant::OldEra),
    Mistake(Mutant::LostProbe),
    Mistake(Mutant::FewProbes),
    Mistake(Mutant::HungProbe),
    Mistake(Mutant::NoBackoff),
    Mistake(Mutant::ForgetsAtOnce),
    Mistake(Mutant::NeverDone),
];

/// Of taking servers out.
pub const MISTAKES_OF_EJECTION: [Mistake; 2] =
    [Mistake(Mutant::OneMoreOut), Mistake(Mutant::NoPanic)];

impl Mistake {
    /// Has every breaker of the plan make it.
    pub fn spoil(self, plan: &mut Plan) {
        for upstream in &mut plan.upstreams {
            let resilience = &mut upstream.resilience;
            let own = resilience.breaker.as_mut().map(|breaker| &mut breaker.rule);
            let each = resilience.eject.as_mut().map(|eject| &mut eject.breaker.rule);
            own.into_iter().chain(each).for_each(|rule| rule.mutant = Some(self.0));
        }
    }
}
