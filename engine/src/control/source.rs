//! Where a configuration comes from: read, parsed, and completed with what only the outside knows
//! (addresses, secrets). Either all of it is had, or the reason is.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;

use sluice_config::{Config, SecretRef};
use sluice_policy::plan::{EndpointKey, Plan};
use tokio::task::JoinSet;

use crate::exit::{Exit, Failure, reason};
use crate::store::Client;

/// Where the text is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    File(PathBuf),
    /// Made by a command: `try`, `proxy`.
    Text {
        name: &'static str,
        text: String,
    },
}

/// A configuration that can be put to work.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Arc<Config>,
    pub(crate) addresses: BTreeMap<EndpointKey, Vec<SocketAddr>>,
    /// What a caller of the admin API must show to change something.
    pub(crate) token: Option<Token>,
    /// Where counts are kept that several gateways share.
    pub(crate) store: Option<Client>,
    /// What deserves a second look, as people read it.
    pub(crate) warnings: String,
}

/// A secret. Never printed.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Source {
    /// What messages call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text { name, .. } => (*name).to_owned(),
        }
    }

    /// # Errors
    /// When the file can't be read.
    pub(crate) fn text(&self) -> Result<String, Failure> {
        match self {
            Self::File(path) => std::fs::read_to_string(path).map_err(|e| unreadable(path, &e)),
            Self::Text { text, .. } => Ok(text.clone()),
        }
    }

    /// # Errors
    /// Everything that is wrong with it, as people read it.
    pub(crate) async fn load(&self, colour: bool) -> Result<Loaded, Failure> {
        let text = self.text()?;
        let mut config = self.parsed(&text, colour)?;
        supply(&mut config)?;
        let token = token(&config)?;
        let store = store(&config)?;
        let addresses = resolve(&config.plan).await?;
        let warnings = sluice_config::render(&config.warnings, &self.name(), &text, colour);
        let warnings = warnings.trim_end().to_owned();
        Ok(Loaded { config: Arc::new(config), addresses, token, store, warnings })
    }
}

impl Source {
    /// The way to its store alone, if it has one.
    ///
    /// # Errors
    /// What is wrong with it, as people read it.
    pub(crate) fn store(&self, colour: bool) -> Result<Option<Client>, Failure> {
        store(&self.parsed(&self.text()?, colour)?)
    }

    fn parsed(&self, text: &str, colour: bool) -> Result<Config, Failure> {
        sluice_config::parse(text).map_err(|problems| {
            let text = problems.render(&self.name(), text, colour);
            Failure::new(Exit::Configuration, text.trim_end())
        })
    }
}

fn unreadable(path: &std::path::Path, error: &io::Error) -> Failure {
    let mut failure = Failure::io(path.display(), error);
    // A file that is missing or not UTF-8 is a wrong configuration; one that may not be read is
    // a missing right.
    if failure.exit != Exit::Permission {
        failure.exit = Exit::Configuration;
    }
    failure
}

/// Every endpoint's addresses. Literal addresses need nobody; names are asked for all at once.
async fn resolve(plan: &Plan) -> Result<BTreeMap<EndpointKey, Vec<SocketAddr>>, Failure> {
    let mut addresses = BTreeMap::new();
    let mut lookups = JoinSet::new();
    for upstream in plan.upstreams() {
        for endpoint in &upstream.endpoints {
            if let Ok(address) = endpoint.address.parse() {
                addresses.insert(endpoint.key, vec![address]);
                continue;
            }
            let (key, server, name) =
                (endpoint.key, endpoint.address.clone(), upstream.name.clone());
            // getaddrinfo blocks; the control thread must not.
            lookups.spawn_blocking(move || (key, look_up(&name, &server)));
        }
    }
    let mut unknown = Vec::new();
    while let Some(joined) = lookups.join_next().await {
        match joined {
            Ok((key, Ok(found))) => drop(addresses.insert(key, found)),
            Ok((_, Err(why))) => unknown.push(why),
            Err(e) => unknown.push(format!("a name could not be looked up: {e}")),
        }
    }
    if unknown.is_empty() {
        return Ok(addresses);
    }
    unknown.sort();
    // Names come and go while the file stays as it is, above all when a machine starts. A service
    // manager may try this again, which it must not do with a wrong configuration.
    Err(Failure::new(Exit::Failed, unknown.join("\n")))
}

fn look_up(upstream: &str, server: &str) -> Result<Vec<SocketAddr>, String> {
    let found = match server.to_socket_addrs() {
        Ok(found) => found.collect::<Vec<_>>(),
        Err(e) => return Err(format!("upstream.{upstream}: {server} has no address: {e}")),
    };
    if found.is_empty() {
        return Err(format!("upstream.{upstream}: {server} has no address"));
    }
    Ok(found)
}

/// The most that a body from a file may hold: every worker sends it from memory.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Read every file that a reply is made of.
fn supply(config: &mut Config) -> Result<(), Failure> {
    let files = config.plan.files();
    if files.is_empty() {
        return Ok(());
    }
    // Just parsed, so nobody else has it.
    let Some(plan) = Arc::get_mut(&mut config.plan) else { return Ok(()) };
    for file in files {
        let body = std::fs::read(&file).map_err(|e| unreadable(std::path::Path::new(&file), &e))?;
        if body.len() > BODY_BYTES_MAX {
            let text = format!("{file}: {} bytes, more than {BODY_BYTES_MAX}", body.len());
            return Err(Failure::new(Exit::Configuration, text));
        }
        plan.supply(&file, &body.into());
    }
    Ok(())
}

/// Read every secret that the configuration refers to.
fn token(config: &Config) -> Result<Option<Token>, Failure> {
    let Some(secret) = &config.admin.token else { return Ok(None) };
    read(secret)
        .map(|token| Some(Token(token)))
        .map_err(|why| Failure::new(Exit::Configuration, format!("admin.token: {secret}: {why}")))
}

fn store(config: &Config) -> Result<Option<Client>, Failure> {
    let client = config.store.as_ref().map(|store| Client::new(store, read)).transpose();
    client.map_err(|why| Failure::new(Exit::Configuration, why))
}

fn read(secret: &SecretRef) -> Result<Vec<u8>, String> {
    let value = match secret {
        SecretRef::Env(name) => std::env::var_os(name).ok_or("not set")?.into_encoded_bytes(),
        SecretRef::File(path) => std::fs::read(path).map_err(|e| reason(&e))?,
    };
    let value = value.trim_ascii_end();
    // An empty token would let everybody in.
    if value.is_empty() { Err("is empty".to_owned()) } else { Ok(value.to_vec()) }
}
