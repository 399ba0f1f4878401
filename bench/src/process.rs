//! Processes of a run: started on their CPU, and ended by their own ids and nobody else's.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::cpu::Stat;
use crate::http::response::Reader;
use crate::peers::{Peer, Site};
use crate::place::Place;
use crate::{clock, cpu};

/// A process that we started. Dropping it ends it with all that it started.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    name: &'static str,
    /// Where its output goes.
    log: PathBuf,
}

impl Running {
    /// Starts a peer for one run.
    pub(crate) fn peer(
        peer: &'static dyn Peer,
        program: &Path,
        site: &Site<'_>,
        place: &Place,
    ) -> Result<Self> {
        let launch = peer.launch(site);
        for (name, text) in &launch.files {
            crate::report::write(site.folder, name, text)?;
        }
        let log = site.folder.join("output.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command.args(&launch.arguments).stdin(Stdio::null());
        command.stdout(file.try_clone().context("cannot share the log")?).stderr(file);
        let child =
            spawn(command, place).with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, name: peer.name(), log })
    }

    /// Starts an origin with these options and says where it listens.
    pub(crate) fn origin(
        folder: &Path,
        place: &Place,
        options: &[String],
    ) -> Result<(Self, SocketAddr)> {
        let log = folder.join("origin.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe().context("cannot find myself")?);
        command.args(["origin", "--listen", "127.0.0.1:0"]).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let child = spawn(command, place).context("cannot start the origin")?;
        let mut running = Self { child, name: "origin", log };
        let stdout = running.child.stdout.take().context("the origin has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("the origin says nothing")?;
        let address = line
            .trim()
            .parse()
            .map_err(|_| anyhow!("the origin did not start: {}", running.tail()))?;
        Ok((running, address))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `answers` is true; fails when the process ends or takes too long.
    pub(crate) fn await_ready(&mut self, mut answers: impl FnMut() -> bool) -> Result<()> {
        let late = clock::now_ns() + START_NS_MAX;
        while !answers() {
            if let Some(status) = self.child.try_wait().context("cannot ask for the process")? {
                bail!("{} ended at once ({status}): {}", self.name, self.tail());
            }
            if clock::now_ns() > late {
                bail!("{} does not answer: {}", self.name, self.tail());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    #[cfg(feature = "monoio-http")]
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The last words of its output.
    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join(" / ");
        format!("{last} ({})", self.log.display())
    }

    fn end(&mut self) {
        let tree = cpu::tree(self.pid());
        if let Ok(None) = self.child.try_wait() {
            signal(self.pid(), Signal::TERM);
        }
        let patient = clock::now_ns() + END_NS_MAX;
        let late = patient + END_NS_MAX;
        while let Ok(None) = self.child.try_wait() {
            if clock::now_ns() > patient {
                // Ends at once; the wait below reaps it.
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(POLL);
        }
        // Whoever outlived its parent, and only if the pid is still the same process.
        let runs = |(pid, then): (&u32, &Stat)| {
            cpu::process(*pid).is_some_and(|now| now.started == then.started && !now.ended)
        };
        tree.iter().filter(|entry| runs(*entry)).for_each(|(pid, _)| signal(*pid, Signal::KILL));
        while tree.iter().any(runs) && clock::now_ns() < late {
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ports that are free now, each a different one.
pub(crate) fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port");
    // All held until all are known.
    let held: Vec<TcpListener> = (0..COUNT).map(|_| bind()).collect::<Result<_>>()?;
    let mut ports = [0; COUNT];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr().context("a listener without an address")?.port();
    }
    Ok(ports)
}

/// Whether a request for this path is answered with 200 and a body of this size.
pub(crate) fn answers(port: u16, path: &str, body_bytes: u64) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(ASK_TIMEOUT))?;
        let head = "HTTP/1.1\r\nHost: 127.0.0.1";
        write!(stream, "GET {path} {head}:{port}\r\nConnection: close\r\n\r\n")?;
        let (mut reader, mut buffer) = (Reader::new(false), vec![0; 64 * 1024]);
        loop {
            let length = stream.read(&mut buffer)?;
            match reader.feed(&buffer[..length]) {
                Ok(Some((answer, _))) => {
                    return Ok(answer.status == 200 && answer.body_bytes == body_bytes);
                }
                Ok(None) if length > 0 => {}
                Ok(None) | Err(_) => return Ok(false),
            }
        }
    };
    ask().unwrap_or(false)
}

/// A child inherits the place of the thread that starts it: one is made for that alone.
fn spawn(mut command: Command, place: &Place) -> Result<Child> {
    let start = move || {
        place.take()?;
        Ok(command.spawn()?)
    };
    thread::scope(|scope| scope.spawn(start).join())
        .map_err(|_| anyhow!("the starting thread broke"))?
}

/// A process that is gone already is as ended as can be.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

const START_NS_MAX: u64 = 10 * clock::SECOND_NS;
const END_NS_MAX: u64 = 5 * clock::SECOND_NS;
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
const TAIL_LINES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        Running { child, name: "sh", log: PathBuf::from("/nonexistent") }
    }

    #[test]
    fn ending_ends_the_whole_tree_and_reaps_it() {
        let mut running = shell("sleep 600 & echo $!; wait");
        let mut line = String::new();
        BufReader::new(running.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (parent, child) = (running.pid(), line.trim().parse::<u32>().unwrap());
        let started = cpu::process(child).unwrap().started;
        drop(running);
        assert_eq!(cpu::process(parent), None);
        // Whoever adopted it may still have to reap it, but it does not run.
        let left = cpu::process(child).filter(|now| now.started == started && !now.ended);
        assert_eq!(left, None);
    }

    #[test]
    fn a_process_that_ends_at_once_is_reported() {
        let error = shell("exit 3").await_ready(|| false).unwrap_err();
        assert!(error.to_string().starts_with("sh ended at once (exit status: 3)"), "{error}");
    }

    #[test]
    fn free_ports_differ() {
        let [one, two, three] = free_ports::<3>().unwrap();
        assert!(one != two && two != three && one != three);
    }
}
