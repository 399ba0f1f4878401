//! Which server holds what: one that is written down, the one that Sentinels name, or those of a
//! cluster.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult, Value, cmd};
use sluice_config::StoreServer;
use sluice_policy::keeper::{ALL, SHARDS};

use super::client::{Client, Entry, Place};
use super::link::said;

/// For any one server that is asked. The next may know as well.
const PATIENCE: Duration = Duration::from_millis(250);

/// A primary and the shards that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) server: StoreServer,
    pub(super) shards: u64,
}

/// `turn` grows with each try, so that none of those who could be asked is always the first.
/// `known`: servers of before, who can be asked as well as those that are written down.
pub(super) async fn find(
    client: Client,
    known: Vec<StoreServer>,
    turn: usize,
) -> Result<Vec<Found>, String> {
    let (entry, mut servers, master) = match client.place {
        Place::One(server) => return Ok(vec![Found { server, shards: ALL }]),
        Place::Sentinels { servers, master } => (client.sentinel, servers, Some(master)),
        Place::Cluster(mut servers) => {
            servers.extend(known);
            (client.entry, servers, None)
        }
    };
    if servers.is_empty() {
        return Err("nobody to ask".to_owned());
    }
    let first = turn % servers.len();
    servers.rotate_left(first);
    let mut last = String::new();
    for server in servers {
        let asking = ask(&entry, &server, master.as_deref());
        last = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(found)) if !found.is_empty() => return Ok(found),
            Ok(Ok(_)) => match &master {
                Some(master) => format!("{server}: knows no {master}"),
                None => format!("{server}: no part of a cluster that is up"),
            },
            Ok(Err(e)) => format!("{server}: {}", said(&e)),
            Err(_) => format!("{server}: no answer within 250 ms"),
        };
    }
    Err(last)
}

async fn ask(entry: &Entry, server: &StoreServer, master: Option<&str>) -> RedisResult<Vec<Found>> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(entry.at(server)?)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    match master {
        Some(master) => primary(&mut connection, master).await,
        None => cluster(&mut connection, server).await,
    }
}

async fn primary(connection: &mut MultiplexedConnection, name: &str) -> RedisResult<Vec<Found>> {
    let mut asked = cmd("SENTINEL");
    asked.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let told: Option<(String, u16)> = asked.query_async(connection).await?;
    let found = told.map(|(host, port)| Found { server: StoreServer { host, port }, shards: ALL });
    Ok(found.into_iter().collect())
}

async fn cluster(
    connection: &mut MultiplexedConnection,
    asked: &StoreServer,
) -> RedisResult<Vec<Found>> {
    let told: Vec<Value> = cmd("CLUSTER").arg("SLOTS").query_async(connection).await?;
    Ok(holders(&told.iter().filter_map(range).collect::<Vec<_>>(), &asked.host))
}

/// Slots from, to, and who has them. No host: the one that was asked.
type Range = (u16, u16, Option<String>, u16);

fn range(told: &Value) -> Option<Range> {
    let Value::Array(parts) = told else { return None };
    let [low, high, Value::Array(primary), ..] = &parts[..] else { return None };
    let [host, port, ..] = &primary[..] else { return None };
    let host = Option::<String>::from_redis_value(host.clone()).ok()?;
    let number = |value: &Value| u16::from_redis_value(value.clone()).ok();
    Some((number(low)?, number(high)?, host, number(port)?))
}

fn holders(ranges: &[Range], asked: &str) -> Vec<Found> {
    let mut all: Vec<Found> = Vec::new();
    for shard in 0..SHARDS {
        let slot = slot(shard);
        let holds = |(low, high, ..): &&Range| (*low..=*high).contains(&slot);
        let Some((_, _, host, port)) = ranges.iter().find(holds) else { continue };
        let host = host.clone().filter(|host| !host.is_empty());
        let server = StoreServer { host: host.unwrap_or_else(|| asked.to_owned()), port: *port };
        match all.iter_mut().find(|found| found.server == server) {
            Some(found) => found.shards |= 1 << shard,
            None => all.push(Found { server, shards: 1 << shard }),
        }
    }
    all
}

/// The cluster's slot for a shard: a checksum (CRC-16/XMODEM) of what stands in the braces.
fn slot(shard: u64) -> u16 {
    let mut crc = 0_u16;
    for byte in format!("s{shard:03}").bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_its_slot() {
        // As `CLUSTER KEYSLOT` of a server says.
        for (shard, expected) in [(0, 12_234), (7, 7_981), (63, 13_583)] {
            assert_eq!(slot(shard), expected, "{shard}");
        }
    }

    #[test]
    fn each_primary_holds_the_shards_of_its_slots() {
        let here = |low, high, host: &str, port| (low, high, Some(host.to_owned()), port);
        let ranges = [here(0, 8000, "a", 1), here(8001, 9000, "", 2), (9001, 16_000, None, 2)];
        let found = holders(&ranges, "asked");
        assert_eq!(found.len(), 2);
        let [first, second] = [&found[0], &found[1]].map(|f| f.server.to_string());
        assert!([&first, &second].contains(&&"a:1".to_owned()), "{first} {second}");
        assert!([&first, &second].contains(&&"asked:2".to_owned()), "{first} {second}");
        assert_eq!(found[0].shards & found[1].shards, 0);
        let covered = found[0].shards | found[1].shards;
        for shard in 0..SHARDS {
            assert_eq!(covered & (1 << shard) != 0, slot(shard) <= 16_000, "{shard}");
        }
        assert_eq!(holders(&[], "asked"), Vec::new());
    }
}
