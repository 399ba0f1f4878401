//! The configuration that `sluice proxy LISTEN UPSTREAM` stands for.

use std::net::SocketAddr;

use crate::exit::{Exit, Failure};

#[derive(Debug)]
pub(super) struct Proxy {
    listen: String,
    /// `host:port`
    server: String,
}

impl Proxy {
    /// # Errors
    /// When the upstream is not one that a line can name.
    pub(super) fn new(listen: &str, upstream: &str) -> Result<Self, Failure> {
        let usage = |text: String| Failure::new(Exit::Usage, text);
        for text in [listen, upstream] {
            if text.contains(|c: char| c.is_control() || c == '"' || c == '\\') {
                return Err(usage(format!("{text:?} is no address")));
            }
        }
        let (scheme, rest) = upstream.split_once("://").unwrap_or(("", upstream));
        if !scheme.is_empty() && !scheme.eq_ignore_ascii_case("http") {
            return Err(usage(format!("{upstream}: only http:// is spoken to upstreams")));
        }
        let server = rest.strip_suffix('/').unwrap_or(rest);
        if server.contains('/') {
            let text = format!("{upstream}: a path takes a file: see add_prefix of a route");
            return Err(usage(text));
        }
        let has_port = server.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let server =
            if has_port || scheme.is_empty() { server.to_owned() } else { format!("{server}:80") };
        Ok(Self { listen: listen.to_owned(), server })
    }

    pub(super) fn toml(&self, admin: SocketAddr) -> String {
        let Self { listen, server } = self;
        format!(
            "version = 1

[server]
listen = [\"{listen}\"]

[admin]
listen = \"{admin}\"

[upstream.app]
servers = [\"{server}\"]

[route.all]
match = \"/{{*rest}}\"
to = \"app\"
"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stands_for_a_configuration_that_parses() {
        let admin = "127.0.0.1:9901".parse().unwrap();
        for (listen, upstream, server) in [
            (":8080", "127.0.0.1:3000", "127.0.0.1:3000"),
            ("127.0.0.1:0", "http://app.internal:3000/", "app.internal:3000"),
            ("[::]:8080", "http://app.internal", "app.internal:80"),
            (":8080", "http://[::1]", "[::1]:80"),
            (":8080", "[::1]:3000", "[::1]:3000"),
        ] {
            let toml = Proxy::new(listen, upstream).unwrap().toml(admin);
            let config = sluice_config::parse(&toml).unwrap_or_else(|e| panic!("{e}\n{toml}"));
            assert_eq!(config.admin.listen, Some(admin));
            assert_eq!(config.plan.upstreams()[0].endpoints[0].address, server, "{upstream}");
        }
    }

    #[test]
    fn what_one_line_cannot_say_is_a_usage_mistake() {
        for upstream in
            ["https://app:443", "http://app/base", "app:80\"]\n[x", "unix:///run/app.sock"]
        {
            assert_eq!(Proxy::new(":8080", upstream).unwrap_err().exit, Exit::Usage, "{upstream}");
        }
    }
}
