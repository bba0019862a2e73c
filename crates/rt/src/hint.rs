//! Hints to the processor. They affect only speed.
#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;
/// The maximum number of lines that one hint fetches.
const MAX_LINES: usize = 8;

/// Starts to load bytes into the cache: for bytes that are needed soon and may be anywhere in
/// memory. At most the first 512 bytes.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE).take(MAX_LINES) {
        // SAFETY: a prefetch reads nothing that the program could notice, whatever the address;
        // this one is valid besides.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
