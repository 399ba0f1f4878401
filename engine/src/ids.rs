//! Request ids and trace context: taken from the request when well formed, made otherwise.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

/// One worker's source of ids. Unguessable enough for correlation, no secret: SplitMix64 from a
/// random start.
#[derive(Debug)]
pub(crate) struct Ids {
    state: Cell<u64>,
}

/// 32 hexadecimal digits.
pub(crate) type HexId = [u8; 32];

/// The line of a trace context (W3C Trace Context level 1), as it is sent on:
/// `traceparent: 00-TRACE-PARENT-FLAGS`. Written anew in place for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceLine([u8; 70]);

impl Ids {
    pub(crate) fn new() -> Self {
        // The standard library keys its hash maps from the system's random source.
        Self { state: Cell::new(RandomState::new().build_hasher().finish()) }
    }

    pub(crate) fn draw(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn id(&self) -> HexId {
        let mut id = [0; 32];
        id[..16].copy_from_slice(&hex(self.draw()));
        // All zeros is not a trace id.
        id[16..].copy_from_slice(&hex(self.draw() | 1));
        id
    }
}

impl TraceLine {
    /// Go on with the client's trace, or begin one. True: begun.
    pub(crate) fn set(&mut self, ids: &Ids, traceparent: Option<&[u8]>) -> bool {
        self.0[49..65].copy_from_slice(&hex(ids.draw() | 1));
        match traceparent.and_then(parse) {
            Some((trace_id, flags)) => {
                self.0[16..48].copy_from_slice(trace_id);
                self.0[66..68].copy_from_slice(&flags);
                false
            }
            // Sampled, as a service does that has no gateway in front: ours is no opinion.
            None => {
                self.0[16..48].copy_from_slice(&ids.id());
                self.0[66..68].copy_from_slice(b"01");
                true
            }
        }
    }

    pub(crate) const fn text(&self) -> &[u8; 70] {
        &self.0
    }

    /// What the request belongs to.
    pub(crate) fn trace_id(&self) -> &HexId {
        self.0[16..].first_chunk().unwrap_or(&[b'0'; 32])
    }

    /// This hop.
    pub(crate) fn parent_id(&self) -> &[u8] {
        &self.0[49..65]
    }
}

impl Default for TraceLine {
    fn default() -> Self {
        Self(*b"traceparent: 00-00000000000000000000000000000000-0000000000000000-00\r\n")
    }
}

/// A client's request id is kept when it is short and plain, so that it can stand in a log.
pub(crate) fn is_request_id(id: &[u8]) -> bool {
    (1..=128).contains(&id.len())
        && id.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.+/=:".contains(b))
}

fn parse(text: &[u8]) -> Option<(&HexId, [u8; 2])> {
    let lower_hex = |part: &[u8]| part.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = text.splitn(5, |b| *b == b'-');
    let (version, trace_id) = (parts.next()?, parts.next()?);
    let (parent_id, flags, rest) = (parts.next()?, parts.next()?, parts.next());
    let well_formed = version.len() == 2
        && parent_id.len() == 16
        && [version, trace_id, parent_id, flags].into_iter().all(lower_hex)
        && version != b"ff"
        // A later version may say more; this one may not.
        && (rest.is_none() || version != b"00");
    let absent = |part: &[u8]| part.iter().all(|b| *b == b'0');
    if !well_formed || absent(trace_id) || absent(parent_id) {
        return None;
    }
    Some((trace_id.try_into().ok()?, flags.try_into().ok()?))
}

fn hex(n: u64) -> [u8; 16] {
    let mut text = [0; 16];
    let (high, low) = text.split_at_mut(8);
    high.copy_from_slice(&digits(n >> 32));
    low.copy_from_slice(&digits(n & 0xffff_ffff));
    text
}

/// Eight digits at once: nibbles are spread over the bytes of a word, then moved to `0` to `9` and
/// on to `a` to `f`.
fn digits(n: u64) -> [u8; 8] {
    let n = (n | n << 16) & 0x0000_ffff_0000_ffff;
    let n = (n | n << 8) & 0x00ff_00ff_00ff_00ff;
    let n = (n | n << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = ((n + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    (n + 0x3030_3030_3030_3030 + letters * 0x27).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn digits_are_as_the_standard_library_has_them() {
        for n in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX, 0xf0f0_a5a5_9090_0a0a] {
            assert_eq!(String::from_utf8(hex(n).to_vec()).unwrap(), format!("{n:016x}"));
        }
    }

    #[test]
    fn a_well_formed_trace_goes_on_under_a_new_parent() {
        let given = format!("00-{TRACE}-b7ad6b7169203331-00");
        let mut trace = TraceLine::default();
        assert!(!trace.set(&Ids::new(), Some(given.as_bytes())));
        let (out, id) = (trace.text(), *trace.trace_id());
        assert_eq!(id, TRACE.as_bytes());
        assert!(out.starts_with(format!("traceparent: 00-{TRACE}-").as_bytes()));
        assert!(out.ends_with(b"-00\r\n"));
        assert_eq!(&out[49..65], trace.parent_id());
        assert_ne!(trace.parent_id(), b"b7ad6b7169203331");
        // Nothing of it is left in the next.
        assert!(trace.set(&Ids::new(), None));
        assert!(trace.text().ends_with(b"-01\r\n") && *trace.trace_id() != id);
    }

    #[test]
    fn anything_else_begins_a_new_trace() {
        let table = [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-b7ad6b7169203331-01-more"),
            format!("00-{TRACE}-0000000000000000-01"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01".to_owned(),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
        ];
        for given in table {
            let mut trace = TraceLine::default();
            assert!(trace.set(&Ids::new(), Some(given.as_bytes())), "{given}");
            assert_ne!(trace.trace_id(), TRACE.as_bytes(), "{given}");
        }
    }

    #[test]
    fn request_ids_that_could_forge_a_log_line_are_not_kept() {
        assert!(is_request_id(b"b2f5c9b0-1c7a-4a3f-8f0e-0a1b2c3d4e5f"));
        for bad in [&b""[..], b"a b", b"a\"b", b"a{b", &[b'a'; 129]] {
            assert!(!is_request_id(bad));
        }
    }
}
