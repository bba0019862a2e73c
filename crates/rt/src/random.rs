//! Random numbers and identifiers of a shard.
//!
//! The seed of the generator comes from the operating system in production, and from the world's
//! seed in the simulation. Not for secrets, except [`secret`]: the generator is fast, and
//! predictable from its output.

use crate::ctx;
use rand::RngCore;
use uuid::Uuid;

/// 64 random bits.
pub fn u64() -> u64 {
    ctx::with(|c| c.rng.borrow_mut().next_u64())
}

/// A uniformly distributed number in `0..n` (bias below 2^-32 for n < 2^32). `n` must not be zero.
pub fn below(n: u64) -> u64 {
    assert!(n > 0, "rt::random::below(0)");
    ((u64() as u128 * n as u128) >> 64) as u64
}

/// Fills `out` with random bytes.
pub fn fill(out: &mut [u8]) {
    ctx::with(|c| c.rng.borrow_mut().fill_bytes(out));
}

/// Fills `out` with unpredictable bytes from the operating system; in the simulation like [`fill`].
pub fn secret(out: &mut [u8]) {
    #[cfg(feature = "sim")]
    if ctx::with(|c| c.simulated.is_some()) {
        return fill(out);
    }
    rand::rngs::OsRng.fill_bytes(out);
}

/// A random UUID (version 4).
pub fn uuid_v4() -> Uuid {
    let mut bytes = [0u8; 16];
    fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// 100 ns ticks between 1582-10-15, when the time of version 1 UUIDs begins, and 1970-01-01.
const EPOCH_TICKS: u64 = 0x01B2_1DD2_1381_4000;

/// A time UUID (version 1). Strictly increasing within a shard; unique between shards by a random
/// node part.
pub fn time_uuid() -> Uuid {
    ctx::with(|c| {
        let now = (c.clock.wall_nanos() / 100) as u64 + EPOCH_TICKS;
        let ticks = now.max(c.last_time_uuid.get() + 1);
        c.last_time_uuid.set(ticks);
        version_1(ticks, &c.uuid_tail)
    })
}

/// A time UUID of the given time, in units of 100 ns since 1970. Unique by random bits; UUIDs of
/// the same time are in no order.
pub fn time_uuid_at(ticks: u64) -> Uuid {
    let mut tail = u64().to_be_bytes();
    tail[0] = tail[0] & 0x3F | 0x80; // RFC 9562's variant
    tail[2] |= 1; // the node part is no network card's address
    version_1(ticks + EPOCH_TICKS, &tail)
}

fn version_1(ticks: u64, tail: &[u8; 8]) -> Uuid {
    let high = ((ticks >> 48) as u16 & 0x0FFF) | 0x1000;
    Uuid::from_fields(ticks as u32, (ticks >> 32) as u16, high, tail)
}
