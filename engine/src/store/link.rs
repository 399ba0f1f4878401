//! One connection to one run of a Redis: made with its script loaded and its run known, used until
//! it fails, never repaired.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, cmd};
use rustix::rand::{GetRandomFlags, getrandom};
use sluice_policy::keeper::Batch;
use sluice_policy::mechanism::lease::{Message, Reply};

use super::Client;

const SCRIPT: &str = include_str!("reserve.lua");

/// For making a connection, and for any answer on it. Above the time after which a silent store is
/// taken for lost, so that it is the keeper who decides.
const PATIENCE: Duration = Duration::from_millis(250);

/// In the order of the script's answer.
const FIELDS: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// Which run of a server this is: another one may have lost what this one knew.
    pub(super) run: String,
    script: String,
    node: String,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Outcome {
    Answered(Vec<Reply>),
    /// Nothing was done; it may be sent again.
    Again,
    Broken(String),
}

/// A name that no other process has, nor this one after its next start.
pub(super) fn node() -> String {
    let mut bytes = [0_u8; 8];
    if getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {
        bytes = u64::from(std::process::id()).to_be_bytes();
    }
    format!("{:016x}", u64::from_be_bytes(bytes))
}

impl Link {
    pub(super) async fn make(client: Client, node: String) -> Result<Self, String> {
        let making = Self::shake_hands(&client.client, node);
        match tokio::time::timeout(PATIENCE, making).await {
            Ok(made) => made.map_err(|e| said(&e)),
            Err(_) => Err("no connection within 250 ms".to_owned()),
        }
    }

    async fn shake_hands(client: &redis::Client, node: String) -> RedisResult<Self> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let info: String = cmd("INFO").arg("server").query_async(&mut connection).await?;
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        let run = run.unwrap_or("unknown").trim().to_owned();
        let script = load(&mut connection).await?;
        Ok(Self { connection, run, script, node })
    }

    pub(super) fn line(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }

    pub(super) async fn carry(mut self, batch: Batch) -> Outcome {
        let asked = self.command(&batch).query_async::<Vec<i64>>(&mut self.connection).await;
        match asked {
            Ok(told) => match replies(&told) {
                Some(replies) => Outcome::Answered(replies),
                None => Outcome::Broken("an answer that makes no sense".to_owned()),
            },
            Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                match load(&mut self.connection).await {
                    Ok(_) => Outcome::Again,
                    Err(e) => Outcome::Broken(said(&e)),
                }
            }
            Err(e) => Outcome::Broken(said(&e)),
        }
    }

    fn command(&self, batch: &Batch) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(&self.script).arg(batch.keys.len() + 1);
        command.arg(format!("sluice:{{s{:03}}}", batch.shard));
        for (key, _) in &batch.keys {
            command.arg(format!("sluice:{key}"));
        }
        command.arg(&self.run).arg(&self.node).arg(0);
        for (_, message) in &batch.keys {
            arguments(&mut command, message);
        }
        command
    }
}

/// In the order in which the script reads them.
fn arguments(command: &mut Cmd, message: &Message) {
    let terms = &message.terms;
    command.arg(terms.kind());
    command.arg(terms.units).arg(terms.refill).arg(terms.capacity);
    command.arg(message.lease_us).arg(message.seq).arg(message.born);
    command.arg(message.spent).arg(message.held).arg(message.want).arg(message.demand);
    command.arg(message.elapsed_us).arg(message.since_seq);
}

fn replies(told: &[i64]) -> Option<Vec<Reply>> {
    let reply = |told: &[i64]| {
        let number = |i: usize| u64::try_from(*told.get(i)?).ok();
        Some(Reply {
            granted: number(0)?,
            left: number(1)?,
            wait_us: number(2)?,
            fair: number(3)?,
            flags: number(4)?,
        })
    };
    told.chunks(FIELDS).map(reply).collect()
}

async fn load(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(connection).await
}

/// Without what was sent: that may hold a password.
fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), _) => code.to_owned(),
        (None, Some(detail)) => format!("{}: {detail}", error.category()),
        (None, None) => error.category().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_makes_no_sense_is_none() {
        let whole = Reply { granted: 1, left: 2, wait_us: 3, fair: 4, flags: 0 };
        assert_eq!(replies(&[1, 2, 3, 4, 0]), Some(vec![whole]));
        for told in [&[1, 2, 3][..], &[1, 2, 3, 4, -1], &[1, 2, 3, 4, 0, 1]] {
            assert_eq!(replies(told), None, "{told:?}");
        }
        assert_eq!(replies(&[]), Some(Vec::new()));
    }

    #[test]
    fn no_two_nodes_have_one_name() {
        assert_ne!(node(), node());
    }
}
