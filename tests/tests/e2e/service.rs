//! What a service manager hears, by the protocol of sd_notify(3).

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use sluice_tests::wait::LIMIT;
use sluice_tests::{Config, Gate, Origin, Signal, Sluice, origin};
use tempfile::TempDir;

/// A manager's end of the notification socket.
struct Manager {
    socket: UnixDatagram,
    dir: TempDir,
}

#[test]
fn a_service_manager_hears_of_start_reload_and_stop() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.wait_at(&held)?;
        connection.write(origin::ok("hello"))
    });
    let config = Config::to(&[origin.addr()]);
    let manager = Manager::new();
    let mut sluice = manager.start(&config);
    assert_eq!(manager.hear(), ["READY=1"]);

    let before = monotonic_us();
    assert_eq!(sluice.reload(&config).code, Some(0));
    manager.hears_a_reload(before);
    assert_eq!(sluice.reload("broken = ").code, Some(78));
    manager.hears_a_reload(before);
    sluice.rewrite(&config);
    sluice.signal(Signal::HUP);
    manager.hears_a_reload(before);

    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    origin.wait_for_heads(1);
    sluice.signal(Signal::TERM);
    assert_eq!(manager.hear(), ["STOPPING=1"], "said when draining begins, not when it ends");
    gate.open();
    assert_eq!(client.read_response().status(), 200);
    drop(client);
    assert_eq!(sluice.wait(), Some(0));
    manager.hears_no_more();
}

#[test]
fn a_gateway_that_cannot_start_never_says_that_it_is_ready() {
    let manager = Manager::new();
    let file = manager.dir.path().join("sluice.toml");
    std::fs::write(&file, "version = 1\n[route.a]\nmatch = \"/\"\nto = \"nowhere\"\n").unwrap();
    let args = ["run", "-c", &file.to_string_lossy()];
    let path = manager.path();
    let ended = Sluice::command_arranged(&args, |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    assert_eq!(ended.code, Some(78));
    manager.hears_no_more();
}

#[test]
fn a_service_manager_that_has_gone_stops_nothing() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]);
    let sluice = Sluice::start_arranged(&config, |command| {
        command.env("NOTIFY_SOCKET", "/nowhere/notify.sock");
    });
    assert_eq!(sluice.client().get("/a").text(), "hello");
    assert_eq!(sluice.reload(&config).code, Some(0));
    sluice.wait_for_stderr("notify_failed");
}

impl Manager {
    fn new() -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let socket = UnixDatagram::bind(dir.path().join("notify.sock")).expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a time limit");
        Self { socket, dir }
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new(self.dir.path()).join("notify.sock")
    }

    fn start(&self, config: &Config) -> Sluice {
        Sluice::start_arranged(config, |command| {
            command.env("NOTIFY_SOCKET", self.path());
        })
    }

    /// The lines of the next message.
    #[track_caller]
    fn hear(&self) -> Vec<String> {
        let mut space = [0; 1024];
        let count = self.socket.recv(&mut space).expect("a message");
        let text = String::from_utf8_lossy(&space[..count]).into_owned();
        text.lines().map(str::to_owned).collect()
    }

    /// Well or not, a reload begins with when it began, and ends with being ready.
    #[track_caller]
    fn hears_a_reload(&self, before: u64) {
        let begun = self.hear();
        let [reloading, at] = &begun[..] else { panic!("{begun:?}") };
        assert_eq!(reloading, "RELOADING=1");
        let at = at.strip_prefix("MONOTONIC_USEC=").and_then(|us| us.parse().ok());
        let at: u64 = at.unwrap_or_else(|| panic!("{begun:?}"));
        assert!((before..=monotonic_us()).contains(&at), "{before} {at}");
        assert_eq!(self.hear(), ["READY=1"]);
    }

    #[track_caller]
    fn hears_no_more(&self) {
        self.socket.set_nonblocking(true).expect("an open socket");
        let more = self.socket.recv(&mut [0; 1024]);
        assert!(more.is_err(), "another message");
    }
}

fn monotonic_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1_000).expect("after the machine's start")
}
