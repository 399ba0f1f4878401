//! Requests that other parsers fell for.

use super::Input;

const fn input(name: &'static str, text: &'static str) -> Input {
    Input { name, text }
}

/// Each is one write on a connection of its own.
pub const INPUTS: &[Input] = &[
    input("a plain GET", "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"),
    input(
        "Content-Length beside Transfer-Encoding",
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\n",
    ),
    input(
        "Transfer-Encoding beside Content-Length",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n\
         0\r\n\r\n",
    ),
    input(
        "two lengths that differ",
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    ),
    input("no Host", "GET /a HTTP/1.1\r\n\r\n"),
    input("two Hosts", "GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    input(
        "bare line feeds, and a request hidden behind them",
        "GET /a HTTP/1.1\nHost: a\n\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    input("a space before the colon", "GET /a HTTP/1.1\r\nHost: a\r\nX-A : b\r\n\r\n"),
    input("a folded line", "GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\n\r\n"),
    input("a length with a sign", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na"),
    input(
        "an empty chunk size",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\r\n\
         GET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    input(
        "a chunk size past 64 bits",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         10000000000000001\r\na\r\n0\r\n\r\n",
    ),
    input(
        "a chunk without its line end",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    ),
    input(
        "an unknown coding",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    input("a zero byte in a value", "GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\0c\r\n\r\n"),
    input("a name of 70,000 bytes", "GET /a HTTP/1.1\r\nHost: a\r\n{LONG}: b\r\n\r\n"),
    input("a value of 70,000 bytes", "GET /a HTTP/1.1\r\nHost: a\r\nX-A: {LONG}\r\n\r\n"),
    input("HTTP/1.2", "GET /a HTTP/1.2\r\nHost: a\r\n\r\n"),
];
