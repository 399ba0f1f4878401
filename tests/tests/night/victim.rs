//! A `moody-origin` as the test holds it: a process that is told its mood, killed, stopped, and
//! listened to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use sluice_tests::wait::Watched;

/// What all of them say of requests.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The id of each POST that arrived whole, as often as it did.
    pub(crate) posts: Vec<String>,
    /// Responses that were begun and not ended, on purpose.
    pub(crate) halves: usize,
}

#[derive(Debug)]
pub(crate) struct Victim {
    child: Child,
    pub(crate) addr: SocketAddr,
    mood: Arc<Watched<String>>,
    heard: Arc<Watched<Heard>>,
}

impl Victim {
    pub(crate) fn start(heard: &Arc<Watched<Heard>>) -> Self {
        Self::at("127.0.0.1:0", heard)
    }

    fn at(address: &str, heard: &Arc<Watched<Heard>>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_moody-origin"))
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start moody-origin");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let listening = Arc::new(Watched::default());
        let mood = Arc::new(Watched::default());
        let (found, told, hearing) = (listening.clone(), mood.clone(), Arc::clone(heard));
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
                match what {
                    "listening" => found.change(|addr| *addr = rest.parse().ok()),
                    "mood" => told.change(|mood| rest.clone_into(mood)),
                    "post" => hearing.change(|heard| heard.posts.push(rest.to_owned())),
                    _ => hearing.change(|heard| heard.halves += 1),
                }
            }
        });
        let addr = listening.until(|addr: &Option<SocketAddr>| *addr).expect("it listens");
        Self { child, addr, mood, heard: Arc::clone(heard) }
    }

    /// Returns once it is so.
    pub(crate) fn be(&mut self, mood: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{mood}").expect("it reads");
        self.mood.until(|now| (now == mood).then_some(())).expect("it changes its mood");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal it");
    }

    /// Dies without a word.
    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Runs again where it was.
    pub(crate) fn restart(&mut self) {
        *self = Self::at(&self.addr.to_string(), &self.heard.clone());
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}
