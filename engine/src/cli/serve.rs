//! The commands that serve: `run`, `proxy`, `try`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::proxy::Proxy;
use super::{Running, colour, print, sample};
use crate::control::bind::{Claim, first_free};
use crate::control::socket::{self, Place};
use crate::control::source::Source;
use crate::control::{Order, run};
use crate::exit::{Exit, Failure};
use crate::runtime::Wanted;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ADMIN_PORT: u16 = 9901;
const TRY_PORT: u16 = 8080;

pub(super) fn file(config: PathBuf, running: &Running) -> Result<Exit, Failure> {
    Err(run(order(Source::File(config), running, false)))
}

pub(super) fn proxy(
    proxy: &Proxy,
    only_print: bool,
    running: &Running,
    admin: Option<SocketAddr>,
) -> Result<Exit, Failure> {
    if only_print {
        let admin = admin.unwrap_or(SocketAddr::new(LOOPBACK, ADMIN_PORT));
        return print(&proxy.toml(admin));
    }
    let text = proxy.toml(admin_address(admin)?);
    Err(run(order(Source::Text { name: "proxy", text }, running, true)))
}

pub(super) fn sample(running: &Running, admin: Option<SocketAddr>) -> Result<Exit, Failure> {
    let admin = admin_address(admin)?;
    let listen = first_free(LOOPBACK, TRY_PORT)?;
    let mut services = Vec::new();
    let mut servers = Vec::new();
    for app in [sample::hello(), sample::echo()] {
        let claim = Claim::new(SocketAddr::new(LOOPBACK, 0))?;
        servers.push(claim.address);
        services.push((claim.listen()?, app));
    }
    let addresses = sample::Addresses { listen, admin, hello: servers[0], echo: servers[1] };
    let mut notes = String::new();
    if listen.port() != TRY_PORT {
        notes = format!("port {TRY_PORT} is taken\n");
    }
    notes.push_str(&addresses.notes());
    let source = Source::Text { name: "try", text: addresses.toml() };
    Err(run(Order { samples: services, notes, ..order(source, running, true) }))
}

fn admin_address(asked: Option<SocketAddr>) -> Result<SocketAddr, Failure> {
    asked.map_or_else(|| first_free(LOOPBACK, ADMIN_PORT), Ok)
}

/// `yields`: a process for the moment steps aside where another already has the usual control
/// socket.
fn order(source: Source, running: &Running, yields: bool) -> Order {
    let asked = running.control.control.clone();
    let control = Place {
        yields: yields && asked.is_none(),
        path: asked.unwrap_or_else(socket::default_path),
    };
    Order {
        source,
        control,
        driver: running.driver.as_deref().and_then(Wanted::parse),
        workers: running.workers,
        samples: Vec::new(),
        notes: String::new(),
        colour: colour(&std::io::stderr()),
    }
}
