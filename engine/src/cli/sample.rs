//! What `sluice try` shows: two small services, and a configuration in front of them.

use std::net::SocketAddr;

use axum::extract::{Path, Request};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) hello: SocketAddr,
    pub(super) echo: SocketAddr,
}

/// Says hello.
pub(super) fn hello() -> Router {
    Router::new()
        .route("/hello", get(async || "hello from behind the gateway\n"))
        .route("/hello/{name}", get(async |Path(name): Path<String>| format!("hello, {name}\n")))
}

/// Tells what arrived, so that one can see what the gateway added and took away.
pub(super) fn echo() -> Router {
    Router::new().fallback(async |request: Request| {
        let mut headers: Vec<Value> = Vec::new();
        for (name, value) in request.headers() {
            headers.push(json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]));
        }
        let (method, uri) = (request.method().as_str(), request.uri().to_string());
        Json(json!({ "method": method, "uri": uri, "headers": headers })).into_response()
    })
}

impl Addresses {
    pub(super) fn toml(&self) -> String {
        let Self { listen, admin, hello, echo } = self;
        format!(
            r#"version = 1

[server]
listen = ["{listen}"]

[admin]
listen = "{admin}"

[upstream.hello]
servers = ["{hello}"]

[upstream.echo]
servers = ["{echo}"]

# Five requests at once, then one every two seconds, for each client address.
[limit.few]
key = ["ip"]
rate = "30/min"
burst = 5

[route.hello]
match = "/hello/{{*rest}}"
to = "hello"

[route.echo]
match = "/echo/{{*rest}}"
to = "echo"

[route.limited]
match = "/limited"
to = "hello"
limits = ["few"]
add_prefix = "/hello"

[route.start]
match = "/"
respond = {{ body = "try /hello/you, /echo/anything and, more than five times, /limited\n" }}

[log.access]
to = "stdout"
sample = {{ ok = "100%", errors = "100%" }}
"#
        )
    }

    /// What to do now, line by line.
    pub(super) fn notes(&self) -> String {
        let Self { listen, admin, .. } = self;
        format!(
            "
try:
  curl -i http://{listen}/hello/you
  curl -s http://{listen}/echo/anything        what a service sees
  for i in 1 2 3 4 5 6 7; do curl -si http://{listen}/limited | head -1; done
  curl -i http://{listen}/limited              429, with Retry-After and RateLimit
  curl -s http://{admin}/metrics | grep sluice_limit
  curl -s http://{admin}/v1/latency
Each request leaves a line of JSON here. Ctrl-C ends.

"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_try_runs_is_a_good_configuration() {
        let [listen, admin, hello, echo] =
            [1, 2, 3, 4].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let toml = Addresses { listen, admin, hello, echo }.toml();
        let config = sluice_config::parse(&toml).unwrap_or_else(|e| panic!("{e}\n{toml}"));
        assert_eq!(config.server.listen[0].addr, listen);
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }
}
