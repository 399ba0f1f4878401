//! What a store's servers say of themselves, for whoever sets one up: reached or not and why, how
//! old they are, and whether they keep what they are given.

use std::time::Duration;

use redis::{AsyncConnectionConfig, RedisResult, Value, cmd, pipe};
use sluice_config::StoreServer;
use sluice_policy::keeper::{ALL, SHARDS};

use super::client::{Client, Entry, Place};
use super::find::find;
use super::link::{said, through};

/// What was found of one server, or of the store as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// None: of the store.
    pub(crate) server: Option<String>,
    pub(crate) is: String,
    /// What would be better.
    pub(crate) should: Option<String>,
}

/// For a connection and its answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// What the script needs: several fields in one HSET, and effects that are replicated.
const OLDEST: (u32, u32) = (5, 0);

/// Looks for the servers as a gateway does, and asks each what it is.
pub(crate) async fn examine(client: Client) -> Vec<Finding> {
    let sentinel = matches!(client.place, Place::Sentinels { .. });
    let entry = client.entry.clone();
    let found = match find(client, Vec::new(), 0).await {
        Ok(found) => found,
        Err(why) => {
            let should = advice(&why).unwrap_or("a server that answers");
            return vec![Finding { server: None, is: why, should: Some(should.to_owned()) }];
        }
    };
    let held = found.iter().fold(0, |all, found| all | found.shards);
    let mut findings = Vec::new();
    if held != ALL {
        let is = format!("{} of {SHARDS} shards have nobody", (ALL & !held).count_ones());
        let should = Some("a cluster whose slots all have a primary".to_owned());
        findings.push(Finding { server: None, is, should });
    }
    for found in found {
        findings.push(ask(&entry, &found.server, sentinel).await);
    }
    findings
}

async fn ask(entry: &Entry, server: &StoreServer, sentinel: bool) -> Finding {
    let told = match tokio::time::timeout(PATIENCE, about(entry, server)).await {
        Ok(told) => told.map_err(|e| said(&e)),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    };
    let hidden = !told.as_ref().is_ok_and(tells_its_run);
    let (is, should) = match told {
        Ok(_) if entry.proxied && !hidden => {
            let should = "no `proxied`: which run it is can be seen, so strict limits can be kept";
            ("Redis, with nothing between that hides it".to_owned(), Some(should.to_owned()))
        }
        _ if hidden && passes(entry, server).await => {
            let should = (!entry.proxied).then(|| VEILED.to_owned());
            ("Redis behind a proxy that hides when it restarts".to_owned(), should)
        }
        Ok(told) => judge(&told, sentinel),
        Err(why) => {
            let should = advice(&why).unwrap_or("a server that answers").to_owned();
            (why, Some(should))
        }
    };
    Finding { server: Some(server.to_string()), is, should }
}

const VEILED: &str = "`proxied = true` in [store.redis], so that `check` can warn of strict limits; \
                      or reached without the proxy";

/// Whether it can be used by way of a proxy.
async fn passes(entry: &Entry, server: &StoreServer) -> bool {
    let asking = async {
        let client = redis::Client::open(entry.clone().proxied().at(server)?)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        through(&mut connection).await
    };
    matches!(tokio::time::timeout(PATIENCE, asking).await, Ok(Ok(_)))
}

/// The same one on both connections.
fn tells_its_run([first, second]: &[String; 2]) -> bool {
    let run = line(first, "run_id");
    run.is_some() && run == line(second, "run_id")
}

/// Two connections, so that something in between that spreads them shows.
async fn about(entry: &Entry, server: &StoreServer) -> RedisResult<[String; 2]> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let mut told = [String::new(), String::new()];
    for told in &mut told {
        let client = redis::Client::open(entry.at(server)?)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        // As the gateways do, so that a user who may not is told so.
        let script = "return redis.call('PTTL', KEYS[1])";
        let mut asked = pipe();
        asked.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        asked.cmd("SCRIPT").arg("LOAD").arg(script);
        let (about, role, _): (String, String, Value) = asked.query_async(&mut connection).await?;
        // Not every user may see this, and not every server has it.
        let memory: RedisResult<String> =
            cmd("INFO").arg("memory").query_async(&mut connection).await;
        *told = [about, role, memory.unwrap_or_default()].join("\n");
    }
    Ok(told)
}

fn judge(told: &[String; 2], sentinel: bool) -> (String, Option<String>) {
    let [first, _] = told;
    let version = line(first, "redis_version").unwrap_or_else(|| "unknown".to_owned());
    let role = match line(first, "role").as_deref() {
        Some("master") => "a primary",
        Some("slave") => "a replica",
        Some(_) | None => "of an unknown role",
    };
    let is = format!("Redis {version}, {role}");
    let policy = line(first, "maxmemory_policy").unwrap_or_else(|| "noeviction".to_owned());
    let bounded = line(first, "maxmemory").is_some_and(|most| most != "0");
    let should = if !tells_its_run(told) {
        Some("reached without a proxy: it hides when a server restarts, so strict limits fail")
    } else if older(&version) {
        Some("5.0 or later, better 7.0")
    } else if role == "a replica" && sentinel {
        Some("a primary: the Sentinels have not agreed yet")
    } else if role == "a replica" {
        Some("a primary: counts are written")
    } else if bounded && policy != "noeviction" {
        Some("maxmemory-policy noeviction: a count that is evicted is forgotten")
    } else {
        None
    };
    (is, should.map(str::to_owned))
}

fn line(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

fn older(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < OLDEST,
        (Some(_), None) | (None, _) => false,
    }
}

/// What an error mostly comes of.
fn advice(why: &str) -> Option<&'static str> {
    let table = [
        ("NOAUTH", "`password` (and `user`) in [store.redis]: the server wants to know who asks"),
        ("authentication failed", "the `password` and `user` that the server knows"),
        ("AuthenticationFailed", "the `password` and `user` that the server knows"),
        ("WRONGPASS", "the `password` and `user` that the server knows"),
        ("NOPERM", "a user with the rights that docs/limits-redis.md lists"),
        ("UnknownIssuer", "`ca` of [store.redis]: who has signed the server's certificate"),
        ("invalid peer certificate", "a certificate for this name, from somebody in `ca`"),
        ("CertificateRequired", "`certificate` and `certificate_key` of [store.redis]"),
        ("InvalidContentType", "an address that speaks TLS, or `redis://` and no `tls`"),
        ("corrupt message", "an address that speaks TLS, or `redis://` and no `tls`"),
        ("timed out", "a server that answers in time, and that speaks TLS if it is to"),
        ("no answer within", "a server that answers in time, and that speaks TLS if it is to"),
        ("Connection refused", "an address where a Redis listens"),
        ("failed to lookup address", "a name that has an address"),
        ("no part of a cluster", "cluster_state:ok, as `redis-cli cluster info` says"),
        ("CLUSTERDOWN", "cluster_state:ok, as `redis-cli cluster info` says"),
        ("knows no", "`master` as the Sentinels call it"),
        ("unexpected end of file", "`rediss://`, if the server speaks TLS there"),
        ("Connection reset", "`rediss://`, if the server speaks TLS there"),
    ];
    table.iter().find(|(sign, _)| why.contains(sign)).map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_better_is_said() {
        let told = |version: &str, role: &str, policy: &str, run: &str| {
            format!(
                "redis_version:{version}\r\nrun_id:{run}\r\nrole:{role}\r\nmaxmemory:1000\r\n\
                 maxmemory_policy:{policy}\r\n"
            )
        };
        let good = told("7.0.15", "master", "noeviction", "a");
        let table = [
            (good.clone(), good.clone(), None),
            (good.clone(), told("7.0.15", "master", "noeviction", "b"), Some("without a proxy")),
            (String::new(), String::new(), Some("without a proxy")),
            (told("4.0.9", "master", "noeviction", "a"), good.clone(), Some("5.0 or later")),
            (told("7.2", "slave", "noeviction", "a"), good.clone(), Some("a primary")),
            (told("7.2", "master", "allkeys-lru", "a"), good, Some("noeviction")),
        ];
        for (first, second, expected) in table {
            let (is, should) = judge(&[first, second], false);
            let matches = match (&should, expected) {
                (Some(should), Some(expected)) => should.contains(expected),
                (None, None) => is == "Redis 7.0.15, a primary",
                (Some(_), None) | (None, Some(_)) => false,
            };
            assert!(matches, "{is}: {should:?}, not {expected:?}");
        }
    }
}
