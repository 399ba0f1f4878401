//! Refuse or admit by client address.

use serde::Deserialize;

use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::flight::Flight;
use crate::mechanism::ranges::Networks;
use crate::unit::Network;

#[derive(Debug, Default)]
pub struct Addresses;

/// `addresses = { allow = ["10.0.0.0/8"], deny = ["10.9.0.0/16"] }`
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AddressSpec {
    /// When not empty, only these clients may call.
    pub allow: Vec<Network>,
    /// These clients may not call, whatever `allow` says.
    pub deny: Vec<Network>,
}

#[derive(Debug)]
pub struct Rule {
    allow: Networks,
    deny: Networks,
}

impl Filter for Addresses {
    type Spec = AddressSpec;
    type Rule = Rule;

    fn compile(spec: AddressSpec, context: &mut Context<'_>) -> Option<Rule> {
        if spec.allow.is_empty() && spec.deny.is_empty() {
            let hint = Some("write networks under `allow` or `deny`".to_owned());
            context.problem("", "neither `allow` nor `deny` names a network".to_owned(), hint);
        }
        Some(Rule { allow: Networks::new(&spec.allow), deny: Networks::new(&spec.deny) })
    }

    fn check(&mut self, ask: &Ask<'_>, rule: &Rule, flight: &mut Flight) -> Verdict {
        let client = ask.facts.client;
        let allowed = rule.allow.is_empty() || rule.allow.contains(client);
        let verdict = if allowed && !rule.deny.contains(client) {
            Verdict::Pass
        } else {
            Verdict::Deny(Answer::problem(403, "addresses.denied"))
        };
        verdict.noted(flight, "addresses")
    }
}
