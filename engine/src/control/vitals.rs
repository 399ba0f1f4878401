//! Keeps watch over the servers: asks them when policy says so, and tells the workers what came of
//! it. On the control thread, once for the whole node.

use std::future::pending;
use std::sync::Arc;

use sluice_policy::health::{Sign, Vital};
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::world::{Effect, Signal};
use tokio::task::JoinSet;

use super::desk::Desk;
use super::probe::ask;
use crate::event::event;

/// Until the process ends.
pub(crate) async fn keep(desk: Arc<Desk>) {
    let mut asking: JoinSet<(EndpointKey, Sign)> = JoinSet::new();
    loop {
        let now = desk.now();
        while let Some(Effect::Probe(probe)) = desk.take_errand(now) {
            let generation = Arc::clone(desk.fleet().generation());
            asking.spawn(async move {
                let addresses = generation.addresses.get(&probe.endpoint);
                let sign = ask(addresses.map_or(&[], Vec::as_slice), &probe).await;
                (probe.endpoint, sign)
            });
        }
        let next = desk.watch().deadline();
        let rest = async {
            match next {
                Some(next) => tokio::time::sleep(next.since(now.at)).await,
                None => pending().await,
            }
        };
        tokio::select! {
            Some(Ok((endpoint, sign))) = asking.join_next() => heed(&desk, endpoint, sign),
            () = rest => {}
            () = desk.adopted.notified() => {}
        }
    }
}

fn heed(desk: &Desk, endpoint: EndpointKey, sign: Sign) {
    let (out, vital) = {
        let mut watch = desk.watch();
        if !watch.signal(desk.now(), Signal::Probed { endpoint, sign }) {
            return;
        }
        (watch.out(), watch.vital(endpoint).copied())
    };
    let mut fleet = desk.fleet();
    fleet.tell_vitals(out.into());
    let plan = &fleet.generation().config.plan;
    let named = name(plan, endpoint).zip(vital);
    if let Some(((upstream, server), vital)) = named {
        tell(upstream, server, &vital);
    }
}

fn tell(upstream: &str, server: &str, vital: &Vital) {
    let why = vital.to_string();
    if vital.out {
        event!("server_out", upstream = upstream, server = server, why = why);
    } else {
        event!("server_in", upstream = upstream, server = server, why = why);
    }
}

/// What people call it: its upstream, and the server as written.
fn name(plan: &Plan, key: EndpointKey) -> Option<(&str, &str)> {
    plan.upstreams().iter().find_map(|upstream| {
        let endpoint = upstream.endpoints.iter().find(|endpoint| endpoint.key == key)?;
        Some((upstream.name.as_str(), endpoint.address.as_str()))
    })
}
