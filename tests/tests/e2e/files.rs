//! In front of a real nginx: many real files, correct to the byte.

use std::fs;
use std::thread;

use sluice_tests::{Config, Nginx, Sluice};

/// As many as a page-heavy site has, most of them small, a few larger than any buffer.
const FILES: usize = 1_000;

#[test]
fn a_thousand_files_arrive_correct_to_the_byte() {
    let Some(nginx) = Nginx::start() else { return };
    let contents: Vec<Vec<u8>> = (0..FILES).map(content).collect();
    for (number, content) in contents.iter().enumerate() {
        fs::write(nginx.root().join(format!("{number}.bin")), content).unwrap();
    }
    let sluice = Sluice::start(Config::to(&[nginx.addr()]).workers(2));
    thread::scope(|scope| {
        for first in 0..4 {
            let (sluice, contents) = (&sluice, &contents);
            scope.spawn(move || {
                let mut client = sluice.client();
                for number in (first..FILES).step_by(4) {
                    let response = client.get(&format!("/{number}.bin"));
                    assert_eq!(response.status(), 200, "{number}");
                    assert!(response.body == contents[number], "{number} differs");
                }
            });
        }
    });
}

#[test]
fn ranges_and_conditions_work_through_the_gateway() {
    let Some(nginx) = Nginx::start() else { return };
    fs::write(nginx.root().join("a.txt"), "0123456789").unwrap();
    let sluice = Sluice::start(Config::to(&[nginx.addr()]));
    let mut client = sluice.client();
    let whole = client.get("/a.txt");
    assert_eq!(whole.text(), "0123456789");
    let part = client.ask("/a.txt", "Range: bytes=2-4\r\n");
    assert_eq!((part.status(), part.text().as_str()), (206, "234"));
    let tag = whole.field("etag").expect("nginx sends a tag");
    assert_eq!(client.ask("/a.txt", &format!("If-None-Match: {tag}\r\n")).status(), 304);
    assert_eq!(client.get("/missing").status(), 404);
}

fn content(number: usize) -> Vec<u8> {
    let length = match number % 100 {
        0 => 300_000 + number,
        1..=10 => 20_000 + number,
        _ => number * 7 % 4_000,
    };
    (0..length).map(|at| (at * 31 + number * 17 + at / 251).to_le_bytes()[0]).collect()
}
