//! Looking for a byte in sixteen of them at once.

use crate::sys::wide;

/// Marks bytes of one class.
pub(super) trait Class {
    fn is(byte: u8) -> bool;

    fn marks(bytes: &[u8; 16]) -> u32;
}

/// The first byte from `at` on of a class; the text's end when there is none.
#[inline]
pub(super) fn find<C: Class>(text: &[u8], mut at: usize) -> usize {
    while let Some(bytes) = text.get(at..).and_then(<[u8]>::first_chunk) {
        let marks = C::marks(bytes);
        if marks != 0 {
            return at + marks.trailing_zeros() as usize;
        }
        at += 16;
    }
    match text.last_chunk() {
        // Those already looked at are shifted out.
        Some(bytes) => {
            let seen = (at + 16).saturating_sub(text.len()).min(16);
            let marks = C::marks(bytes) >> seen;
            if marks == 0 { text.len() } else { at + marks.trailing_zeros() as usize }
        }
        None => {
            let rest = text.get(at..).unwrap_or_default();
            at.min(text.len()) + rest.iter().position(|b| C::is(*b)).unwrap_or(rest.len())
        }
    }
}

/// ASCII letters and digits, and `others`.
pub(super) const fn alphanumeric_or(others: &[u8]) -> [bool; 256] {
    let mut may = [false; 256];
    let mut b = 0_u8;
    while b < 128 {
        may[b as usize] = b.is_ascii_alphanumeric();
        b += 1;
    }
    let mut i = 0;
    while i < others.len() {
        may[others[i] as usize] = true;
        i += 1;
    }
    may
}

/// Line feeds.
pub(super) struct LineFeed;

/// What may not stand in a field's value (RFC 9110 section 5.5), and tabs.
pub(super) struct Control;

/// What may not stand in a request's target: controls and spaces.
pub(super) struct Space;

/// What is neither a letter nor a hyphen, as nearly all names are made of.
pub(super) struct Unusual;

impl Class for LineFeed {
    fn is(byte: u8) -> bool {
        byte == b'\n'
    }

    #[inline]
    fn marks(bytes: &[u8; 16]) -> u32 {
        wide::equal(bytes, b'\n')
    }
}

impl Class for Control {
    fn is(byte: u8) -> bool {
        byte < b' ' || byte == 0x7f
    }

    #[inline]
    fn marks(bytes: &[u8; 16]) -> u32 {
        wide::below(bytes, b' ') | wide::equal(bytes, 0x7f)
    }
}

impl Class for Space {
    fn is(byte: u8) -> bool {
        byte <= b' ' || byte == 0x7f
    }

    #[inline]
    fn marks(bytes: &[u8; 16]) -> u32 {
        wide::below(bytes, b'!') | wide::equal(bytes, 0x7f)
    }
}

impl Class for Unusual {
    fn is(byte: u8) -> bool {
        !byte.is_ascii_alphabetic() && byte != b'-'
    }

    #[inline]
    fn marks(bytes: &[u8; 16]) -> u32 {
        !(wide::letters(bytes) | wide::equal(bytes, b'-')) & 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_byte_is_marked_as_what_it_is<C: Class>(name: &str) {
        for byte in 0..=u8::MAX {
            for at in 0..16 {
                for around in [b'a', 0, b'\n', b' ', 0x7f, 0xff] {
                    let mut bytes = [around; 16];
                    bytes[at] = byte;
                    let expected =
                        (0..16).fold(0, |bits, i| bits | u32::from(C::is(bytes[i])) << i);
                    assert_eq!(C::marks(&bytes), expected, "{name}: {byte:#x} at {at}");
                }
            }
        }
    }

    #[test]
    fn marks() {
        every_byte_is_marked_as_what_it_is::<LineFeed>("line feed");
        every_byte_is_marked_as_what_it_is::<Control>("control");
        every_byte_is_marked_as_what_it_is::<Space>("space");
        every_byte_is_marked_as_what_it_is::<Unusual>("unusual");
    }

    #[test]
    fn the_first_is_found_wherever_it_is() {
        for length in 0..70 {
            for from in 0..=length + 3 {
                let none = vec![b'a'; length];
                assert_eq!(find::<Control>(&none, from), length.max(from.min(length)));
                for at in 0..length {
                    let mut text = none.clone();
                    text[at] = b'\n';
                    let expected = if at >= from { at } else { length };
                    assert_eq!(find::<Control>(&text, from), expected, "{at} of {length}");
                }
            }
        }
    }
}
