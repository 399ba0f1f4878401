//! What a change touches, and what it takes to put it into effect.

use serde_json::json;
use sluice_config::{Config, diff, parse};

const OLD: &str = r#"version = 1
[server]
drain = "30s"
[upstream.app]
servers = ["127.0.0.1:3000"]
[route.all]
match = "/{*rest}"
to = "app"
request_headers = { set = { authorization = "Bearer old", x-colour = "red" } }
"#;

#[test]
fn each_change_says_what_it_takes() {
    for (old, new, expected) in [
        ("version = 1", "# the same\nversion = 1", json!([])),
        // A default that is written out changes nothing; nor does another way to write it.
        ("[server]", "[server]\nlisten = [\"0.0.0.0:8080\"]\nidle_timeout = \"1.5min\"", json!([])),
        ("30s", "2min", json!([change("server.drain", json!("30s"), json!("2min"), "swap")])),
        (
            "[server]",
            "[server]\nlisten = [\":80\"]\nworkers = 2",
            json!([
                change("server.listen", json!([":8080"]), json!([":80"]), "rebind"),
                change("server.workers", json!("auto"), json!(2), "restart"),
            ]),
        ),
        (
            "[server]",
            "[admin]\ntoken = \"${env:TOKEN}\"\n[server]",
            json!([change("admin.token", json!(null), json!("env:TOKEN"), "swap")]),
        ),
        (
            "[route.all]",
            "[route.b]\nmatch = \"/b\"\nto = \"app\"\n[route.all]",
            json!([
                change("route.b.match", json!(null), json!("/b"), "swap"),
                change("route.b.to", json!(null), json!("app"), "swap"),
            ]),
        ),
        (
            "Bearer old\", x-colour = \"red",
            "Bearer new\", x-colour = \"blue",
            json!([
                change(
                    "route.all.request_headers.set.authorization",
                    json!("(hidden)"),
                    json!("(hidden)"),
                    "swap"
                ),
                change(
                    "route.all.request_headers.set.x-colour",
                    json!("red"),
                    json!("blue"),
                    "swap"
                ),
            ]),
        ),
    ] {
        let changes = diff(&read(OLD), &read(&OLD.replace(old, new)));
        assert_eq!(serde_json::to_value(&changes).unwrap(), expected, "{old} -> {new}");
    }
}

fn change(
    path: &str,
    old: serde_json::Value,
    new: serde_json::Value,
    effect: &str,
) -> serde_json::Value {
    json!({ "path": path, "old": old, "new": new, "effect": effect })
}

fn read(text: &str) -> Config {
    parse(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}
