//! Where a Redis is and how to get in, from the configuration and its secrets. Never printed.

use std::io;
use std::path::Path;

use redis::{
    ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo,
    RedisResult, TlsCertificates,
};
use sluice_config::{RedisPlace, RedisStore, SecretRef, StoreServer, StoreUrl};

/// A store's way in.
#[derive(Clone, PartialEq)]
pub(crate) struct Client {
    pub(super) place: Place,
    /// Into its servers.
    pub(super) entry: Entry,
    /// Into the Sentinels that know them.
    pub(super) sentinel: Entry,
    /// What was read for it: another way in when that has changed.
    files: Vec<Vec<u8>>,
}

/// How to find the servers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    One(StoreServer),
    Sentinels { servers: Vec<StoreServer>, master: String },
    Cluster(Vec<StoreServer>),
}

/// What a server wants to see.
#[derive(Clone)]
pub(super) struct Entry {
    settings: RedisConnectionInfo,
    /// An address with all that belongs to TLS; its host and port are nobody's.
    tls: Option<ConnectionAddr>,
    /// A proxy stands before it, that passes on little more than reads and writes.
    pub(super) proxied: bool,
}

impl Client {
    /// # Errors
    /// What is wrong, by the key that it is wrong with. Never repeats a secret.
    pub(crate) fn new(
        store: &RedisStore,
        read: impl Fn(&SecretRef) -> Result<Vec<u8>, String>,
    ) -> Result<Self, String> {
        let secret = |key: &str, secret: &SecretRef| {
            let text = read(secret)
                .and_then(|read| String::from_utf8(read).map_err(|_| "not UTF-8".to_owned()));
            text.map_err(|why| format!("store.redis.{key}: {secret}: {why}"))
        };
        let mut tls = store.tls;
        let mut settings = RedisConnectionInfo::default();
        let place = match &store.place {
            RedisPlace::One(url) => {
                let url = match url {
                    StoreUrl::Plain(url) => url.clone(),
                    StoreUrl::Secret(kept) => secret("url", kept)?,
                };
                let (server, by_tls, found) = address(&url)?;
                (tls, settings) = (by_tls, found);
                Place::One(server)
            }
            RedisPlace::Sentinels { servers, master } => {
                Place::Sentinels { servers: servers.clone(), master: master.clone() }
            }
            RedisPlace::Cluster(servers) => Place::Cluster(servers.clone()),
        };
        if let Some(user) = &store.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &store.password {
            settings = settings.set_password(secret("password", password)?);
        }
        let mut sentinel = RedisConnectionInfo::default();
        if let Some(password) = &store.sentinel_password {
            sentinel = sentinel.set_password(secret("sentinel_password", password)?);
        }
        if store.proxied {
            // Many a proxy hangs up when it is told who asks.
            settings = settings.set_skip_set_lib_name();
        }
        let mut files = Vec::new();
        let tls = if tls { Some(certificates(store, &mut files)?) } else { None };
        let entry = Entry { settings, tls, proxied: store.proxied };
        let sentinel = Entry { settings: sentinel, tls: entry.tls.clone(), proxied: false };
        Ok(Self { place, entry, sentinel, files })
    }
}

impl Entry {
    /// The same by way of a proxy.
    pub(super) fn proxied(self) -> Self {
        Self { settings: self.settings.set_skip_set_lib_name(), proxied: true, ..self }
    }

    /// For a connection to this server.
    pub(super) fn at(&self, server: &StoreServer) -> RedisResult<ConnectionInfo> {
        let StoreServer { host, port } = server.clone();
        let mut address = self.tls.clone().unwrap_or(ConnectionAddr::Tcp(String::new(), 0));
        if let ConnectionAddr::TcpTls { host: h, port: p, .. } | ConnectionAddr::Tcp(h, p) =
            &mut address
        {
            (*h, *p) = (host, port);
        }
        Ok(address.into_connection_info()?.set_redis_settings(self.settings.clone()))
    }
}

impl PartialEq for Entry {
    /// Certificates are compared as files.
    fn eq(&self, other: &Self) -> bool {
        let told = |entry: &Self| {
            let settings = &entry.settings;
            let [user, password] =
                [settings.username(), settings.password()].map(|text| text.map(str::to_owned));
            (user, password, settings.db(), entry.tls.is_some(), entry.proxied)
        };
        told(self) == told(other)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?})", self.place)
    }
}

/// The server, whether it speaks TLS, and what else an address says.
fn address(url: &str) -> Result<(StoreServer, bool, RedisConnectionInfo), String> {
    let wrong = "store.redis.url: no address of a Redis";
    let info = url.into_connection_info().map_err(|e| format!("{wrong}: {}", e.category()))?;
    let (host, port, tls) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => (host, *port, false),
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return Err("store.redis.url: #insecure would trust anybody: take it out".to_owned());
        }
        ConnectionAddr::TcpTls { host, port, .. } => (host, *port, true),
        // A path, or what a later version of the client may know.
        _ => return Err(wrong.to_owned()),
    };
    Ok((StoreServer { host: host.clone(), port }, tls, info.redis_settings().clone()))
}

/// Without certificates of its own, those that the system trusts.
fn certificates(store: &RedisStore, files: &mut Vec<Vec<u8>>) -> Result<ConnectionAddr, String> {
    // Whoever was first has chosen, and so has this.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut read = |key: &str, path: &Path| -> Result<Vec<u8>, String> {
        let text = std::fs::read(path).map_err(|e: io::Error| {
            format!("store.redis.{key}: {}: {}", path.display(), crate::exit::reason(&e))
        })?;
        files.push(text.clone());
        Ok(text)
    };
    let root_cert = store.ca.as_ref().map(|ca| read("ca", ca)).transpose()?;
    let mut client_tls = None;
    if let Some((certificate, key)) = &store.certificate {
        let client_cert = read("certificate", certificate)?;
        let client_key = read("certificate_key", key)?;
        client_tls = Some(ClientTlsConfig { client_cert, client_key });
    }
    if root_cert.as_ref().is_some_and(|pem| !has_certificate(pem)) {
        return Err("store.redis.ca: holds no certificate in PEM".to_owned());
    }
    let made = redis::Client::build_with_tls(
        "rediss://localhost",
        TlsCertificates { client_tls, root_cert },
    );
    let made = made.map_err(|e| {
        format!("store.redis: certificates: {}", e.detail().unwrap_or("cannot be read"))
    })?;
    Ok(made.get_connection_info().addr().clone())
}

fn has_certificate(pem: &[u8]) -> bool {
    String::from_utf8_lossy(pem).contains("-----BEGIN CERTIFICATE-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(tables: &str, secret: &str) -> Result<Client, String> {
        let text = format!("version = 1\n[server]\nlisten = [\"127.0.0.1:0\"]\n{tables}");
        let config = sluice_config::parse(&text).expect("a configuration");
        let store = config.store.expect("a store");
        Client::new(&store, |_| Ok(secret.as_bytes().to_vec()))
    }

    #[test]
    fn an_address_from_a_secret_is_as_good_as_a_written_one_and_neither_is_shown() {
        let written = "[store.redis]\nurl = \"redis://10.0.0.5:7000/2\"\nuser = \"me\"\n\
                       password = \"env:P\"";
        let kept = "[store.redis]\nurl = \"env:U\"";
        let a = client(written, "hunter2").expect("a client");
        let b = client(kept, "redis://me:hunter2@10.0.0.5:7000/2").expect("a client");
        assert!(a == b);
        assert_eq!(a.entry.settings.db(), 2);
        assert!(!format!("{a:?}").contains("hunter2"));
        assert!(a != client(written, "hunter3").expect("a client"));
        let wrong = client(kept, "redis://hunter2:no").expect_err("no address");
        assert!(!wrong.contains("hunter2"), "{wrong}");
    }

    #[test]
    fn nobody_is_trusted_without_a_look() {
        let kept = "[store.redis]\nurl = \"env:U\"";
        let wrong = client(kept, "rediss://10.0.0.5:7000/#insecure").expect_err("insecure");
        assert!(wrong.contains("#insecure"), "{wrong}");
        let ca = "[store.redis]\nurl = \"rediss://a:1\"\nca = \"/dev/null\"";
        let wrong = client(ca, "").expect_err("no certificate");
        assert_eq!(wrong, "store.redis.ca: holds no certificate in PEM");
        let ca = "[store.redis]\ncluster = [\"a:1\"]\ntls = true\nca = \"/nowhere\"";
        assert!(client(ca, "").expect_err("no file").starts_with("store.redis.ca: /nowhere: "));
    }
}
