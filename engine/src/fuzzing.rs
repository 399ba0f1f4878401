//! What must hold for any bytes, held against plain readers of the same grammar. The fuzzer runs
//! these with input of its own making, the tests below with fragments put together at random.

use std::net::{IpAddr, Ipv4Addr};

use sluice_config::EncodedSlashes;
use sluice_policy::facts::Body;
use sluice_policy::plan::Rewrite;

use crate::buffer::HEADROOM;
use crate::http::body::{Decoder, Encoder};
use crate::http::chunk::TRAILERS_MAX;
use crate::http::head::{Head, Version};
use crate::http::parse::{self, Framing, HeadRules, ResponseHead, Scan, Scanned};
use crate::http::write::{self, Passport, ResponseExtras};
use crate::ids::Ids;

mod split;

use split::{Split, is_token};

const RULES: HeadRules = HeadRules { fields_max: 100, slashes: EncodedSlashes::Reject };

/// With room for what we add.
const SENT: HeadRules = HeadRules { fields_max: 120, slashes: EncodedSlashes::Reject };

/// Fields that we add to a response here.
const OURS: usize = 3;

/// Any split of a request's head gives the same verdict, and its lines are split as httparse and a
/// plain reader split them; an accepted head is framed as a plain reader frames it; what is sent on
/// is accepted, and framed alike.
///
/// # Panics
/// When that does not hold.
pub fn http_request(input: &[u8]) {
    let read = step(input).and_then(|(_, text)| request(text, RULES));
    let Some((text, end)) = scanned(input) else {
        assert!(read.is_none(), "read as a head, and is none that has come");
        return;
    };
    let split = Split::request(text, end);
    assert_eq!(split, Split::request_by_httparse(&text[..end]), "as httparse splits it");
    assert_eq!(split, Split::request_plainly(&text[..end]), "as a plain reader splits it");
    let Some(head) = read else { return };
    assert_eq!(head.end, end, "where it ends");
    assert_eq!(split.map(|split| split.fields.len()), Some(head.fields.len()));
    let plain = Plain::read(&text[..end]);
    let expected = match (&plain.lengths[..], &plain.codings[..]) {
        ([], []) => Body::Empty,
        ([n], []) => {
            n.parse().map_or(Body::Empty, |n| if n == 0 { Body::Empty } else { Body::Length(n) })
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Body::Unknown,
        _ => panic!("accepted with an ambiguous length: {plain:?}"),
    };
    assert_eq!(head.body, expected, "{plain:?}");
    assert!(plain.hosts == 1 || head.version == Version::Http10 && plain.hosts == 0, "{plain:?}");
    let ids = Ids::new();
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut passport = Passport::new(peer);
    passport.stamp(&ids, &head, (peer, false));
    let mut out = Vec::new();
    write::request(&mut out, &head, &passport, &Rewrite::default(), "app:80", head.expects, None);
    let end = out.len();
    assert_eq!(Scan::default().run(&out), Scanned::Head(end), "one head is sent on");
    let sent = request(&out, SENT).expect("what is sent on is as strict");
    assert_eq!((sent.body, sent.method()), (head.body, head.method()));
    assert_eq!(sent.path(), head.path(), "the path that was judged");
}

/// Any split of a chunked body gives the same bytes; a plain reader accepts the same bodies; what
/// is sent on is the same body.
///
/// # Panics
/// When that does not hold.
pub fn http_chunked(input: &[u8]) {
    // Longer lines are refused for their length alone.
    let Some((step, bytes)) = step(input).filter(|(_, bytes)| bytes.len() <= 1000) else { return };
    let whole = decoded(bytes, bytes.len().max(1));
    assert_eq!(decoded(bytes, step), whole, "split by {step}");
    let plain = plain_chunks(bytes);
    assert_eq!(whole, plain);
    let Some((payload, _, trailers)) = whole else { return };
    let mut sent = vec![0; HEADROOM];
    sent.extend_from_slice(&payload);
    let from = Encoder::Chunked.frame(&mut sent, HEADROOM, Some(&trailers));
    let length = sent.len() - from;
    let (again, consumed, _) = decoded(&sent[from..], step).expect("what is sent on is as strict");
    assert_eq!((again, consumed), (payload, length));
}

/// Any split of a response's head gives the same verdict, and its lines are split as httparse and a
/// plain reader split them; an accepted head is framed as a plain reader frames it; what the client
/// gets is accepted, and framed once.
///
/// # Panics
/// When that does not hold.
pub fn http_response(input: &[u8]) {
    let read = step(input).and_then(|(_, text)| response(text, 0));
    let Some((text, end)) = scanned(input) else {
        assert!(read.is_none(), "read as a head, and is none that has come");
        return;
    };
    let split = Split::response(text, end);
    assert_eq!(split, Split::response_by_httparse(&text[..end]), "as httparse splits it");
    assert_eq!(split, Split::response_plainly(&text[..end]), "as a plain reader splits it");
    let Some((head, read_to)) = read else { return };
    assert_eq!(read_to, end, "where it ends");
    assert_eq!(split.map(|split| split.fields.len()), Some(head.fields.len()));
    let moved = [&[0; HEADROOM][..], text].concat();
    let (elsewhere, read_to) = response(&moved, HEADROOM).expect("the same head");
    assert_eq!(read_to, HEADROOM + end, "where it ends");
    assert_eq!((elsewhere.framing, elsewhere.kinds), (head.framing, head.kinds.clone()));
    let plain = Plain::read(&text[..end]);
    let expected = match (&plain.lengths[..], &plain.codings[..]) {
        _ if matches!(head.status, 100..=199 | 204 | 304) => Framing::None,
        ([], []) => Framing::Close,
        ([n], []) => n
            .parse()
            .map_or(Framing::Close, |n| if n == 0 { Framing::None } else { Framing::Length(n) }),
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
        _ => panic!("accepted with an ambiguous length: {plain:?}"),
    };
    assert_eq!(head.framing, expected, "{plain:?}");
    let mut out = Vec::new();
    let chunked = matches!(head.framing, Framing::Chunked | Framing::Close);
    let extras = ResponseExtras {
        chunked,
        connection: None,
        request_id: b"id",
        limits: None,
        date: b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
        edit: None,
    };
    write::response(&mut out, text, &head, &extras);
    if head.fields.len() + OURS > parse::RESPONSE_FIELDS_MAX {
        return;
    }
    let (sent, read_to) = response(&out, 0).expect("what is sent on is as strict");
    assert_eq!(read_to, out.len(), "one head is sent on");
    let framing = if chunked { Framing::Chunked } else { head.framing };
    assert_eq!((sent.status, sent.framing), (head.status, framing));
}

/// The first byte says how long the pieces are that the others come in.
fn step(input: &[u8]) -> Option<(usize, &[u8])> {
    let (first, bytes) = input.split_first()?;
    Some((usize::from(*first).max(1), bytes))
}

/// Where the head ends, the same in every split.
fn scanned(input: &[u8]) -> Option<(&[u8], usize)> {
    let (step, text) = step(input)?;
    let whole = Scan::default().run(text);
    let mut scan = Scan::default();
    let mut came = 0;
    let found = loop {
        came = text.len().min(came + step);
        match scan.run(&text[..came]) {
            Scanned::More if came < text.len() => {}
            found => break found,
        }
    };
    assert_eq!(found, whole, "split by {step}");
    match whole {
        Scanned::Head(end) => Some((text, end)),
        Scanned::More | Scanned::BareLf => None,
    }
}

fn request(text: &[u8], rules: HeadRules) -> Option<Head> {
    let mut head = Head::default();
    head.text = text.to_vec();
    parse::request(&mut head, rules).ok().map(|()| head)
}

/// And where it ends.
fn response(text: &[u8], from: usize) -> Option<(ResponseHead, usize)> {
    let mut head = ResponseHead::default();
    let end = parse::response(&mut head, text, from, false).ok()?;
    Some((head, end))
}

/// What a head's lines say of its framing, read the plain way.
#[derive(Debug, Default)]
struct Plain {
    lengths: Vec<String>,
    codings: Vec<String>,
    hosts: usize,
}

impl Plain {
    fn read(head: &[u8]) -> Self {
        let text: String = head.iter().map(|b| char::from(*b)).collect();
        let mut plain = Self::default();
        for line in text.trim_start_matches("\r\n").split("\r\n").skip(1) {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.trim_matches([' ', '\t']).to_owned();
            match &*name.to_ascii_lowercase() {
                "content-length" => plain.lengths.push(value),
                "transfer-encoding" => plain.codings.push(value),
                "host" => plain.hosts += 1,
                _ => {}
            }
        }
        plain
    }
}

/// Payload, bytes consumed, trailers. None: malformed, or not whole.
type Chunked = Option<(Vec<u8>, usize, Vec<u8>)>;

fn decoded(body: &[u8], step: usize) -> Chunked {
    let mut decoder = Decoder::new(Framing::Chunked);
    let (mut payload, mut at) = (Vec::new(), 0);
    while at < body.len() {
        let mut piece = body[at..body.len().min(at + step)].to_vec();
        let decoded = decoder.decode(&mut piece).ok()?;
        payload.extend_from_slice(&piece[..decoded.payload]);
        at += decoded.consumed;
        if decoded.done {
            return Some((payload, at, decoder.trailers().to_vec()));
        }
    }
    None
}

/// RFC 9112 section 7.1, line by line.
fn plain_chunks(body: &[u8]) -> Chunked {
    let (mut payload, mut at) = (Vec::new(), 0);
    loop {
        let line = plain_line(body, &mut at)?;
        let digits = line.split(|b| *b == b';').next().unwrap_or_default();
        let hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
        let digits = str::from_utf8(digits).ok().filter(|_| hex)?;
        let size = u64::from_str_radix(digits, 16).ok().filter(|size| *size < 1 << 60)?;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok()?;
        payload.extend_from_slice(body.get(at..at.checked_add(size)?)?);
        at += size;
        if !plain_line(body, &mut at)?.is_empty() {
            return None;
        }
    }
    let from = at;
    for _ in 0..=TRAILERS_MAX {
        let line = plain_line(body, &mut at)?;
        if line.is_empty() {
            return Some((payload, at, body[from..at - 2].to_vec()));
        }
        if !is_token(&line[..line.iter().position(|b| *b == b':')?]) {
            return None;
        }
    }
    None
}

/// Up to the next CRLF, which may be the only control characters but for tabs.
fn plain_line<'a>(body: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let rest = &body[*at..];
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    *at += end + 2;
    let control = |b: &u8| b.is_ascii_control() && *b != b'\t';
    (!rest[..end].iter().any(control)).then_some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Enough to put together almost any head or body, and to break it.
    const FRAGMENTS: [&str; 40] = [
        "GET /a HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "GET http://a/ HTTP/1.0\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 204 No Content\r\n",
        "HTTP/1.1 103 \r\n",
        "\r\n",
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "content-length:5 \r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding:\tCHUNKED\r\n",
        "Expect: 100-continue\r\n",
        "Connection: close, content-length\r\n",
        "Connection: X-A, host\r\n",
        "X-A: b\r\n",
        "X-A:\r\n",
        "Date: now\r\n",
        "5\r\nhello\r\n",
        "5;a=b\r\nhello\r\n",
        "0\r\n",
        "0\r\n\r\n",
        "a",
        "0",
        "5",
        " ",
        "\t",
        ":",
        ";",
        ",",
        "\r",
        "\n",
        "\0",
        "%2e",
        "/",
        "..",
        "?",
        "é",
        "hello",
    ];

    /// Found by the fuzzer: heads and trailers as long as they may be, and one longer.
    #[test]
    fn as_many_fields_and_trailers_as_there_may_be() {
        for count in [99, 100, 101] {
            let head = format!("\u{1}GET /a HTTP/1.0\r\n{}\r\n", "a:b\r\n".repeat(count));
            http_request(head.as_bytes());
        }
        for count in [252, 253, 254, 256, 257] {
            let head = format!("\u{1}HTTP/1.1 200 OK\r\n{}\r\n", "a:b\r\n".repeat(count));
            http_response(head.as_bytes());
        }
        for count in [TRAILERS_MAX - 1, TRAILERS_MAX, TRAILERS_MAX + 1] {
            let body = format!("\u{1}0\r\n{}\r\n", "a:b\r\n".repeat(count));
            http_chunked(body.as_bytes());
        }
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let fragment =
            prop::sample::select(&FRAGMENTS[..]).prop_map(|text| text.as_bytes().to_vec());
        let piece = prop_oneof![20 => fragment, 1 => prop::collection::vec(0_u8.., 1..3)];
        (1_u8..40, prop::collection::vec(piece, 0..12))
            .prop_map(|(step, pieces)| [vec![step], pieces.concat()].concat())
    }

    /// A head that begins well, so that most of them are accepted.
    fn after(line: &'static str) -> impl Strategy<Value = Vec<u8>> {
        bytes().prop_map(move |bytes| {
            let (step, rest) = bytes.split_at(1);
            [step, line.as_bytes(), rest, b"\r\n\r\n"].concat()
        })
    }

    /// A whole chunked body, with at most one thing put in where it does not belong.
    fn nearly_chunked() -> impl Strategy<Value = Vec<u8>> {
        const CHUNKS: [&str; 5] = [
            "5\r\nhello\r\n",
            "1;a=\"b\"\r\na\r\n",
            "0a\r\n0123456789\r\n",
            "2\r\n\r\n\r\n",
            "1\r\n0\r\n",
        ];
        const ENDS: [&str; 3] = ["0\r\n\r\n", "000;a\r\n\r\nrest", "0\r\nX-A: b\r\nX-B:\r\n\r\n"];
        let chunks = prop::collection::vec(prop::sample::select(&CHUNKS[..]), 0..4);
        let edit =
            prop::option::of((prop::sample::select(&FRAGMENTS[..]), any::<prop::sample::Index>()));
        (1_u8..20, chunks, prop::sample::select(&ENDS[..]), edit).prop_map(
            |(step, chunks, end, edit)| {
                let mut body = [chunks.concat().as_bytes(), end.as_bytes()].concat();
                if let Some((fragment, at)) = edit {
                    let at = at.index(body.len());
                    body.splice(at..at, fragment.bytes());
                }
                [vec![step], body].concat()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn any_request_is_read_as_a_plain_reader_reads_it(
            (any, begun) in (bytes(), after("POST / HTTP/1.1\r\nHost: a\r\n")),
        ) {
            http_request(&any);
            http_request(&begun);
        }

        #[test]
        fn any_chunked_body_is_read_as_a_plain_reader_reads_it(
            (any, nearly) in (bytes(), nearly_chunked()),
        ) {
            http_chunked(&any);
            http_chunked(&nearly);
        }

        #[test]
        fn any_response_is_read_as_a_plain_reader_reads_it(
            (any, begun) in (bytes(), after("HTTP/1.1 200 OK\r\n")),
        ) {
            http_response(&any);
            http_response(&begun);
        }
    }
}
