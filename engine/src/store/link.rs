//! One connection to one run of a Redis: made with its script loaded and its run known, used until
//! it fails, never repaired.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value, cmd, pipe,
};
use rustix::rand::{GetRandomFlags, getrandom};
use sluice_config::StoreServer;
use sluice_policy::keeper::Batch;
use sluice_policy::mechanism::lease::{Message, Reply};

use super::client::Entry;
use super::vouch::Standing;

const SCRIPT: &str = include_str!("reserve.lua");

/// For making a connection, of which TLS takes a part, and for any answer on it. Above the time
/// after which a silent store is taken for lost, so that it is the keeper who decides.
const PATIENCE: Duration = Duration::from_millis(500);

/// The run of a server that does not tell.
const HIDDEN: &str = "unknown";

/// In the order of the script's answer.
const FIELDS: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// Which run of a server this is: another one may have lost what this one knew.
    pub(super) run: String,
    /// As of when it was made.
    pub(super) standing: Standing,
    script: String,
    node: String,
    /// As the configuration says: then nothing is asked of it that a proxy may not know.
    proxied: bool,
}

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) batch: Batch,
    /// To a server that does not hold its shard yet: the one that does has sent us there.
    pub(super) asking: bool,
    /// The run that all of its shard was carried over from, where that is known.
    pub(super) from: Option<String>,
}

/// How the script is called.
#[derive(Clone, Copy, Debug)]
enum Call {
    ByHash,
    Whole,
}

/// What became of a batch. Nothing was done unless it was answered or broken.
#[derive(Debug)]
pub(super) enum Outcome {
    Answered(u64, Vec<Reply>),
    /// It may be sent again.
    Again(u64),
    /// Somebody else has the shard.
    Moved(u64),
    /// The shard is on its way to this server, and this key is there.
    Ask(StoreServer, Batch),
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
    pub(super) async fn make(
        entry: Entry,
        server: StoreServer,
        node: String,
    ) -> Result<Self, String> {
        let making = Self::shake_hands(&entry, &server, node);
        match tokio::time::timeout(PATIENCE, making).await {
            Ok(Ok(Some(link))) => Ok(link),
            Ok(Ok(None)) => Err(format!("{server}: is a replica")),
            Ok(Err(e)) => Err(format!("{server}: {}", said(&e))),
            Err(_) => Err(format!("{server}: no connection within 500 ms")),
        }
    }

    /// None: this server is not a primary. A run is learnt on the connection that it is used on, so
    /// no change of hands goes unseen.
    async fn shake_hands(
        entry: &Entry,
        server: &StoreServer,
        node: String,
    ) -> RedisResult<Option<Self>> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = redis::Client::open(entry.at(server)?)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        if entry.proxied {
            let script = through(&mut connection).await?;
            let run = HIDDEN.to_owned();
            let standing = Standing::default();
            return Ok(Some(Self { connection, run, standing, script, node, proxied: true }));
        }
        let mut asked = pipe();
        asked.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        asked.cmd("SCRIPT").arg("LOAD").arg(SCRIPT);
        let (about, role, script): (String, String, String) =
            asked.query_async(&mut connection).await?;
        if role.lines().any(|line| line.trim() == "role:slave") {
            return Ok(None);
        }
        let standing = Standing::read(&role);
        let run = about.lines().find_map(|line| line.strip_prefix("run_id:"));
        let run = run.unwrap_or(HIDDEN).trim().to_owned();
        Ok(Some(Self { connection, run, standing, script, node, proxied: false }))
    }

    /// Something in between hides which run this is, and nobody has said that it would.
    pub(super) fn is_veiled(&self) -> bool {
        self.run == HIDDEN && !self.proxied
    }

    pub(super) fn line(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }

    /// All at once, in one pipeline.
    pub(super) async fn carry(mut self, loads: Vec<Load>) -> Vec<Outcome> {
        let (mut outcomes, unknown) = self.send(loads, Call::ByHash).await;
        if unknown.is_empty() {
            return outcomes;
        }
        if self.proxied {
            // Only with a key does it know for whom a script is.
            outcomes.extend(self.send(unknown, Call::Whole).await.0);
            return outcomes;
        }
        outcomes.extend(unknown.iter().map(|load| Outcome::Again(load.batch.id)));
        if let Err(e) = self.load().await {
            outcomes.push(Outcome::Broken(said(&e)));
        }
        outcomes
    }

    /// What became of them, and those whose server does not know the script.
    async fn send(&mut self, loads: Vec<Load>, call: Call) -> (Vec<Outcome>, Vec<Load>) {
        let mut pipeline = Pipeline::with_capacity(loads.len());
        for load in &loads {
            if load.asking {
                pipeline.add_command(cmd("ASKING"));
            }
            pipeline.add_command(self.command(load, call));
        }
        let count = pipeline.len();
        let told = match self.connection.send_packed_commands(&pipeline, 0, count).await {
            Ok(told) if told.len() == count => told,
            Ok(_) => return (vec![Outcome::Broken("too few answers".to_owned())], Vec::new()),
            Err(e) => return (vec![Outcome::Broken(said(&e))], Vec::new()),
        };
        let mut told = told.into_iter();
        let (mut outcomes, mut unknown) = (Vec::with_capacity(loads.len()), Vec::new());
        for load in loads {
            if load.asking {
                // Refused, and the command behind it will be.
                let _ = told.next();
            }
            let answer = told.next().unwrap_or_default();
            if matches!(&answer, Value::ServerError(e) if e.code() == "NOSCRIPT") {
                unknown.push(load);
            } else {
                outcomes.push(outcome(load.batch, answer));
            }
        }
        (outcomes, unknown)
    }

    async fn load(&mut self) -> RedisResult<()> {
        cmd("SCRIPT").arg("LOAD").arg(SCRIPT).exec_async(&mut self.connection).await
    }

    fn command(&self, load: &Load, call: Call) -> Cmd {
        let Load { batch, from, .. } = load;
        let mut command = match call {
            Call::ByHash => cmd("EVALSHA").arg(&self.script).to_owned(),
            Call::Whole => cmd("EVAL").arg(SCRIPT).to_owned(),
        };
        command.arg(batch.keys.len() + 1);
        command.arg(format!("sluice:{{s{:03}}}", batch.shard));
        for (key, _) in &batch.keys {
            command.arg(format!("sluice:{key}"));
        }
        match from {
            Some(from) => command.arg(format!("{}<{from}", self.run)),
            None => command.arg(&self.run),
        };
        command.arg(&self.node).arg(0);
        for (_, message) in &batch.keys {
            arguments(&mut command, message);
        }
        command
    }
}

/// A script's hash, had by a call with a key: that is all that a proxy must pass on.
pub(super) async fn through(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let mut asked = cmd("EVAL");
    asked.arg("return redis.sha1hex(ARGV[1])").arg(1).arg("sluice:{s000}").arg(SCRIPT);
    asked.query_async(connection).await
}

fn outcome(batch: Batch, answer: Value) -> Outcome {
    let error = match answer {
        Value::ServerError(error) => error,
        answer => {
            let told = Vec::<i64>::from_redis_value(answer).ok();
            return match told.and_then(|told| replies(&told)) {
                Some(replies) => Outcome::Answered(batch.id, replies),
                None => Outcome::Broken("an answer that makes no sense".to_owned()),
            };
        }
    };
    match error.code() {
        // Between two servers.
        "TRYAGAIN" => Outcome::Again(batch.id),
        "MOVED" => Outcome::Moved(batch.id),
        "ASK" => {
            let server = error.details().and_then(|to| to.split_whitespace().nth(1));
            match server.and_then(|server| server.parse().ok()) {
                Some(server) => Outcome::Ask(server, batch),
                None => Outcome::Again(batch.id),
            }
        }
        code => Outcome::Broken(code.to_owned()),
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

/// Without what was sent: that may hold a password.
pub(super) fn said(error: &RedisError) -> String {
    if error.is_io_error() {
        // A broken connection, or what is wrong with a certificate.
        return error.to_string();
    }
    let refused = error.clone().into_server_errors();
    if let Some((_, first)) = refused.as_deref().and_then(|errors| errors.first()) {
        // Of a pipeline, what was refused first.
        return first.code().to_owned();
    }
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
    fn what_a_server_refuses_says_where_to_go() {
        let outcome = |code: &str, detail: &str| {
            let batch = Batch { id: 7, shard: 0, keys: Vec::new() };
            let text = format!("-{code} {detail}\r\n");
            outcome(batch, redis::parse_redis_value(text.as_bytes()).expect("an answer"))
        };
        assert!(matches!(outcome("MOVED", "3999 127.0.0.1:6381"), Outcome::Moved(7)));
        assert!(matches!(outcome("TRYAGAIN", "later"), Outcome::Again(7)));
        assert!(matches!(outcome("ASK", "3999 nowhere"), Outcome::Again(7)));
        assert!(
            matches!(outcome("READONLY", "a replica"), Outcome::Broken(why) if why == "READONLY")
        );
        let Outcome::Ask(server, batch) = outcome("ASK", "3999 127.0.0.1:6381") else { panic!() };
        assert_eq!((server.to_string().as_str(), batch.id), ("127.0.0.1:6381", 7));
    }

    #[test]
    fn no_two_nodes_have_one_name() {
        assert_ne!(node(), node());
    }
}
