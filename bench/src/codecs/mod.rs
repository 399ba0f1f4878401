//! The same plain proxy, and the same malformed requests, through the engine's own codec and
//! through monoio-http: why the engine has its own (docs/decisions/001-own-http1-codec.md).

mod inputs;
mod proxy;
mod recorder;

pub use inputs::INPUTS;
pub use proxy::serve;
pub use recorder::Recorder;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// A request that somebody's parser fell for.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pub name: &'static str,
    /// What is sent; `{LONG}` stands for 70,000 letters.
    pub text: &'static str,
}

/// What became of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Status of each answer.
    pub statuses: Vec<String>,
    /// Closed by the proxy.
    pub closed: bool,
    /// Request heads that reached the upstream.
    pub passed: usize,
    /// The process is gone.
    pub died: bool,
}

/// Nothing more comes after this long.
const SILENCE: Duration = Duration::from_millis(400);

impl Input {
    pub fn bytes(&self) -> Vec<u8> {
        self.text.replace("{LONG}", &"a".repeat(70_000)).into_bytes()
    }

    /// Send it to the proxy at this port, whose upstream is `recorder`.
    pub fn try_on(&self, port: u16, recorder: &Recorder) -> Outcome {
        let before = recorder.heads();
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
            return Outcome { died: true, ..Outcome::default() };
        };
        // A proxy that refuses early may not read all.
        let _ = stream.set_read_timeout(Some(SILENCE));
        let _ = stream.write_all(&self.bytes());
        let (mut answers, mut space) = (Vec::new(), [0; 4096]);
        let closed = loop {
            match stream.read(&mut space) {
                Ok(0) => break true,
                Ok(count) => answers.extend_from_slice(&space[..count]),
                Err(e) => break e.kind() != ErrorKind::WouldBlock,
            }
        };
        let answers = String::from_utf8_lossy(&answers).into_owned();
        let statuses = answers.match_indices("HTTP/1.1 ").filter_map(|(at, text)| {
            let from = at + text.len();
            answers.get(from..from + 3).map(str::to_owned)
        });
        let passed = recorder.heads() - before;
        Outcome { statuses: statuses.collect(), closed, passed, died: false }
    }
}

impl Outcome {
    pub fn describe(&self) -> String {
        if self.died {
            return "the process died".to_owned();
        }
        let answers = match self.statuses.is_empty() {
            true => "no answer".to_owned(),
            false => self.statuses.join(", "),
        };
        let end = if self.closed { "closed" } else { "kept open" };
        format!("{answers}; {end}; {} passed on", self.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_have_names_of_their_own_and_end_their_heads() {
        let mut names: Vec<_> = INPUTS.iter().map(|input| input.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), INPUTS.len());
        assert!(
            INPUTS.iter().all(|input| input.text.contains("\n\r\n") || input.text.contains("\n\n"))
        );
    }

    #[test]
    fn outcomes_are_told_in_words() {
        let outcome =
            Outcome { statuses: vec!["400".into()], closed: true, passed: 0, died: false };
        assert_eq!(outcome.describe(), "400; closed; 0 passed on");
        assert_eq!(Outcome::default().describe(), "no answer; kept open; 0 passed on");
    }
}
