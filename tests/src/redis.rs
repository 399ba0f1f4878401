//! A real redis-server of the test's own, where one is installed: it can be killed, stopped,
//! started again and asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::{LIMIT, eventually};

/// A running Redis that keeps nothing on disk. Dropping it ends exactly this process.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    dir: TempDir,
    addr: SocketAddr,
    args: Vec<String>,
}

impl Redis {
    /// `None`, and a line that says so, where Redis is not installed.
    ///
    /// # Panics
    /// When there is none although `CI` says that there must be.
    #[must_use]
    pub fn start() -> Option<Self> {
        let redis = Self::start_with(&[])?;
        redis.warm();
        Some(redis)
    }

    /// With arguments of its own, knowing nothing.
    ///
    /// # Panics
    /// When there is none although `CI` says that there must be.
    #[must_use]
    pub fn start_with(args: &[&str]) -> Option<Self> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var_os("CI").is_none(), "redis-server is not installed");
            eprintln!("skipped: redis-server is not installed");
            return None;
        }
        let dir = TempDir::new().expect("a temporary folder");
        let addr = free_port();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let child = run(addr, &dir, &args);
        Some(Self { child, dir, addr, args })
    }

    /// A copy of this one, that follows it.
    #[must_use]
    pub fn replica(&self) -> Self {
        let port = self.addr.port().to_string();
        let args = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
        let replica = Self::start_with(&args).expect("another of the same");
        eventually("a replica in step", || {
            (replica.info("replication", "master_link_status") == "up").then_some(())
        });
        replica
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// As after a long time: buckets that nobody has used are full, not just born.
    pub fn warm(&self) {
        let run = self.info("server", "run_id");
        let script = "for i = 0, 63 do redis.call('HSET', string.format('sluice:{s%03d}', i), \
                      'run', ARGV[1], 'fence', '1') end return 1";
        assert_eq!(self.ask(&["EVAL", script, "0", &run]).trim(), ":1");
    }

    /// One value of `INFO`.
    #[must_use]
    pub fn info(&self, section: &str, name: &str) -> String {
        let text = self.ask(&["INFO", section]);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    /// How many keys look like this.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn count(&self, pattern: &str) -> usize {
        let told = self.ask(&["KEYS", pattern]);
        told.trim().strip_prefix('*').and_then(|n| n.parse().ok()).expect("a list")
    }

    /// How often a command was called.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let stat = self.info("commandstats", &format!("cmdstat_{command}"));
        let calls = stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Asks, and returns the answer as it came.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn ask(&self, words: &[&str]) -> String {
        self.try_ask(words).expect("an answer from Redis")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("signal Redis");
    }

    /// Dies without a word.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Runs again on the same port, knowing nothing.
    pub fn restart(&mut self) {
        self.child = run(self.addr, &self.dir, &self.args);
    }

    pub fn try_ask(&self, words: &[&str]) -> Option<String> {
        try_ask(self.addr, words)
    }

    /// Its folder, which is gone with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Redis can't tell which port it got, so one is picked and given back just before.
pub(crate) fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port")
}

fn run(addr: SocketAddr, dir: &TempDir, args: &[String]) -> Child {
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", ""])
        .args(["--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir"])
        .arg(dir.path())
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .expect("start redis-server");
    eventually("Redis to answer", || {
        try_ask(addr, &["PING"]).filter(|pong| pong == "+PONG\r\n" || pong.starts_with("-NOAUTH"))
    });
    child
}

/// One line, or the whole of a bulk text.
pub(crate) fn try_ask(addr: SocketAddr, words: &[&str]) -> Option<String> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes()).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let Some(length) = line.trim().strip_prefix('$').and_then(|n| n.parse().ok()) else {
        return Some(line);
    };
    let mut text = vec![0; length];
    reader.read_exact(&mut text).ok()?;
    String::from_utf8(text).ok()
}
