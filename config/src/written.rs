//! What a person may write about the gateway itself, with every default. What may be written
//! about decisions is in `sluice_policy::draft`.
//!
//! The doc comments are the reference: schema and `docs/configuration.md` are made from them.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_policy::unit::{ByteSize, Network, Ratio, Span};

use crate::deadline::Deadline;
use crate::scalar::{
    AdminListen, HeaderPattern, Hide, ListenSpec, Listening, LogTarget, Slow, Workers, any,
};
use crate::secret::SecretRef;

/// The gateway's own sockets and bounds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerTable {
    /// Where clients connect. `":8080"` is port 8080 on every IPv4 address; `"[::]:8080"` is
    /// every IPv6 address, and IPv4 too where the kernel maps it. Port 0 takes a free one.
    pub(crate) listen: Vec<ListenSpec>,
    /// How many workers, each with its own thread and core: `"auto"` is one per core that the
    /// process may use.
    pub(crate) workers: Workers,
    /// How the kernel is asked for input and output. `"auto"` is io_uring, or epoll where that
    /// is not allowed or the kernel is older than 5.19.
    pub(crate) io: Io,
    /// How long a worker looks for what comes next, after each thing that came, before it sleeps.
    /// `"50us"` to `"200us"` save the time to wake up, a third of the median of a worker at half load,
    /// for processor time that is then used up in looking: for workers that have their cores to
    /// themselves. `"0s"`, the default, sleeps at once. Up to 10ms.
    pub(crate) busy_poll: Span,
    /// How long a stop waits for requests that are under way.
    pub(crate) drain: Span,
    /// From the first byte of a request to the end of its head.
    pub(crate) header_timeout: Span,
    /// How long a connection may rest between two requests.
    pub(crate) idle_timeout: Span,
    /// Between two pieces of a request's body.
    pub(crate) read_timeout: Span,
    /// How long a client may take nothing of a response.
    pub(crate) write_timeout: Span,
    /// The longest head of a request, request line included; longer ones are answered 431.
    /// From 1KiB to 64KiB.
    pub(crate) header_bytes: ByteSize,
    /// The most header fields of a request; more are answered 431. From 1 to 1000.
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) headers: u16,
    /// The most client connections a worker holds. From 1 to 1000000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) connections: u32,
    /// The most connections a worker holds from one client address. 0 is no bound, and the
    /// default, because many clients may share one address.
    #[schemars(range(max = 1_000_000))]
    pub(crate) connections_per_client: u32,
    /// Networks of proxies whose `X-Forwarded-*` is believed. From anybody else it is replaced.
    pub(crate) trusted_proxies: Vec<Network>,
    /// What to do with `%2F` in a path, which servers understand differently: answer 400
    /// (`"reject"`), or pass it on (`"keep"`).
    pub(crate) encoded_slashes: EncodedSlashes,
    /// How many limit keys the node can count at once, 16 bytes each. From 1024 to 67108864.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub(crate) limit_keys: u32,
    /// The most memory that a worker keeps responses in, for all routes with a `cache`. From 64KiB
    /// to 1TiB.
    pub(crate) cache_memory: ByteSize,
    /// How clients are told of the limits they count against.
    pub(crate) limit_headers: LimitHeaders,
    /// The field that tells servers how much time is left, in milliseconds, for each attempt;
    /// `"grpc-timeout"` is written as gRPC does, `"off"` tells nothing. A client may say in it that
    /// it waits for less than the route's `timeout`.
    pub(crate) deadline_header: Deadline,
    /// Header fields that only the gateway may set: taken off every client's request, besides
    /// `x-user-*`, `x-tenant-id` and `x-internal-*`. A name may end in `*`.
    pub(crate) identity_headers: Vec<HeaderPattern>,
    /// The zone that this gateway is in. Servers with the same label `zone` are preferred.
    pub(crate) zone: Option<String>,
}

impl Default for ServerTable {
    fn default() -> Self {
        let seconds = |s| Span(Duration::from_secs(s));
        Self {
            listen: vec![ListenSpec { addr: Listening(any(8080)) }],
            workers: Workers(None),
            io: Io::Auto,
            busy_poll: seconds(0),
            drain: seconds(60),
            header_timeout: seconds(10),
            idle_timeout: seconds(90),
            read_timeout: seconds(30),
            write_timeout: seconds(30),
            header_bytes: ByteSize(16 << 10),
            headers: 100,
            connections: 16_384,
            connections_per_client: 0,
            trusted_proxies: Vec::new(),
            encoded_slashes: EncodedSlashes::Reject,
            limit_keys: 262_144,
            cache_memory: ByteSize(64 << 20),
            limit_headers: LimitHeaders::Draft10,
            deadline_header: Deadline::default(),
            identity_headers: Vec::new(),
            zone: None,
        }
    }
}

/// Health, metrics and the admin API.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminTable {
    /// Where the admin API listens; `"off"` turns it off.
    pub(crate) listen: AdminListen,
    /// What a caller must show to change something. Without it the admin API only reads.
    pub(crate) token: Option<SecretRef>,
}

impl Default for AdminTable {
    fn default() -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self { listen: AdminListen(Some(SocketAddr::new(loopback, 9901))), token: None }
    }
}

/// What is written down about requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogTable {
    /// The access log: one line a request.
    pub(crate) access: AccessTable,
}

/// One line a request. What is left out of `hide` is shown, defaults included.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AccessTable {
    /// `"stdout"`, `"stderr"`, `"file:PATH"` or `"off"`.
    pub(crate) to: LogTarget,
    /// How a line is written.
    pub(crate) format: Format,
    /// Which requests are written down.
    pub(crate) sample: SampleTable,
    /// What is never written: `"header:NAME"` and `"query:NAME"`.
    pub(crate) hide: Vec<Hide>,
}

impl Default for AccessTable {
    fn default() -> Self {
        let hide = ["header:authorization", "header:cookie", "query:access_token", "query:token"];
        Self {
            to: LogTarget::Stdout,
            format: Format::Json,
            sample: SampleTable::default(),
            hide: hide.iter().filter_map(|hide| hide.parse().ok()).collect(),
        }
    }
}

/// Which requests are written down. A line says how many it stands for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SampleTable {
    /// Share of requests that went well.
    pub(crate) ok: Ratio,
    /// Share of requests that failed or were refused.
    pub(crate) errors: Ratio,
    /// Requests that took longer are always written; `"off"` makes no exception for them.
    pub(crate) slow: Slow,
}

impl Default for SampleTable {
    fn default() -> Self {
        let slow = Slow(Some(Span(Duration::from_millis(250))));
        Self { ok: Ratio(10_000), errors: Ratio(1_000_000), slow }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// io_uring, or epoll where the kernel does not allow it or is older than 5.19.
    Auto,
    /// io_uring, or no start.
    Uring,
    /// epoll, even where io_uring is allowed.
    Epoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodedSlashes {
    /// Answer 400.
    Reject,
    /// Pass it on; routes see it undecoded.
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitHeaders {
    /// `RateLimit` and `RateLimit-Policy`, as draft 10 of the IETF has them.
    Draft10,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds).
    Legacy,
    /// Nothing; a refusal still says `Retry-After`.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// One JSON object a line.
    Json,
}
