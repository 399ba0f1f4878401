//! Deliberate mistakes of a breaker. The simulator's laws must catch each of them
//! (`policy/tests/breaker_laws.rs`), and nothing that is shipped can make one.

use crate::mechanism::breaker::Rule;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// One probe more than there may be.
    ExtraProbe,
    /// Now and then a request passes while it is open.
    OpenAdmits,
    /// It is half-open at once.
    NoWait,
    /// Results of an older era count.
    OldEra,
    /// A probe that came to nothing keeps its place.
    LostProbe,
    /// One probe less is enough.
    FewProbes,
    /// A probe that hangs is as good as one that went well.
    HungProbe,
    /// It is open no longer the second time.
    NoBackoff,
    /// Openings are forgotten as soon as it is closed.
    ForgetsAtOnce,
    /// It recovers for ever.
    NeverDone,
    /// One server more than may be is taken out.
    OneMoreOut,
    /// However few servers are left, the others get nothing.
    NoPanic,
}

impl Rule {
    /// Whether it is to make this mistake.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn errs(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(any(test, feature = "sim")))]
    pub(crate) const fn errs(&self, _: Mutant) -> bool {
        false
    }
}
