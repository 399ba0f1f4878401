//! Every limit that has a name, and whose limits count for a request.

use std::collections::BTreeMap;

use super::associated::Watched;
use super::bound::Promise;
use super::key::Key;
use super::limit::{LimitSpec, Meaning};
use super::rate_limit::LIMITS_MAX;
use super::shared::Shared;
use crate::mechanism::lease::Terms;
use crate::mechanism::meter::Meter;
use crate::plan::Problem;

/// Every named limit of a plan, by its place.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    all: Vec<Named>,
    /// How many gateways share the store, if there is one.
    pub(super) nodes: Option<u32>,
    /// Those of tenants, by their names.
    pub(super) tenants: BTreeMap<String, Box<[u16]>>,
}

#[derive(Debug)]
struct Named {
    name: String,
    spec: LimitSpec,
    /// None when it could not be read: there is a problem for it, and no plan.
    meaning: Option<Meaning>,
}

/// Who has said which limits count: the greatest of those who have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    Default,
    Tenant,
    Route,
}

impl Limits {
    pub(crate) fn compile(
        specs: Vec<(String, LimitSpec)>,
        nodes: Option<u32>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        if specs.len() > usize::from(u16::MAX) {
            problems.push(Problem {
                path: "limit".to_owned(),
                message: format!("{} limits", specs.len()),
                hint: Some(format!("at most {}", u16::MAX)),
            });
        }
        let compile = |(name, spec): (String, LimitSpec)| {
            let meaning = Meaning::compile(&name, &spec, nodes, problems);
            Named { name, spec, meaning }
        };
        let all = specs.into_iter().map(compile).collect();
        Self { all, nodes, tenants: BTreeMap::new() }
    }

    /// What counts for tenants, on every route that names no limits itself.
    pub(crate) fn adopt_tenants(
        &mut self,
        tenants: Vec<(String, Vec<String>)>,
        problems: &mut Vec<Problem>,
    ) {
        for (name, limits) in tenants {
            let mut problem = |below: &str, message: String, hint: Option<String>| {
                let path = format!("tenant.{name}.limits{below}");
                problems.push(Problem { path, message, hint });
            };
            let places = self.places(&limits, &mut problem);
            self.tenants.insert(name, places);
        }
    }

    /// Where these limits are.
    pub(super) fn places(
        &self,
        names: &[String],
        problem: &mut impl FnMut(&str, String, Option<String>),
    ) -> Box<[u16]> {
        let mut places = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            match self.place(name) {
                Some(place) if places.contains(&place) => {
                    let hint = Some("name each limit once".to_owned());
                    problem(&format!("[{i}]"), format!("`{name}` is named twice"), hint);
                }
                Some(place) => places.push(place),
                None => {
                    let names = self.names().collect::<Vec<_>>().join(", ");
                    let hint = if names.is_empty() {
                        format!("write a table [limit.{name}]")
                    } else {
                        format!("there are: {names}")
                    };
                    let message = format!("no limit is called `{name}`");
                    problem(&format!("[{i}]"), message, Some(hint));
                }
            }
        }
        if places.len() > LIMITS_MAX {
            let hint = Some(format!("at most {LIMITS_MAX}"));
            problem("", format!("{} limits at once", places.len()), hint);
        }
        places.into()
    }

    pub(crate) fn name(&self, limit: u16) -> &str {
        self.all.get(usize::from(limit)).map_or("", |named| &named.name)
    }

    pub(crate) fn meter(&self, limit: u16) -> Option<Meter> {
        self.meaning(limit).map(|meaning| meaning.meter)
    }

    pub(super) fn meaning(&self, limit: u16) -> Option<&Meaning> {
        self.all.get(usize::from(limit))?.meaning.as_ref()
    }

    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Meaning)> {
        self.all.iter().filter_map(|named| Some((named.name.as_str(), named.meaning.as_ref()?)))
    }

    pub(crate) fn meanings(&self) -> impl Iterator<Item = &Meaning> {
        self.named().map(|(_, meaning)| meaning)
    }

    /// The rules of those that watch their heaviest keys.
    pub(crate) fn weighing(&self) -> impl Iterator<Item = u64> {
        self.meanings().filter(|meaning| meaning.watched > 0).map(|meaning| meaning.rule)
    }

    /// How limits watch that route.
    pub(crate) fn watching(&self, route: &str) -> Box<[Watched]> {
        let mut all = Vec::new();
        for Named { spec, meaning, .. } in &self.all {
            let watches = spec.busy.as_ref().is_some_and(|busy| busy.route == route);
            let association = meaning.as_ref().and_then(|meaning| meaning.association);
            if let Some(association) = association.filter(|_| watches)
                && !all.contains(&association.watched)
            {
                all.push(association.watched);
            }
        }
        all.into()
    }

    /// Whether the routes that are watched exist.
    pub(crate) fn check_routes(&self, routes: &[String], problems: &mut Vec<Problem>) {
        for Named { name, spec, .. } in &self.all {
            if let Some(busy) = spec.busy.as_ref().filter(|busy| !routes.contains(&busy.route)) {
                problems.push(Problem {
                    path: format!("limit.{name}.while.route"),
                    message: format!("there is no route named {:?}", busy.route),
                    hint: Some(format!("there are: {}", routes.join(", "))),
                });
            }
        }
    }

    /// Those that a store counts: name, rule, and how.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (&str, u64, Terms)> {
        self.all.iter().filter_map(|Named { name, meaning, .. }| {
            let meaning = meaning.as_ref()?;
            Some((name.as_str(), meaning.rule, meaning.shared.as_ref()?.terms))
        })
    }

    /// One that a store counts: its rule, its key, and how.
    pub(super) fn stored(&self, name: &str) -> Option<(u64, &Key, &Shared)> {
        let meaning = self.meaning(self.place(name)?)?;
        Some((meaning.rule, &meaning.key, meaning.shared.as_ref()?))
    }

    fn place(&self, name: &str) -> Option<u16> {
        u16::try_from(self.all.iter().position(|named| named.name == name)?).ok()
    }

    pub(crate) fn meters(&self) -> impl Iterator<Item = Option<Meter>> {
        self.all.iter().map(|named| named.meaning.as_ref().map(|meaning| meaning.meter))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|named| named.name.as_str())
    }

    /// Those of every route that names none itself.
    pub(crate) fn defaults(&self) -> Option<Vec<String>> {
        let defaults = self.all.iter().filter(|named| named.spec.default);
        let names: Vec<_> = defaults.map(|named| named.name.clone()).collect();
        (!names.is_empty() || !self.tenants.is_empty()).then_some(names)
    }

    pub(crate) fn promises(&self, proxied: bool) -> impl Iterator<Item = Promise> {
        self.all.iter().filter_map(move |Named { name, spec, meaning }| {
            let meaning = meaning.as_ref()?;
            let meter = meaning.meter;
            let store = meaning.shared.as_ref().map(|shared| shared.bound(proxied));
            Some(Promise::of(name, spec, meter.quota(), meter.window(), store))
        })
    }

    /// Whether the response says what a request costs, at any of them.
    pub(crate) fn follow(&self) -> bool {
        self.all.iter().any(|named| named.meaning.as_ref().is_some_and(Meaning::follows))
    }

    /// Whether any of them is a sliding window.
    pub(crate) fn slide(&self) -> bool {
        let mut meanings = self.all.iter().filter_map(|named| named.meaning.as_ref());
        meanings.any(|meaning| matches!(meaning.meter, Meter::Sliding(_)))
    }
}
