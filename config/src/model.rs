//! A configuration that holds: what was meant, with every default filled in.

use core::net::SocketAddr;
use core::num::NonZeroU16;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use sluice_policy::plan::Plan;
use sluice_policy::unit::{Network, Ratio};

pub use crate::deadline::DeadlineHeader;
use crate::problem::Problem;
pub use crate::scalar::{Hide, LogTarget};
use crate::secret::SecretRef;
use crate::store::{RedisTable, Server as StoreServer, StoreUrl};
use crate::written::{AdminTable, LogTable, ServerTable};
pub use crate::written::{EncodedSlashes, Io, LimitHeaders};

/// What [`crate::parse`] makes.
#[derive(Clone, Debug)]
pub struct Config {
    pub server: Server,
    pub admin: Admin,
    pub log: Log,
    /// Where counts are kept that several gateways share.
    pub store: Option<RedisStore>,
    /// What was written about decisions.
    pub plan: Arc<Plan>,
    /// What can be used but deserves a second look.
    pub warnings: Vec<Problem>,
    /// What was written, defaults of the gateway's own tables included. For comparing.
    pub(crate) written: Value,
}

/// The gateway's own sockets and bounds.
#[derive(Clone, Debug)]
pub struct Server {
    /// At least one.
    pub listen: Vec<Listen>,
    /// None is one per core.
    pub workers: Option<NonZeroU16>,
    pub io: Io,
    /// Zero sleeps at once.
    pub busy_poll: Duration,
    pub drain: Duration,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub read_timeout: Duration,
    pub write_timeout: Duration,
    pub header_bytes: u32,
    /// The most header fields of a request.
    pub headers: u16,
    /// Per worker.
    pub connections: u32,
    /// Per worker and client address; 0 is no bound.
    pub connections_per_client: u32,
    pub trusted_proxies: Vec<Network>,
    pub encoded_slashes: EncodedSlashes,
    /// How many limit keys the node can count at once.
    pub limit_keys: u32,
    /// Per worker.
    pub cache_memory: u64,
    pub limit_headers: LimitHeaders,
    /// None tells servers nothing of the time that is left.
    pub deadline_header: Option<DeadlineHeader>,
    /// Lower case; a name that ends in `*` stands for all that begin so. Besides `x-user-*`,
    /// `x-tenant-id` and `x-internal-*`.
    pub identity_headers: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    pub addr: SocketAddr,
}

/// Health, metrics and the admin API.
#[derive(Clone, Debug)]
pub struct Admin {
    /// None is off.
    pub listen: Option<SocketAddr>,
    /// None is read only.
    pub token: Option<SecretRef>,
}

#[derive(Clone, Debug)]
pub struct Log {
    pub access: AccessLog,
}

#[derive(Clone, Debug)]
pub struct AccessLog {
    pub to: LogTarget,
    pub sample_ok: Ratio,
    pub sample_errors: Ratio,
    /// Requests that took longer are always written. None makes no exception for them.
    pub slow: Option<Duration>,
    pub hide: Vec<Hide>,
}

/// A Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    pub place: RedisPlace,
    pub user: Option<String>,
    pub password: Option<SecretRef>,
    pub sentinel_password: Option<SecretRef>,
    /// Of an address, its scheme says it.
    pub tls: bool,
    pub ca: Option<PathBuf>,
    /// And its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// How many gateways share it.
    pub nodes: u32,
    /// What stands before it hides when it restarts.
    pub proxied: bool,
}

/// How to find the server that holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisPlace {
    One(StoreUrl),
    Sentinels { servers: Vec<StoreServer>, master: String },
    Cluster(Vec<StoreServer>),
}

impl Config {
    /// Every secret that is needed, with the key it is needed for.
    pub fn secrets(&self) -> impl Iterator<Item = (&'static str, &SecretRef)> {
        let token = self.admin.token.iter().map(|token| ("admin.token", token));
        let store = self.store.iter().flat_map(|store| {
            let url = match &store.place {
                RedisPlace::One(StoreUrl::Secret(secret)) => Some(secret),
                RedisPlace::One(StoreUrl::Plain(_))
                | RedisPlace::Sentinels { .. }
                | RedisPlace::Cluster(_) => None,
            };
            let sentinels = store.sentinel_password.as_ref();
            [
                ("store.redis.url", url),
                ("store.redis.password", store.password.as_ref()),
                ("store.redis.sentinel_password", sentinels),
            ]
        });
        token.chain(store.filter_map(|(key, secret)| secret.map(|secret| (key, secret))))
    }
}

impl From<ServerTable> for Server {
    fn from(table: ServerTable) -> Self {
        Self {
            listen: table.listen.iter().map(|listen| Listen { addr: listen.addr.0 }).collect(),
            workers: table.workers.0,
            io: table.io,
            busy_poll: table.busy_poll.0,
            drain: table.drain.0,
            header_timeout: table.header_timeout.0,
            idle_timeout: table.idle_timeout.0,
            read_timeout: table.read_timeout.0,
            write_timeout: table.write_timeout.0,
            header_bytes: u32::try_from(table.header_bytes.0).unwrap_or(u32::MAX),
            headers: table.headers,
            connections: table.connections,
            connections_per_client: table.connections_per_client,
            trusted_proxies: table.trusted_proxies,
            encoded_slashes: table.encoded_slashes,
            limit_keys: table.limit_keys,
            cache_memory: table.cache_memory.0,
            limit_headers: table.limit_headers,
            deadline_header: table.deadline_header.0,
            identity_headers: table.identity_headers.into_iter().map(|name| name.0).collect(),
        }
    }
}

impl From<AdminTable> for Admin {
    fn from(table: AdminTable) -> Self {
        Self { listen: table.listen.0, token: table.token }
    }
}

impl From<RedisTable> for RedisStore {
    fn from(table: RedisTable) -> Self {
        let place = match (table.url, table.sentinels, table.cluster) {
            (Some(url), _, _) => RedisPlace::One(url),
            (None, Some(servers), _) => {
                RedisPlace::Sentinels { servers, master: table.master.unwrap_or_default() }
            }
            (None, None, servers) => RedisPlace::Cluster(servers.unwrap_or_default()),
        };
        Self {
            place,
            user: table.user,
            password: table.password,
            sentinel_password: table.sentinel_password,
            tls: table.tls.unwrap_or(false),
            ca: table.ca,
            certificate: table.certificate.zip(table.certificate_key),
            nodes: table.nodes,
            proxied: table.proxied,
        }
    }
}

impl From<LogTable> for Log {
    fn from(table: LogTable) -> Self {
        let LogTable { access } = table;
        Self {
            access: AccessLog {
                to: access.to,
                sample_ok: access.sample.ok,
                sample_errors: access.sample.errors,
                slow: access.sample.slow.0.map(|span| span.0),
                hide: access.hide,
            },
        }
    }
}
