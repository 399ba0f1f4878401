//! The one place that knows how a configuration is written, so that tests say only what matters.

use std::fmt;
use std::net::SocketAddr;

/// A configuration: one listener, the admin listener, one upstream `app`, one route `all` to it,
/// and whatever a test adds. Each part takes more TOML lines.
#[derive(Clone, Debug)]
pub struct Config {
    server: Vec<String>,
    admin: Vec<String>,
    upstream: Vec<String>,
    route: Vec<String>,
    access_log: Vec<String>,
    more: Vec<String>,
}

impl Config {
    /// Everything goes to one upstream.
    #[must_use]
    pub fn to(servers: &[SocketAddr]) -> Self {
        let servers: Vec<String> = servers.iter().map(|addr| format!("\"{addr}\"")).collect();
        Self {
            server: vec!["listen = [\"127.0.0.1:0\"]".into()],
            admin: vec!["listen = \"127.0.0.1:0\"".into()],
            upstream: vec![format!("servers = [{}]", servers.join(", "))],
            route: vec!["match = \"/{*rest}\"".into(), "to = \"app\"".into()],
            access_log: vec!["format = \"json\"".into()],
            more: Vec::new(),
        }
        .workers(1)
    }

    /// How many workers; 1 unless a test is about several.
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.server.retain(|line| !line.starts_with("workers"));
        self.server(&format!("workers = {count}"))
    }

    /// More lines under `[server]`.
    #[must_use]
    pub fn server(mut self, lines: &str) -> Self {
        self.server.push(lines.into());
        self
    }

    /// More lines under `[admin]`.
    #[must_use]
    pub fn admin(mut self, lines: &str) -> Self {
        self.admin.push(lines.into());
        self
    }

    /// More lines under `[upstream.app]`.
    #[must_use]
    pub fn upstream(mut self, lines: &str) -> Self {
        self.upstream.push(lines.into());
        self
    }

    /// More lines under `[route.all]`.
    #[must_use]
    pub fn route(mut self, lines: &str) -> Self {
        self.route.push(lines.into());
        self
    }

    /// Whole tables of their own.
    #[must_use]
    pub fn more(mut self, tables: &str) -> Self {
        self.more.push(tables.into());
        self
    }

    /// A limit by name.
    #[must_use]
    pub fn limit(self, name: &str, key: &str, rate: &str, burst: u32) -> Self {
        self.more(&format!(
            "[limit.{name}]\nkey = [\"{key}\"]\nrate = \"{rate}\"\nburst = {burst}\n"
        ))
    }

    /// A route that the gateway answers by itself.
    #[must_use]
    pub fn respond(self, name: &str, matching: &str, body: &str) -> Self {
        self.more(&format!(
            "[route.{name}]\nmatch = \"{matching}\"\n\
             respond = {{ status = 200, body = \"{body}\", content_type = \"text/plain\" }}\n"
        ))
    }

    /// Where the access log goes; the gateway's standard output unless said otherwise.
    #[must_use]
    pub fn access_log(mut self, to: &str) -> Self {
        self.access_log.push(format!("to = \"{to}\""));
        self
    }
}

impl fmt::Display for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut log = self.access_log.clone();
        if !log.iter().any(|line| line.starts_with("to ")) {
            log.push("to = \"stdout\"".into());
        }
        // Every request leaves a line, so that a test may wait for it.
        log.push("sample = { ok = \"100%\", slow = \"250ms\", errors = \"100%\" }".into());
        writeln!(out, "version = 1\n")?;
        let tables: [(&str, &[String]); 5] = [
            ("server", &self.server),
            ("admin", &self.admin),
            ("upstream.app", &self.upstream),
            ("route.all", &self.route),
            ("log.access", &log),
        ];
        for (name, lines) in tables {
            writeln!(out, "[{name}]\n{}\n", lines.join("\n"))?;
        }
        if !self.more.iter().any(|tables| tables.contains("[shed]")) {
            // A machine that is busy with other tests is not what most tests are about.
            writeln!(out, "[shed]\nlag = \"off\"\n")?;
        }
        self.more.iter().try_for_each(|tables| writeln!(out, "{tables}"))
    }
}
