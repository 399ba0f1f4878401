//! A Redis in company: watched by a Sentinel, in a cluster of three, or behind TLS with
//! certificates of the test's own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::redis::{Redis, free_port, try_ask};
use crate::wait::eventually;

/// A Sentinel that watches one primary under the name `main`, and is enough to fail it over.
#[derive(Debug)]
pub struct Sentinel {
    child: Child,
    addr: SocketAddr,
    /// How redis-cli gets in.
    login: Vec<String>,
    _dir: TempDir,
}

impl Sentinel {
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn over(primary: &Redis) -> Self {
        Self::start(primary.addr().port(), "", "", &[])
    }

    /// These lines stand before what it watches, those behind it.
    fn start(primary: u16, before: &str, behind: &str, login: &[&str]) -> Self {
        let (dir, addr) = (TempDir::new().expect("a temporary folder"), free_port());
        let login: Vec<String> = login.iter().map(|word| (*word).to_owned()).collect();
        let file = dir.path().join("sentinel.conf");
        let text = format!(
            "bind 127.0.0.1\nport {}\n{before}sentinel monitor main 127.0.0.1 {primary} 1\n\
             sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n\
             {behind}",
            addr.port(),
        );
        std::fs::write(&file, text).expect("write the Sentinel's file");
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .expect("start a Sentinel");
        eventually("a Sentinel that knows the replica", || {
            let told = cli(addr, &login, &["SENTINEL", "MASTER", "main"]);
            let mut lines = told.lines().skip_while(|line| *line != "num-slaves");
            (lines.nth(1)? != "0").then_some(())
        });
        Self { child, addr, login, _dir: dir }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port of what it takes for the primary.
    #[must_use]
    pub fn primary(&self) -> u16 {
        let told = cli(self.addr, &self.login, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        told.lines().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Three primaries that share the slots.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// As [`Redis::start`].
    ///
    /// # Panics
    /// When the three do not come together.
    #[must_use]
    pub fn start() -> Option<Self> {
        let node = || {
            let bus = free_port().port().to_string();
            Redis::start_with(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "1000",
                // The others go on when one is gone.
                "--cluster-require-full-coverage",
                "no",
            ])
        };
        let nodes: Vec<Redis> = (0..3).map(|_| node()).collect::<Option<_>>()?;
        let addrs: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let mut args = vec!["--cluster", "create"];
        args.extend(addrs.iter().map(String::as_str));
        args.push("--cluster-yes");
        let told = run(&args);
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
        let cluster = Self { nodes };
        eventually("a cluster that agrees", || {
            let up = |node: &Redis| {
                node.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && node.ask(&["CLUSTER", "INFO"]).contains("cluster_known_nodes:3")
            };
            cluster.nodes.iter().all(up).then_some(())
        });
        cluster.warm();
        Some(cluster)
    }

    /// As [`Redis::warm`].
    fn warm(&self) {
        let runs: Vec<_> = self.nodes.iter().map(|node| node.info("server", "run_id")).collect();
        for shard in 0..64 {
            let key = format!("sluice:{{s{shard:03}}}");
            let set = |(node, run): (&Redis, &String)| {
                let told = node.ask(&["HSET", &key, "run", run, "fence", "1"]);
                !told.starts_with("-MOVED")
            };
            assert!(self.nodes.iter().zip(&runs).any(set), "nobody has {key}");
        }
    }

    /// A field of a hash, from whoever has it.
    ///
    /// # Panics
    /// When nobody has.
    #[must_use]
    pub fn get(&self, key: &str, field: &str) -> String {
        let get = |node: &Redis| {
            let told = node.ask(&["HGET", key, field]);
            (!told.starts_with("-MOVED")).then_some(told)
        };
        self.nodes.iter().find_map(get).unwrap_or_else(|| panic!("nobody has {key}"))
    }

    /// `"127.0.0.1:7000", "127.0.0.1:7001", …`
    #[must_use]
    pub fn addrs(&self) -> String {
        let quoted = |node: &Redis| format!("\"{}\"", node.addr());
        self.nodes.iter().map(quoted).collect::<Vec<_>>().join(", ")
    }

    /// Moves the slots of all of the gateways' shards from one to another while both serve, with
    /// the steps that `redis-cli --cluster reshard` takes for every slot.
    ///
    /// # Panics
    /// When they can't be moved.
    pub fn reshard(&self, from: usize, to: usize) {
        let id = |node: &Redis| node.ask(&["CLUSTER", "MYID"]).trim().to_owned();
        let (from_id, to_id) = (id(&self.nodes[from]), id(&self.nodes[to]));
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        let port = to.addr().port().to_string();
        for shard in 0..64 {
            let key = format!("sluice:{{s{shard:03}}}");
            if from.ask(&["EXISTS", &key]).starts_with("-MOVED") {
                continue;
            }
            let slot = from.ask(&["CLUSTER", "KEYSLOT", &key]).trim().trim_matches(':').to_owned();
            let set = |node: &Redis, how: &str, id: &str| {
                let told = node.ask(&["CLUSTER", "SETSLOT", &slot, how, id]);
                assert_eq!(told, "+OK\r\n", "{slot} {how}");
            };
            set(to, "IMPORTING", &from_id);
            set(from, "MIGRATING", &to_id);
            loop {
                let keys = cli(from.addr(), &[], &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
                let keys: Vec<&str> = keys.split_whitespace().collect();
                if keys.is_empty() {
                    break;
                }
                let ways = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
                let told = from.ask(&[&ways, &keys[..]].concat());
                assert!(told.starts_with('+'), "{told}");
            }
            self.nodes.iter().for_each(|node| set(node, "NODE", &to_id));
        }
    }
}

/// A certificate authority of the test's own, with a certificate for 127.0.0.1.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
}

impl Authority {
    /// `None`, and a line that says so, where `openssl` is not installed.
    ///
    /// # Panics
    /// When it is there and does not do its work.
    #[must_use]
    pub fn new() -> Option<Self> {
        if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: openssl is not installed");
            return None;
        }
        let dir = TempDir::new().expect("a temporary folder");
        let ours = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
                    -keyout ca.key -out ca.pem -subj /CN=test";
        let asked = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key \
                     -out server.csr -subj /CN=redis";
        let signed = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                      -out server.pem -extfile names";
        std::fs::write(dir.path().join("names"), "subjectAltName=IP:127.0.0.1\n").expect("write");
        for step in [ours, asked, signed] {
            let mut openssl = Command::new("openssl");
            let told = openssl.args(step.split_whitespace()).current_dir(dir.path()).output();
            let told = told.expect("run openssl");
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        }
        Some(Self { dir })
    }

    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A Redis that speaks TLS on the returned port, and in the clear on its own, and wants no
    /// certificate of its clients.
    #[must_use]
    pub fn redis(&self, more: &[&str]) -> Option<(Redis, u16)> {
        let port = free_port().port();
        let path = |name: &str| self.file(name).to_string_lossy().into_owned();
        let (cert, key, ca, tls) =
            (path("server.pem"), path("server.key"), path("ca.pem"), port.to_string());
        let mut args = vec!["--tls-port", &tls, "--tls-cert-file", &cert, "--tls-key-file", &key];
        args.extend(["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"]);
        args.extend(more);
        Some((Redis::start_with(&args)?, port))
    }

    /// A Sentinel that speaks TLS on the returned port, also to what it watches: the primary at
    /// this port, and its replica. It asks for this password, and knows the server's.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn sentinel(&self, primary: u16, password: &str, user: [&str; 2]) -> (Sentinel, u16) {
        let port = free_port().port();
        let path = |name: &str| self.file(name).to_string_lossy().into_owned();
        let before = format!(
            "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
             tls-auth-clients no\ntls-replication yes\nrequirepass {password}\n",
            path("server.pem"),
            path("server.key"),
            path("ca.pem"),
        );
        let [user, theirs] = user;
        let behind = format!("sentinel auth-user main {user}\nsentinel auth-pass main {theirs}\n");
        let login = ["--no-auth-warning", "-a", password];
        (Sentinel::start(primary, &before, &behind, &login), port)
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// What redis-cli prints. For answers of many lines.
fn cli(addr: SocketAddr, login: &[String], words: &[&str]) -> String {
    if try_ask(addr, &["PING"]).is_none() {
        return String::new();
    }
    let port = addr.port().to_string();
    let login: Vec<&str> = login.iter().map(String::as_str).collect();
    let told = run(&[&["-p", &port], &login[..], words].concat());
    String::from_utf8_lossy(&told.stdout).into_owned()
}

fn run(args: &[&str]) -> Output {
    Command::new("redis-cli").args(args).output().expect("run redis-cli")
}
