//! What neither std nor rustix offers.

/// Give memory that nobody uses back to the system. The C library keeps what was freed in the
/// midst of its heap, for good, unless it is told to look.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
