//! What neither std nor rustix offers without `unsafe`.

/// Give memory that nobody uses back to the system. The C library keeps what was freed in the
/// midst of its heap, for good, unless it is told to look.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sixteen bytes looked at at once: one bit each, the first byte's the lowest. By SSE2, which every
/// x86-64 processor has.
#[cfg(target_arch = "x86_64")]
pub(crate) mod wide {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_max_epu8, _mm_min_epu8, _mm_movemask_epi8,
        _mm_or_si128, _mm_set1_epi8, _mm_sub_epi8,
    };

    #[inline]
    pub(crate) fn equal(bytes: &[u8; 16], byte: u8) -> u32 {
        // SAFETY: it needs SSE2 and nothing else.
        unsafe { bits(_mm_cmpeq_epi8(load(bytes), each(byte))) }
    }

    /// `bound`: 1 at the least.
    #[inline]
    pub(crate) fn below(bytes: &[u8; 16], bound: u8) -> u32 {
        // SAFETY: it needs SSE2 and nothing else.
        unsafe {
            let bytes = load(bytes);
            bits(_mm_cmpeq_epi8(_mm_min_epu8(bytes, each(bound - 1)), bytes))
        }
    }

    #[inline]
    pub(crate) fn letters(bytes: &[u8; 16]) -> u32 {
        // SAFETY: it needs SSE2 and nothing else.
        unsafe {
            let lower = _mm_or_si128(load(bytes), each(0x20));
            let place = _mm_sub_epi8(lower, each(b'a'));
            bits(_mm_cmpeq_epi8(_mm_max_epu8(place, each(25)), each(25)))
        }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: these are sixteen bytes, and they need not be aligned.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn each(byte: u8) -> __m128i {
        _mm_set1_epi8(byte.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn bits(bytes: __m128i) -> u32 {
        _mm_movemask_epi8(bytes).cast_unsigned()
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use plain as wide;

/// The same on any processor.
#[cfg(any(test, not(target_arch = "x86_64")))]
pub(crate) mod plain {
    pub(crate) fn equal(bytes: &[u8; 16], byte: u8) -> u32 {
        bits(bytes, |b| b == byte)
    }

    pub(crate) fn below(bytes: &[u8; 16], bound: u8) -> u32 {
        bits(bytes, |b| b < bound)
    }

    pub(crate) fn letters(bytes: &[u8; 16]) -> u32 {
        bits(bytes, |b| b.is_ascii_alphabetic())
    }

    fn bits(bytes: &[u8; 16], is: impl Fn(u8) -> bool) -> u32 {
        bytes.iter().rev().fold(0, |bits, b| bits << 1 | u32::from(is(*b)))
    }
}

#[cfg(test)]
mod tests {
    use super::{plain, wide};

    #[test]
    fn every_processor_marks_the_same_bytes() {
        for byte in 0..=u8::MAX {
            let bytes: [u8; 16] =
                std::array::from_fn(|i| byte.wrapping_mul(u8::try_from(i).unwrap_or_default() | 1));
            assert_eq!(wide::letters(&bytes), plain::letters(&bytes), "{bytes:?}");
            for other in 0..=u8::MAX {
                assert_eq!(wide::equal(&bytes, other), plain::equal(&bytes, other), "{bytes:?}");
                let bound = other.max(1);
                assert_eq!(wide::below(&bytes, bound), plain::below(&bytes, bound), "{bytes:?}");
            }
        }
    }
}
