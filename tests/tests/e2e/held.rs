//! Short responses that break off behind their head: clients see nothing of it where the request
//! could be sent again, and streams are not held up for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluice_tests::origin::{Connection, ok};
use sluice_tests::{Client, Config, Gate, Origin, Response, Sluice};

const HALF: &str = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
const RETRIES: &str = "retries = { on = [\"reset\", \"timeout\"], per_try = \"1s\" }";

/// Reads each request, and then does this.
fn after_each(answer: fn(&mut Connection) -> std::io::Result<()>) -> Origin {
    Origin::new(move |connection| {
        loop {
            connection.read_request()?;
            answer(connection)?;
        }
    })
}

fn half_and_end() -> Origin {
    after_each(|connection| {
        connection.write(HALF)?;
        connection.close();
        Ok(())
    })
}

fn half_and_reset() -> Origin {
    after_each(|connection| {
        connection.write(HALF)?;
        connection.reset()
    })
}

fn half_and_silence() -> Origin {
    after_each(|connection| {
        connection.write(HALF)?;
        connection.stall()
    })
}

fn head_and_end() -> Origin {
    after_each(|connection| {
        connection.write(&HALF[..HALF.len() - 4])?;
        connection.close();
        Ok(())
    })
}

fn before(servers: &[&Origin], route: &str) -> Sluice {
    let servers: Vec<_> = servers.iter().map(|server| server.addr()).collect();
    Sluice::start(Config::to(&servers).route(route))
}

fn send(client: &mut Client, method: &str) {
    client.send(format!("{method} /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi"));
}

#[track_caller]
fn says(response: &Response, status: u16, body: &str) {
    assert_eq!((response.status(), response.text().as_str()), (status, body));
}

#[track_caller]
fn is_problem(response: &Response, status: u16, code: &str) {
    assert_eq!(response.status(), status);
    assert_eq!(response.json()["code"], code, "{response:?}");
}

#[test]
fn a_short_response_that_breaks_off_is_another_servers_to_give() {
    for ill in [half_and_end(), half_and_reset(), half_and_silence(), head_and_end()] {
        let well = Origin::ok("well");
        let sluice = before(&[&ill, &well], RETRIES);
        let mut client = sluice.client();
        for method in ["GET", "PUT", "GET", "DELETE"] {
            send(&mut client, method);
            says(&client.read_response(), 200, "well");
        }
        assert_eq!(well.requests().len(), 4);
        assert!(ill.requests().len() >= 2, "one of the two goes to it first");
        assert!(well.requests().iter().all(|request| request.body == b"hi"));
    }
}

#[test]
fn it_is_counted_and_logged_as_what_it_was() {
    let (ill, well) = (half_and_end(), Origin::ok("well"));
    let sluice = before(&[&ill, &well], RETRIES);
    let mut client = sluice.client();
    for _ in 0..4 {
        says(&client.get("/a"), 200, "well");
    }
    let lines = sluice.log_lines(4);
    let cut: Vec<_> = lines.iter().filter(|line| line["cut"] == 1).collect();
    assert_eq!(cut.len(), 2, "{lines:?}");
    assert!(cut.iter().all(|line| line["attempts"] == 2 && line["finish"].is_null()), "{cut:?}");
    let metrics = sluice.metrics();
    let of = |name: &str| metrics[name];
    assert_eq!(of("sluice_upstream_cut_held_total"), 2.0);
    assert_eq!((of("sluice_upstream_cut_total"), of("sluice_retries_total")), (0.0, 2.0));
}

#[test]
fn a_server_whose_responses_break_off_is_taken_out() {
    let (ill, well) = (half_and_end(), Origin::ok("well"));
    let config = Config::to(&[ill.addr(), well.addr()])
        .upstream("eject = { breaker = { consecutive = 3, open_for = \"60s\" } }")
        .route(RETRIES);
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for _ in 0..40 {
        says(&client.get("/a"), 200, "well");
    }
    assert_eq!(ill.requests().len(), 3);
}

#[test]
fn what_may_have_had_an_effect_is_not_sent_again_for_it() {
    for method in ["POST", "PATCH"] {
        let (first, second) = (half_and_end(), half_and_end());
        let sluice = before(&[&first, &second], RETRIES);
        let mut client = sluice.client();
        send(&mut client, method);
        assert_eq!(client.read_bodyless().status(), 200, "{method}: its head says it has arrived");
        assert_eq!(client.read_until("half"), b"half");
        assert!(client.breaks_off());
        assert_eq!(first.requests().len() + second.requests().len(), 1, "{method}");
        assert_eq!(sluice.log_lines(1)[0]["finish"], "upstream_cut");
    }
}

#[test]
fn when_no_try_is_left_there_is_an_error_and_not_half_a_response() {
    let silent = "retries = { on = [\"reset\"], per_try = \"300ms\" }";
    for (origin, route, status, code, times) in [
        (half_and_end(), RETRIES, 502, "upstream.cut", 2),
        (head_and_end(), RETRIES, 502, "upstream.cut", 2),
        (half_and_silence(), silent, 504, "upstream.stalled", 1),
        (half_and_silence(), "retries = {}\ntimeout = \"300ms\"", 504, "upstream.stalled", 1),
        (half_and_end(), "retries = { on = [\"timeout\"] }", 502, "upstream.cut", 1),
    ] {
        let sluice = before(&[&origin], route);
        let mut client = sluice.client();
        for n in 1..=2 {
            is_problem(&client.get("/a"), status, code);
            assert_eq!(origin.requests().len(), n * times, "{route}");
        }
        let line = &sluice.log_lines(2)[0];
        assert_eq!((&line["cut"], &line["code"]), (&times.into(), &code.into()), "{line}");
    }
}

#[test]
fn one_that_goes_quiet_is_given_up_after_the_idle_time_of_its_server() {
    let origin = half_and_silence();
    let config = Config::to(&[origin.addr()])
        .upstream("timeout = { idle = \"200ms\" }")
        .route("retries = {}\ntimeout = \"60s\"");
    is_problem(&Sluice::start(config).client().get("/a"), 504, "upstream.stalled");
}

#[test]
fn what_is_longer_or_not_asked_for_breaks_off_for_the_client() {
    let long = || {
        after_each(|connection| {
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 16385\r\n\r\nhalf")?;
            connection.close();
            Ok(())
        })
    };
    for (ill, route) in [
        (long(), RETRIES),
        (half_and_end(), "retries = { on = [\"reset\"], hold = \"0B\" }"),
        (half_and_end(), "retries = { on = [\"reset\"], hold = \"8B\" }"),
        (half_and_end(), "retries = { on = [\"503\"] }"),
        (half_and_end(), "retries = { on = [\"reset\"], max = 0 }"),
        (half_and_end(), "retries = 3"),
    ] {
        let sluice = before(&[&ill], route);
        let mut client = sluice.client();
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.read_bodyless().status(), 200, "{route}");
        assert!(client.breaks_off(), "{route}");
        assert_eq!(ill.requests().len(), 1, "{route}");
        sluice.wait_for_metric("sluice_upstream_cut_total", 1.0);
    }
}

#[test]
fn a_response_in_pieces_comes_whole_and_its_connection_is_used_again() {
    let body: String = ('a'..='z').cycle().take(16 << 10).collect();
    let filler = "x".repeat(9_000);
    let whole = format!(
        "HTTP/1.1 200 OK\r\nX-Filler: {filler}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for size in [1_000, 9_100, 20_000] {
        let whole = whole.clone();
        let origin = Origin::new(move |connection| {
            loop {
                connection.read_request()?;
                connection.write_in_pieces(whole.as_bytes(), size)?;
            }
        });
        let sluice = before(&[&origin], RETRIES);
        let mut client = sluice.client();
        for _ in 0..8 {
            let response = client.get("/a");
            assert!(response.text() == body, "in pieces of {size}");
            assert_eq!(response.field("x-filler"), Some(&*filler));
        }
        assert_eq!(origin.connections(), 1, "in pieces of {size}");
    }
}

#[test]
fn streams_and_what_is_long_are_passed_on_at_once() {
    for (head, piece) in [
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n", "5\r\nhello\r\n"),
        ("Connection: close\r\n", "hello"),
        ("Content-Length: 16385\r\n", "hello"),
    ] {
        let seen = Gate::new();
        let gate = seen.clone();
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            connection.write(format!("HTTP/1.1 200 OK\r\n{head}\r\n{piece}"))?;
            connection.wait_at(&gate)
        });
        let sluice = before(&[&origin], RETRIES);
        let mut client = sluice.client();
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.read_bodyless().status(), 200);
        assert_eq!(client.read_until("hello"), b"hello", "{head}");
        seen.open();
    }
}

#[test]
fn who_waits_for_an_early_answer_before_sending_on_is_not_held_up() {
    let origin = Origin::new(|connection| {
        connection.read_head()?;
        connection.write(HALF)?;
        connection.read_body()?;
        connection.write("whole")
    });
    let sluice = before(&[&origin], RETRIES);
    let mut client = sluice.client();
    client.send("PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 40000\r\n\r\nhi");
    assert_eq!(client.read_bodyless().status(), 200);
    assert_eq!(client.read_until("half"), b"half");
    client.send("x".repeat(39_998));
    assert_eq!(client.read_until_end(), b"whole");
}

#[test]
fn what_has_no_body_is_passed_on_at_its_head() {
    let origin = Origin::answering(|request| {
        let status = if request.head.line.starts_with("HEAD") { "200 OK" } else { "304 Not" };
        format!("HTTP/1.1 {status}\r\nContent-Length: 9\r\n\r\n").into_bytes()
    });
    let sluice = before(&[&origin], RETRIES);
    let mut client = sluice.client();
    for (method, status) in [("HEAD", 200), ("GET", 304), ("HEAD", 200)] {
        client.send(format!("{method} /a HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!(client.read_head().line.split(' ').nth(1), Some(&*status.to_string()));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_copy_or_what_the_operator_wrote_stands_in_for_it() {
    let asked = AtomicUsize::new(0);
    let origin = Origin::new(move |connection| {
        loop {
            connection.read_request()?;
            if asked.fetch_add(1, Ordering::SeqCst) > 0 {
                return connection.write(HALF);
            }
            connection.write(ok("well"))?;
        }
    });
    let stale = "cache = { ttl = \"1ms\", stale = \"1h\" }";
    let sluice = before(&[&origin], &format!("{RETRIES}\n{stale}"));
    says(&sluice.client().get("/a"), 200, "well");
    let copy = sluice.client().ask("/a", "Cache-Control: no-cache\r\n");
    says(&copy, 200, "well");
    assert!(copy.field("x-degraded").is_some_and(|why| why.starts_with("stale")), "{copy:?}");
    for (ill, cause) in [(half_and_end(), "connect"), (half_and_silence(), "timeout")] {
        let fallback = format!("{RETRIES}\nfallback = {{ on = [\"{cause}\"], body = \"sorry\" }}");
        let sluice = before(&[&ill], &fallback);
        says(&sluice.client().get("/a"), 503, "sorry");
    }
}

/// Two servers that answer well and at once until told otherwise. From then on, who reads the request
/// first does as `first`, and the other as `second`. On a busy machine the hedge may be read first.
struct Race {
    servers: [Origin; 2],
    sluice: Sluice,
    turns: Arc<AtomicUsize>,
}

type Act = fn(&mut Connection, &[Gate; 2]) -> std::io::Result<()>;

impl Race {
    const WELL: usize = usize::MAX;

    fn new(first: Act, second: Act) -> Self {
        let turns = Arc::new(AtomicUsize::new(Self::WELL));
        let gates = [Gate::new(), Gate::new()];
        let server = || {
            let (turns, gates) = (Arc::clone(&turns), gates.clone());
            Origin::new(move |connection| {
                loop {
                    connection.read_request()?;
                    match turns.load(Ordering::SeqCst) {
                        Self::WELL => connection.write(ok("well"))?,
                        _ if turns.fetch_add(1, Ordering::SeqCst) == 0 => {
                            first(connection, &gates)?
                        }
                        _ => second(connection, &gates)?,
                    }
                }
            })
        };
        let servers = [server(), server()];
        let hedged = "retries = { on = [\"reset\"], hedge = true }";
        let sluice = before(&[&servers[0], &servers[1]], hedged);
        Self { servers, sluice, turns }
    }

    /// What is logged of the request that was hedged.
    fn run(self) -> serde_json::Value {
        let mut client = self.sluice.client();
        for _ in 0..128 {
            says(&client.get("/a"), 200, "well");
        }
        // Some of those may have been hedged already: one request in twenty may be.
        for _ in 0..300 {
            send(&mut client, "POST");
            says(&client.read_response(), 200, "well");
        }
        self.turns.store(0, Ordering::SeqCst);
        says(&client.get("/a"), 200, "half and the rest");
        drop(self.servers);
        self.sluice.log_lines(429).pop().expect("a line")
    }
}

const BEGUN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\nhalf";

/// Breaks off, and tells when the gateway has noticed.
fn break_off(connection: &mut Connection, noticed: &Gate) -> std::io::Result<()> {
    connection.half_close()?;
    connection.stall()?;
    noticed.open();
    Ok(())
}

#[test]
fn the_other_of_two_goes_on_when_one_breaks_off() {
    let second_breaks_off = Race::new(
        |connection, gates| {
            connection.write(BEGUN)?;
            connection.wait_at(&gates[0])?;
            connection.write(" and the rest")
        },
        |connection, gates| {
            connection.write(BEGUN)?;
            break_off(connection, &gates[0])
        },
    );
    let first_breaks_off = Race::new(
        |connection, gates| {
            connection.write(BEGUN)?;
            connection.wait_at(&gates[0])?;
            break_off(connection, &gates[1])
        },
        |connection, gates| {
            connection.write(BEGUN)?;
            gates[0].open();
            connection.wait_at(&gates[1])?;
            connection.write(" and the rest")
        },
    );
    for race in [second_breaks_off, first_breaks_off] {
        let line = race.run();
        assert!(line["hedge"].is_string(), "{line}");
        assert_eq!((&line["attempts"], &line["cut"]), (&2.into(), &1.into()), "{line}");
    }
}

#[test]
fn of_two_that_have_begun_the_first_that_is_whole_wins() {
    let race = Race::new(
        |connection, _| {
            connection.write(BEGUN)?;
            connection.stall()
        },
        |connection, _| {
            connection.write(BEGUN)?;
            connection.write(" and the rest")
        },
    );
    let line = race.run();
    assert!(line["hedge"].is_string(), "{line}");
    assert_eq!((&line["attempts"], &line["cut"]), (&2.into(), &().into()), "{line}");
}
