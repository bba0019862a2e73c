//! Random numbers and identifiers of a shard.
//!
//! In production the generator is seeded by the operating system, in the simulation by the world's seed. Not for secrets,
//! except [`secret`]: the generator is fast and predictable to who sees its output.

use crate::ctx;
use rand::RngCore;
use uuid::Uuid;

/// 64 random bits.
pub fn u64() -> u64 {
    ctx::with(|c| c.rng.borrow_mut().next_u64())
}

/// A number in `0..n`, evenly (bias below 2^-32 for n < 2^32). `n` must not be zero.
pub fn below(n: u64) -> u64 {
    assert!(n > 0, "rt::random::below(0)");
    ((u64() as u128 * n as u128) >> 64) as u64
}

/// Fills `out` with random bytes.
pub fn fill(out: &mut [u8]) {
    ctx::with(|c| c.rng.borrow_mut().fill_bytes(out));
}

/// Fills `out` with bytes that nobody can predict, from the operating system; in the simulation as [`fill`].
pub fn secret(out: &mut [u8]) {
    #[cfg(feature = "sim")]
    if ctx::with(|c| c.world.is_some()) {
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

/// A time UUID (version 1); strictly increasing within a shard, unique between shards by a random node part.
pub fn time_uuid() -> Uuid {
    /// 100 ns ticks between 1582-10-15 and 1970-01-01.
    const EPOCH_TICKS: u64 = 0x01B2_1DD2_1381_4000;
    ctx::with(|c| {
        let now = (c.clock.wall_nanos() / 100) as u64 + EPOCH_TICKS;
        let ticks = now.max(c.last_time_uuid.get() + 1);
        c.last_time_uuid.set(ticks);
        let low = ticks as u32;
        let middle = (ticks >> 32) as u16;
        let high = ((ticks >> 48) as u16 & 0x0FFF) | 0x1000;
        Uuid::from_fields(low, middle, high, &c.uuid_tail)
    })
}
