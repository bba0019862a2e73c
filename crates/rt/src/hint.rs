//! Hints to the processor. They change nothing but speed.
#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;
/// The most lines that one hint fetches.
const MAX_LINES: usize = 8;

/// Starts to bring bytes into the cache: for what is wanted soon and lies anywhere in memory. The first half KiB at most.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE).take(MAX_LINES) {
        // SAFETY: a prefetch reads nothing that the program could notice, whatever the address; this one is valid besides.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
