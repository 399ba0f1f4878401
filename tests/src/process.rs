//! The gateway as an operator has it: a process with arguments, signals, standard streams, an exit.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

pub use rustix::process::Signal;

use crate::client::{Client, Response};
use crate::config::Config;
use crate::origin::Origin;
use crate::wait::{Watched, eventually};

/// A running gateway. Dropping it ends exactly this process.
#[derive(Debug)]
pub struct Sluice {
    child: Child,
    dir: TempDir,
    listeners: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    stdout: Lines,
    stderr: Lines,
}

/// How a command of the binary ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// The lines of a stream, as they come.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Watched<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    lines: Vec<String>,
    over: bool,
}

impl Sluice {
    /// Writes the configuration to a folder of its own, runs it, and waits until it is ready.
    #[track_caller]
    #[must_use]
    pub fn start(config: impl ToString) -> Self {
        Self::start_arranged(config, |_| ())
    }

    /// As [`Sluice::start`], with what `arrange` does to the command: surroundings, streams.
    #[track_caller]
    #[must_use]
    pub fn start_arranged(config: impl ToString, arrange: impl FnOnce(&mut Command)) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let file = dir.path().join("sluice.toml");
        fs::write(&file, config.to_string()).expect("write the configuration");
        let control = dir.path().join("control.sock");
        let mut args = vec!["run".into(), "-c".into(), file, "--control".into(), control];
        args.extend(driver());
        Self::spawn(dir, &args, arrange)
    }

    /// A gateway that sends everything to this origin.
    #[track_caller]
    #[must_use]
    pub fn before(origin: &Origin) -> Self {
        Self::start(Config::to(&[origin.addr()]))
    }

    /// `sluice proxy` in front of that address.
    #[track_caller]
    #[must_use]
    pub fn proxy(upstream: SocketAddr) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let control = dir.path().join("control.sock");
        let mut args: Vec<PathBuf> =
            ["proxy", "127.0.0.1:0", &upstream.to_string(), "--admin", "127.0.0.1:0", "--control"]
                .map(PathBuf::from)
                .into();
        args.push(control);
        args.extend(driver());
        Self::spawn(dir, &args, |_| ())
    }

    /// Runs any command that serves, such as `try` or `proxy`, and waits until it is ready.
    #[track_caller]
    #[must_use]
    pub fn with_args(args: &[&str]) -> Self {
        let args: Vec<PathBuf> = args.iter().map(PathBuf::from).collect();
        Self::spawn(TempDir::new().expect("a temporary folder"), &args, |_| ())
    }

    /// Runs a command to its end.
    #[track_caller]
    #[must_use]
    pub fn command(args: &[&str]) -> Finished {
        Self::command_arranged(args, |_| ())
    }

    /// As [`Sluice::command`], with what `arrange` does to the command.
    #[track_caller]
    #[must_use]
    pub fn command_arranged(args: &[&str], arrange: impl FnOnce(&mut Command)) -> Finished {
        let args: Vec<PathBuf> = args.iter().map(PathBuf::from).collect();
        let (mut child, stdout, stderr) = launch(&args, arrange);
        if !(stdout.wait_until_over() && stderr.wait_until_over()) {
            drop(child.kill());
            panic!("{args:?} does not end; it said {}", stderr.text());
        }
        let code = child.wait().expect("a child that can be waited for").code();
        Finished { code, stdout: stdout.text(), stderr: stderr.text() }
    }

    /// The first listener's address.
    #[track_caller]
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        *self.listeners.first().expect("a listener")
    }

    #[must_use]
    pub fn listeners(&self) -> &[SocketAddr] {
        &self.listeners
    }

    /// A new connection to the first listener.
    #[track_caller]
    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(self.addr())
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The most memory it ever held, in bytes.
    #[track_caller]
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB");
        kib * 1024
    }

    /// The folder that holds `sluice.toml` and `control.sock`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes another configuration over the running one's file, without telling the gateway.
    pub fn rewrite(&self, config: impl ToString) {
        fs::write(self.dir().join("sluice.toml"), config.to_string()).expect("write");
    }

    /// Rewrites the file with the real ports, then asks for a reload as an operator would.
    #[track_caller]
    pub fn reload(&self, config: impl ToString) -> Finished {
        self.rewrite(config);
        let control = self.dir().join("control.sock");
        Self::command(&["reload", "--control", &control.to_string_lossy()])
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("signal the gateway");
    }

    /// Waits until the process ended by itself; its exit code.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        assert!(self.stderr.wait_until_over(), "it runs on; it said {}", self.stderr.text());
        self.child.wait().expect("a child that can be waited for").code()
    }

    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits for a line on standard error that holds `part`.
    #[track_caller]
    pub fn wait_for_stderr(&self, part: &str) -> String {
        self.stderr
            .wait_for(|line| line.contains(part).then(|| line.to_owned()))
            .unwrap_or_else(|| panic!("no {part:?} on standard error, but {}", self.stderr.text()))
    }

    /// The admin listener's address.
    #[track_caller]
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.expect("an admin listener")
    }

    /// `GET path` from the admin listener.
    #[track_caller]
    #[must_use]
    pub fn admin(&self, path: &str) -> Response {
        self.admin_client().ask_host("localhost", path, "Connection: close\r\n")
    }

    #[track_caller]
    #[must_use]
    pub fn admin_client(&self) -> Client {
        Client::connect(self.admin_addr())
    }

    /// Every sample of `/metrics`: the name with its labels as written, and its value.
    #[track_caller]
    #[must_use]
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let text = self.admin("/metrics").text();
        let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        samples
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').expect("a name and a value");
                (name.to_owned(), value.parse().expect("a number"))
            })
            .collect()
    }

    /// Waits until a metric has this value.
    #[track_caller]
    pub fn wait_for_metric(&self, name: &str, value: f64) {
        eventually(&format!("{name} {value}"), || {
            self.metrics().get(name).is_some_and(|seen| (seen - value).abs() < 0.5).then_some(())
        });
    }

    /// Waits until the access log on standard output holds `count` lines; all of them.
    #[track_caller]
    #[must_use]
    pub fn log_lines(&self, count: usize) -> Vec<serde_json::Value> {
        let lines =
            self.stdout.wait_for_all(|lines| (lines.len() >= count).then(|| lines.to_vec()));
        let Some(lines) = lines else {
            panic!("fewer than {count} log lines: {}", self.stdout.text())
        };
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
            .collect()
    }

    #[track_caller]
    fn spawn(dir: TempDir, args: &[PathBuf], arrange: impl FnOnce(&mut Command)) -> Self {
        let (child, stdout, stderr) = launch(args, arrange);
        let mut sluice = Self { child, dir, listeners: Vec::new(), admin: None, stdout, stderr };
        let ready = sluice.stderr.wait_for(|line| (line.trim() == "ready").then_some(()));
        let banner = sluice.stderr.text();
        assert!(ready.is_some(), "{args:?} did not get ready; it said:\n{banner}");
        for line in banner.lines() {
            sluice.listeners.extend(address_after(line, "listening on "));
            sluice.admin = sluice.admin.or_else(|| address_after(line, "admin on "));
        }
        sluice
    }
}

impl Drop for Sluice {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the gateway said:\n{}", self.stderr.text());
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let heard = Arc::clone(&lines.0);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                heard.change(|heard| heard.lines.push(line));
            }
            heard.change(|heard| heard.over = true);
        });
        lines
    }

    fn text(&self) -> String {
        self.0.read(|heard| heard.lines.join("\n"))
    }

    fn wait_until_over(&self) -> bool {
        self.0.until(|heard| heard.over.then_some(())).is_some()
    }

    fn wait_for<T>(&self, look: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.wait_for_all(|lines| lines.iter().find_map(|line| look(line)))
    }

    /// `None` when the stream ended, or nothing was found for too long.
    fn wait_for_all<T>(&self, look: impl Fn(&[String]) -> Option<T>) -> Option<T> {
        self.0
            .until(|heard| match look(&heard.lines) {
                Some(found) => Some(Some(found)),
                None => heard.over.then_some(None),
            })
            .flatten()
    }
}

fn launch(args: &[PathBuf], arrange: impl FnOnce(&mut Command)) -> (Child, Lines, Lines) {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    arrange(&mut command);
    let mut child = command.spawn().expect("start the binary");
    let stdout = Lines::of(child.stdout.take().expect("a pipe"));
    let stderr = Lines::of(child.stderr.take().expect("a pipe"));
    (child, stdout, stderr)
}

/// What `SLUICE_TEST_DRIVER` asks for, as arguments.
fn driver() -> Vec<PathBuf> {
    let asked = env::var_os("SLUICE_TEST_DRIVER");
    asked.map(|name| vec!["--driver".into(), name.into()]).unwrap_or_default()
}

fn address_after(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(words)?;
    rest.split_whitespace().next()?.parse().ok()
}

/// `SLUICE_BIN`, or the binary beside the test, built afresh so that it is never a stale one.
#[must_use]
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match env::var_os("SLUICE_BIN") {
        Some(path) => path.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let test = env::current_exe().expect("a path to this test");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let target = profile.parent().expect("target/PROFILE");
    let name = profile.file_name().and_then(|name| name.to_str()).expect("a profile's name");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "sluice-engine", "--bin", "sluice"])
        .args(["--profile", if name == "debug" { "dev" } else { name }, "--target-dir"])
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .expect("run cargo");
    assert!(status.success(), "the gateway does not build");
    profile.join("sluice")
}
