//! Many at once: a busy worker looks for what will be there before it asks its driver for it.

use std::thread;

use sluice_tests::origin::ok;
use sluice_tests::{Client, Config, Origin, Sluice};

const THREADS: usize = 4;
/// Of each thread.
const CLIENTS: usize = 12;
const ROUNDS: usize = 40;

fn ask(client: &mut Client, body: &str) {
    let length = body.len();
    client.send(format!(
        "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
}

/// Ask on all connections before any answer is read, again and again.
fn ask_all(sluice: &Sluice, thread: usize) {
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| sluice.client()).collect();
    for round in 0..ROUNDS {
        let body = |client: usize| format!("{thread}/{client}/{round} ").repeat(1 + client * 40);
        for (i, client) in clients.iter_mut().enumerate() {
            ask(client, &body(i));
        }
        // One leaves, and another comes in its place, perhaps with the same descriptor.
        let leaves = round % CLIENTS;
        clients[leaves] = sluice.client();
        ask(&mut clients[leaves], &body(leaves));
        for (i, client) in clients.iter_mut().enumerate() {
            let response = client.read_response();
            assert_eq!((response.status(), response.text()), (200, body(i)), "round {round}");
        }
    }
}

#[test]
fn many_who_ask_at_once_have_their_own_answers_while_others_leave() {
    let origin = Origin::answering(|request| ok(&String::from_utf8_lossy(&request.body)));
    let config = Config::to(&[origin.addr()]).upstream("connections = 512");
    let sluice = Sluice::start(config);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let sluice = &sluice;
            scope.spawn(move || ask_all(sluice, thread));
        }
    });
    sluice.wait_for_metric("sluice_connections_open", 0.0);
    assert_eq!(sluice.client().get("/a").status(), 200);
}
