//! `sluice proxy` in front of a real nginx and a real load: gigabytes both ways in bounded memory,
//! events one by one, many small files.

use std::fs::{self, File};
use std::thread;

use sluice_tests::{Gate, Nginx, Origin, Sluice, origin};

const GIB: u64 = 1 << 30;

/// What the whole gateway may take, a debug build's code included.
const MEMORY_MAX: u64 = 64 << 20;

#[test]
fn a_gibibyte_comes_down_in_bounded_memory() {
    let Some(nginx) = Nginx::start() else { return };
    // Sparse: nothing is written, everything is sent.
    File::create(nginx.root().join("large.bin")).and_then(|file| file.set_len(GIB)).unwrap();
    let sluice = Sluice::proxy(nginx.addr());
    let mut client = sluice.client();
    client.send("GET /large.bin HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let head = client.read_bodyless();
    assert_eq!((head.status(), head.field("content-length")), (200, Some("1073741824")));
    assert_eq!(client.count_body(), GIB);
    assert_eq!(client.get("/missing").status(), 404, "the connection goes on");
    assert!(sluice.peak_memory() < MEMORY_MAX, "{} bytes", sluice.peak_memory());
}

#[test]
fn a_gibibyte_goes_up_in_bounded_memory() {
    let origin = Origin::new(|connection| {
        loop {
            connection.read_head()?;
            let count = connection.count_body()?;
            connection.write(origin::ok(&count.to_string()))?;
        }
    });
    let sluice = Sluice::proxy(origin.addr());
    let mut client = sluice.client();
    client.send(format!("PUT /large HTTP/1.1\r\nHost: a.example\r\nContent-Length: {GIB}\r\n\r\n"));
    let piece = vec![b'a'; 1 << 20];
    for _ in 0..GIB / (1 << 20) {
        client.send(&piece);
    }
    assert_eq!(client.read_response().text(), GIB.to_string());
    assert!(sluice.peak_memory() < MEMORY_MAX, "{} bytes", sluice.peak_memory());
}

#[test]
fn an_upload_is_stored_by_nginx_to_the_byte() {
    let Some(nginx) = Nginx::start() else { return };
    let sluice = Sluice::proxy(nginx.addr());
    let body: Vec<u8> =
        (0..3_000_017_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let mut client = sluice.client();
    let chunked: Vec<u8> = body
        .chunks(70_001)
        .flat_map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat())
        .chain(*b"0\r\n\r\n")
        .collect();
    let head = |name: &str, length: &str| {
        format!("PUT /stored/{name} HTTP/1.1\r\nHost: a.example\r\n{length}\r\n\r\n")
    };
    for (name, length, sent) in [
        ("sized.bin", format!("Content-Length: {}", body.len()), &body),
        ("chunked.bin", "Transfer-Encoding: chunked".into(), &chunked),
    ] {
        client.send(head(name, &length));
        client.send(sent);
        assert_eq!(client.read_response().status(), 201, "{name}");
        let stored = fs::read(nginx.root().join("stored").join(name)).unwrap();
        assert!(stored == body, "{name}: {} bytes differ from {}", stored.len(), body.len());
    }
}

#[test]
fn events_arrive_one_by_one_through_nginx_and_gateway() {
    let gates: [Gate; 3] = Default::default();
    let held = gates.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.write(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
        )?;
        for gate in &held {
            connection.wait_at(gate)?;
            connection.write("7\r\nid: 1\n\n\r\n")?;
        }
        connection.write("0\r\n\r\n")
    });
    let Some(nginx) = Nginx::before(origin.addr()) else { return };
    let sluice = Sluice::proxy(nginx.addr());
    let mut client = sluice.client();
    client.send("GET /events HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.read_bodyless().field("content-type"), Some("text/event-stream"));
    for gate in &gates {
        gate.open();
        assert_eq!(client.read_until("\n\n"), b"id: 1\n\n");
    }
    assert!(client.read_until_end().is_empty());
}

#[test]
fn a_page_with_all_its_files_is_correct_to_the_byte() {
    const FILES: usize = 1_000;
    let Some(nginx) = Nginx::start() else { return };
    let kinds = [("wp-content", "js"), ("wp-includes", "css"), ("uploads/2024", "png")];
    let name = |number: usize| {
        let (folder, kind) = kinds[number % kinds.len()];
        format!("{folder}/file-{number}.{kind}")
    };
    for (folder, _) in kinds {
        fs::create_dir_all(nginx.root().join(folder)).unwrap();
    }
    for number in 0..FILES {
        fs::write(nginx.root().join(name(number)), content(number)).unwrap();
    }
    let sluice = Sluice::proxy(nginx.addr());
    // Six connections a page, as browsers have them, each kept to the end.
    thread::scope(|scope| {
        for browser in 0..6 {
            let sluice = &sluice;
            scope.spawn(move || {
                let mut client = sluice.client();
                for number in (browser..FILES).step_by(6) {
                    let response = client.ask(&format!("/{}?ver={number}", name(number)), "");
                    let expected = content(number);
                    assert_eq!(response.status(), 200, "{number}");
                    assert_eq!(checksum(&response.body), checksum(&expected), "{number}");
                    assert_eq!(response.body.len(), expected.len(), "{number}");
                }
            });
        }
    });
    let metrics = sluice.metrics();
    let total = metrics.iter().find(|(name, _)| name.starts_with("sluice_connections_total"));
    assert!(total.is_some_and(|(_, count)| *count <= 7.0), "kept: {total:?}");
}

/// FNV-1a, 64 bits: for bytes that nobody forges.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn content(number: usize) -> Vec<u8> {
    let length = if number.is_multiple_of(50) { 120_000 } else { number * 13 % 9_000 };
    (0..length).map(|at| (at * 29 + number * 23 + at / 241).to_le_bytes()[0]).collect()
}
