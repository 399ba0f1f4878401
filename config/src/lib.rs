//! Stand-in for the contract until the real crate lands.
#![allow(missing_docs)]
use sluice_policy::{
    plan::Plan,
    unit::{Network, Ratio},
};
use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf, sync::Arc, time::Duration};
#[derive(Debug)]
pub struct Problems(pub Vec<String>);
impl Problems {
    pub fn render(&self, _file: &str, _text: &str, _colour: bool) -> String {
        String::new()
    }
}
pub fn parse(_text: &str) -> Result<Config, Problems> {
    todo!()
}
#[derive(Debug)]
pub struct Config {
    pub server: Server,
    pub admin: Admin,
    pub log: Log,
    pub plan: Arc<Plan>,
}
#[derive(Debug)]
pub struct Server {
    pub listen: Vec<Listen>,
    pub workers: Option<NonZeroU16>,
    pub io: Io,
    pub drain: Duration,
    pub header_timeout: Duration,
    pub idle_timeout: Duration,
    pub read_timeout: Duration,
    pub write_timeout: Duration,
    pub header_bytes: u32,
    pub headers: u16,
    pub connections: u32,
    pub connections_per_client: u32,
    pub trusted_proxies: Vec<Network>,
    pub encoded_slashes: EncodedSlashes,
    pub limit_keys: u32,
    pub identity_headers: Vec<String>,
}
#[derive(Debug)]
pub struct Listen {
    pub addr: SocketAddr,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    Auto,
    Uring,
    Epoll,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodedSlashes {
    Reject,
    Keep,
}
#[derive(Debug)]
pub struct Admin {
    pub listen: Option<SocketAddr>,
}
#[derive(Debug)]
pub struct Log {
    pub access: AccessLog,
}
#[derive(Debug)]
pub struct AccessLog {
    pub to: LogTo,
    pub sample_ok: Ratio,
    pub sample_errors: Ratio,
    pub slow: Option<Duration>,
    pub hide: Vec<Hide>,
}
#[derive(Debug)]
pub enum LogTo {
    Stdout,
    Stderr,
    File(PathBuf),
    Off,
}
#[derive(Debug)]
pub enum Hide {
    Header(String),
    Query(String),
}
