//! Writes the access log, on a thread of its own: blocks of whole lines from the workers, to a
//! file or a standard stream.
//!
//! A disk that is full, or a reader that has gone, costs lines and never the gateway: what could
//! not be written is counted, and the next block is tried again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, bounded, select_biased, unbounded};
use sluice_config::LogTarget;

use super::journal::{Block, JournalReceiver};
use crate::event::event;
use crate::exit::reason;

/// The control thread's end.
#[derive(Debug)]
pub(crate) struct Pen {
    orders: Sender<Order>,
    target: LogTarget,
}

/// An opened log.
#[derive(Debug)]
pub(crate) struct Sink {
    /// None: lines are taken and thrown away.
    file: Option<File>,
    /// To be opened again on USR1.
    path: Option<PathBuf>,
}

enum Order {
    Turn(Sink),
    Reopen,
    Finish(Sender<()>),
}

impl Sink {
    /// # Errors
    /// When the file can't be opened for appending.
    pub(crate) fn open(to: &LogTarget) -> io::Result<Self> {
        // A copy of the descriptor: std's own stdout is buffered by lines and shared.
        Ok(match to {
            LogTarget::Stdout => Self::stream(io::stdout().as_fd().try_clone_to_owned()?.into()),
            LogTarget::Stderr => Self::stream(io::stderr().as_fd().try_clone_to_owned()?.into()),
            LogTarget::File(path) => Self { file: Some(append(path)?), path: Some(path.clone()) },
            LogTarget::Off => Self { file: None, path: None },
        })
    }

    fn stream(file: File) -> Self {
        Self { file: Some(file), path: None }
    }
}

impl Pen {
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn start(journal: JournalReceiver, to: &LogTarget, sink: Sink) -> io::Result<Self> {
        let (orders, received) = unbounded();
        let writer = Writer { sink, torn: false, failing: false };
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writer.run(&journal, &received))?;
        Ok(Self { orders, target: to.clone() })
    }

    /// Whether the log goes elsewhere under this configuration.
    pub(crate) fn differs(&self, to: &LogTarget) -> bool {
        self.target != *to
    }

    /// Write to that from now on.
    pub(crate) fn turn(&mut self, to: &LogTarget, sink: Sink) {
        self.target = to.clone();
        let _ = self.orders.send(Order::Turn(sink));
    }

    /// The file was moved away: begin a new one under the old name.
    pub(crate) fn reopen(&self) {
        let _ = self.orders.send(Order::Reopen);
    }

    /// Write everything that was handed over, and wait for it, but not for ever.
    pub(crate) fn finish(&self, patience: Duration) {
        let (done, finished) = bounded(1);
        if self.orders.send(Order::Finish(done)).is_ok() {
            let _ = finished.recv_timeout(patience);
        }
    }
}

struct Writer {
    sink: Sink,
    /// The last write broke off inside a line.
    torn: bool,
    /// The last write failed, and it was said.
    failing: bool,
}

impl Writer {
    fn run(mut self, journal: &JournalReceiver, orders: &Receiver<Order>) {
        loop {
            select_biased! {
                recv(orders) -> order => match order {
                    Ok(Order::Turn(sink)) => {
                        self.drain(journal);
                        self.sink = sink;
                        self.torn = false;
                    }
                    Ok(Order::Reopen) => self.reopen(journal),
                    Ok(Order::Finish(done)) => {
                        self.drain(journal);
                        let _ = done.send(());
                    }
                    Err(_) => return self.drain(journal),
                },
                recv(journal.blocks) -> block => match block {
                    Ok(block) => self.take(block, journal),
                    Err(_) => return,
                },
            }
        }
    }

    /// What was handed over before now belongs to the log as it is now.
    fn drain(&mut self, journal: &JournalReceiver) {
        while let Ok(block) = journal.blocks.try_recv() {
            self.take(block, journal);
        }
    }

    fn take(&mut self, block: Block, journal: &JournalReceiver) {
        self.write(&block);
        // Full: the workers have enough of them.
        let _ = journal.empties.try_send(block.bytes);
    }

    fn write(&mut self, block: &Block) {
        let Some(file) = &mut self.sink.file else { return };
        if self.torn && file.write_all(b"\n").is_ok() {
            self.torn = false;
        }
        let (written, failed) = write_whole(file, &block.bytes);
        let lost = block.bytes[written..].iter().filter(|b| **b == b'\n').count() as u64;
        metrics::counter!(WRITTEN).increment(u64::from(block.lines).saturating_sub(lost));
        metrics::counter!(LOST).increment(lost);
        self.torn |= block.bytes[..written].last().is_some_and(|last| *last != b'\n');
        match failed {
            Some(e) if !self.failing => event!("access_log_failed", why = reason(&e)),
            None if self.failing => event!("access_log_recovered"),
            Some(_) | None => {}
        }
        self.failing = lost > 0;
    }

    fn reopen(&mut self, journal: &JournalReceiver) {
        self.drain(journal);
        let Some(path) = &self.sink.path else { return };
        match append(path) {
            Ok(file) => {
                self.sink.file = Some(file);
                self.torn = false;
                event!("access_log_reopened", path = path.display().to_string());
            }
            // The old file is still open, under whatever name it has now.
            Err(e) => event!("access_log_reopen_failed", why = reason(&e)),
        }
    }
}

/// How many bytes were written, and what stopped it, if anything did.
fn write_whole(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (written, Some(e)),
        }
    }
    (written, None)
}

/// Whole blocks are appended, so several processes may write one file. Log lines name people's
/// addresses: the file is for its owner and group.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

/// Lines that were written.
pub(crate) const WRITTEN: &str = "sluice_access_log_written_lines_total";

/// Lines that could not be written: a full disk, a reader that has gone.
pub(crate) const LOST: &str = "sluice_access_log_lost_lines_total";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::journal::{JournalSender, journal};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn send(journal: &JournalSender, lines: &str) {
        let count = u32::try_from(lines.lines().count()).unwrap();
        journal.send(Block { bytes: lines.as_bytes().to_vec(), lines: count }).unwrap();
    }

    fn file(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn lines_go_where_the_log_was_when_they_were_handed_over() {
        let (path, moved, other) = (file("log"), file("log.1"), file("log2"));
        let to = LogTarget::File(path.clone());
        let (workers, writer) = journal();
        let mut pen = Pen::start(writer, &to, Sink::open(&to).unwrap()).unwrap();
        send(&workers, "1\n2\n");
        pen.finish(PATIENCE);
        std::fs::rename(&path, &moved).unwrap();
        send(&workers, "3\n");
        pen.reopen();
        pen.finish(PATIENCE);
        send(&workers, "4\n");
        let to = LogTarget::File(other.clone());
        assert!(pen.differs(&to));
        pen.turn(&to, Sink::open(&to).unwrap());
        assert!(!pen.differs(&to));
        pen.finish(PATIENCE);
        send(&workers, "5\n");
        pen.finish(PATIENCE);
        for (path, expected) in [(&moved, "1\n2\n3\n"), (&path, "4\n"), (&other, "5\n")] {
            assert_eq!(std::fs::read_to_string(path).unwrap(), expected, "{path:?}");
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let full = LogTarget::File("/dev/full".into());
        let path = file("log3");
        let to = LogTarget::File(path.clone());
        let (workers, writer) = journal();
        let mut pen = Pen::start(writer, &full, Sink::open(&full).unwrap()).unwrap();
        send(&workers, "lost\n");
        pen.finish(PATIENCE);
        pen.turn(&to, Sink::open(&to).unwrap());
        pen.finish(PATIENCE);
        send(&workers, "kept\n");
        pen.finish(PATIENCE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept\n");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_line_that_broke_off_does_not_run_into_the_next() {
        let (mut reader, pipe) = io::pipe().unwrap();
        // Full after 64 KiB, which is inside a line.
        rustix::fs::fcntl_setfl(&pipe, rustix::fs::OFlags::NONBLOCK).unwrap();
        let sink = Sink::stream(File::from(std::os::fd::OwnedFd::from(pipe)));
        let (workers, writer) = journal();
        let pen = Pen::start(writer, &LogTarget::Stdout, sink).unwrap();
        send(&workers, &"abcdef\n".repeat(10_000));
        pen.finish(PATIENCE);
        let mut read = vec![0; 65_536];
        io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert!(read.ends_with(b"\nab"));
        send(&workers, "next\n");
        pen.finish(PATIENCE);
        // Its writer gone, the pipe ends.
        drop(pen);
        let rest = io::read_to_string(reader).unwrap();
        assert_eq!(rest, "\nnext\n");
    }

    #[test]
    fn a_reader_that_has_gone_costs_lines_and_nothing_else() {
        let (reader, pipe) = io::pipe().unwrap();
        let sink = Sink::stream(File::from(std::os::fd::OwnedFd::from(pipe)));
        let (workers, writer) = journal();
        let pen = Pen::start(writer, &LogTarget::Stdout, sink).unwrap();
        drop(reader);
        send(&workers, "lost\n");
        pen.finish(PATIENCE);
        send(&workers, "lost too\n");
        pen.finish(PATIENCE);
    }
}
