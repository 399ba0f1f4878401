//! Where the load goes: an `http://` URL, resolved once, on this machine unless allowed otherwise.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail, ensure};

/// A resolved URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    /// As written: host, and port if there was one.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

impl Target {
    /// Refuses addresses outside this machine unless `allow_remote`: a load generator aimed by a
    /// typing mistake is an attack.
    pub fn resolve(url: &str, allow_remote: bool) -> Result<Self> {
        let rest =
            url.strip_prefix("http://").with_context(|| format!("`{url}`: only http:// URLs"))?;
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(split);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        ensure!(!authority.contains('@'), "`{url}`: no user in the URL; use --header");
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        ensure!(plain(&path) && plain(authority), "`{url}`: not a plain URL; percent-encode it");
        let address = address(authority)?;
        if !address.ip().is_loopback() && !allow_remote {
            bail!("{address} is not this machine; --allow-remote if you mean it and may");
        }
        Ok(Self { address, authority: authority.to_owned(), path })
    }
}

fn address(authority: &str) -> Result<SocketAddr> {
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let with_port = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    let mut found =
        with_port.to_socket_addrs().with_context(|| format!("cannot resolve `{authority}`"))?;
    found.next().with_context(|| format!("`{authority}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_address_authority_and_path() {
        let cases = [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080", "/"),
            ("http://127.0.0.1/a?b=c", "127.0.0.1:80", "127.0.0.1", "/a?b=c"),
            ("http://127.0.0.2:1?size=1", "127.0.0.2:1", "127.0.0.2:1", "/?size=1"),
            ("http://[::1]:81/", "[::1]:81", "[::1]:81", "/"),
            ("http://[::1]/x", "[::1]:80", "[::1]", "/x"),
        ];
        for (url, address, authority, path) in cases {
            let found = Target::resolve(url, false).unwrap();
            assert_eq!(found.address.to_string(), address, "{url}");
            assert_eq!((found.authority.as_str(), found.path.as_str()), (authority, path), "{url}");
        }
    }

    #[test]
    fn other_machines_need_permission() {
        assert!(Target::resolve("http://192.0.2.1/", false).is_err());
        assert!(Target::resolve("http://192.0.2.1/", true).is_ok());
    }

    #[test]
    fn what_is_no_plain_url_is_refused() {
        for url in [
            "https://127.0.0.1/",
            "127.0.0.1",
            "http://",
            "http://u@127.0.0.1/",
            "http://127.0.0.1/a b",
            "http://127.0.0.1/\r\nx: y",
            "http://127.0.0.1/#x",
            "http://127.0.0.1:99999/",
        ] {
            assert!(Target::resolve(url, true).is_err(), "{url}");
        }
    }
}
