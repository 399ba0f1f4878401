//! Hedging: a server that is stuck now and then is not waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sluice_tests::{Config, Origin, Sluice, origin};

const REQUESTS: usize = 800;
/// Before that, nobody is stuck.
const WARM: usize = 160;
const RETRIES: &str = "retries = { on = [\"timeout\", \"reset\"], per_try = \"1s\", hedge = HEDGE }\ntimeout = \"4s\"";

/// Two servers. One request in forty is never answered; how many were, and how many of those were
/// given up by the gateway.
struct Scene {
    servers: [Origin; 2],
    stuck: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Scene {
    fn new() -> Self {
        let (asked, stuck, ended) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let server = || {
            let (asked, stuck) = (Arc::clone(&asked), Arc::clone(&stuck));
            let ended: Arc<AtomicUsize> = Arc::clone(&ended);
            Origin::new(move |connection| {
                loop {
                    connection.read_request()?;
                    let number = asked.fetch_add(1, Ordering::SeqCst);
                    if number > WARM && number % 40 == 0 {
                        stuck.fetch_add(1, Ordering::SeqCst);
                        let closed = connection.stall();
                        ended.fetch_add(1, Ordering::SeqCst);
                        return closed;
                    }
                    connection.write(origin::ok("hello"))?;
                }
            })
        };
        let servers = [server(), server()];
        Self { servers, stuck, ended }
    }

    fn gateway(&self, hedge: bool) -> Sluice {
        let servers = [self.servers[0].addr(), self.servers[1].addr()];
        Sluice::start(Config::to(&servers).route(&RETRIES.replace("HEDGE", &hedge.to_string())))
    }

    /// How many requests took longer than any that nobody was stuck at.
    fn late(&self, sluice: &Sluice, method: &str) -> usize {
        let mut client = sluice.client();
        let late = (0..REQUESTS).filter(|_| {
            let began = Instant::now();
            client.send(format!("{method} /a HTTP/1.1\r\nHost: a.example\r\n\r\n"));
            assert_eq!(client.read_response().status(), 200);
            began.elapsed() > Duration::from_millis(700)
        });
        late.count()
    }

    fn requests(&self) -> usize {
        self.servers.iter().map(|server| server.requests().len()).sum()
    }
}

#[test]
fn what_is_stuck_at_one_server_is_answered_by_another_and_ended() {
    let scene = Scene::new();
    let sluice = scene.gateway(true);
    let late = scene.late(&sluice, "GET");
    let (stuck, asked) = (scene.stuck.load(Ordering::SeqCst), scene.requests());
    assert!(stuck >= 14, "{stuck} were stuck");
    assert!(late * 3 <= stuck, "{late} of {stuck} were waited for");
    // Who is in the log has been counted.
    let lines = sluice.log_lines(REQUESTS);
    let metrics = sluice.metrics();
    let (sent, won) = (metrics["sluice_hedges_total"], metrics["sluice_hedges_won_total"]);
    // On a busy machine who is stuck may be the hedge, of a request that was only slow.
    assert!(
        won >= 1.0 && sent + late as f64 >= stuck as f64,
        "{sent} hedges, {won} won, {late} late, {stuck} stuck"
    );
    assert!(sent * 20.0 <= REQUESTS as f64, "{sent} hedges: at most one request in twenty");
    let retried = metrics["sluice_retries_total"];
    let most = REQUESTS as f64 + sent + retried;
    assert!(asked as f64 <= most, "{asked} requests, {retried} retries");
    sluice_tests::eventually("the losers to be closed", || {
        (scene.ended.load(Ordering::SeqCst) == stuck).then_some(())
    });
    let told = lines.iter().filter(|line| line["hedge"] == "won").count();
    assert!((told as f64 - won).abs() < 0.5, "{told} of {won}");
}

#[test]
fn nothing_is_hedged_where_nobody_asked_or_where_it_may_not_be() {
    for (hedge, method) in [(false, "GET"), (true, "DELETE")] {
        let scene = Scene::new();
        let sluice = scene.gateway(hedge);
        let mut client = sluice.client();
        for _ in 0..WARM + 60 {
            client.send(format!("{method} /a HTTP/1.1\r\nHost: a.example\r\n\r\n"));
            assert_eq!(client.read_response().status(), 200);
        }
        assert!(scene.stuck.load(Ordering::SeqCst) >= 1);
        assert_eq!(sluice.metrics()["sluice_hedges_total"], 0.0, "{hedge} {method}");
    }
}
