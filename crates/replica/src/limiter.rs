//! Counts the operations of partitions, and decides which of them exceed a rate limit. Pure: no
//! clock, no I/O.
//!
//! A limiter has a fixed number of slots, for any number of tables and partitions. A slot counts
//! one kind of operation of one partition. Counts are halved at each full second, so the count of a
//! partition with `V` operations per second is between `V` and `2V`.
//!
//! A key hashes to a tag and to two cache lines of four slots each. If all eight slots are taken,
//! the slot with the smallest count is evicted. So partitions with many operations keep their
//! slots, however many other keys appear. A new key always starts with its own weight: it never
//! inherits a count, so a partition below its limit is never refused because of others.
//!
//! Halving is lazy. It happens when a slot is touched, and a sweep visits one more slot each second
//! so that the age of no slot becomes ambiguous.
//!
//! Slots of bytes hold debts instead of counts ([`debt`]).

pub mod debt;

use model::token::Token;
use std::f64::consts::LN_2;

/// Bytes of a limiter, unless set.
pub const DEFAULT_BYTES: usize = 1 << 20;

/// Slots of a cache line.
const SLOTS_PER_LINE: usize = 4;

/// The most lines. The sweep then visits each slot long before its window number is ambiguous.
const MAX_LINES: usize = 1 << 20;

/// Bits of a window number in a slot.
const WINDOW_BITS: u32 = 24;
const WINDOW_MASK: u64 = (1 << WINDOW_BITS) - 1;

/// The highest count. Twice the highest limit, a 32-bit number, is far below it.
pub const MAX_COUNT: u64 = (1 << (64 - WINDOW_BITS)) - 1;
/// The number of windows in which all slots are swept once: about 18 hours. A debt that was not
/// changed for this long is dropped.
const SWEEP: u64 = 1 << 16;

/// The kind of an operation. Each kind of a partition is counted on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum LimitKind {
    /// A page of a partition is read.
    Read = 0,
    /// A partition is written.
    Write = 1,
    /// Bytes of a partition are read.
    ReadBytes = 2,
    /// Bytes of a partition are written.
    WriteBytes = 3,
}

impl LimitKind {
    /// Decodes the number of the wire form.
    pub fn from_code(code: u8) -> Option<LimitKind> {
        [LimitKind::Read, LimitKind::Write, LimitKind::ReadBytes, LimitKind::WriteBytes].get(usize::from(code)).copied()
    }

    /// Whether the limit is one of writes, else of reads.
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, LimitKind::Write | LimitKind::WriteBytes)
    }

    /// Whether the limit is one of bytes, else of operations.
    #[inline]
    pub fn is_bytes(self) -> bool {
        matches!(self, LimitKind::ReadBytes | LimitKind::WriteBytes)
    }

    /// The name, for log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LimitKind::Read => "reads",
            LimitKind::Write => "writes",
            LimitKind::ReadBytes => "KiB read",
            LimitKind::WriteBytes => "KiB written",
        }
    }

    /// The kind of the bytes of these operations.
    pub(crate) fn bytes(self) -> LimitKind {
        if self.is_write() { LimitKind::WriteBytes } else { LimitKind::ReadBytes }
    }
}

/// The unit of counting: one kind of operation of the partitions with one token of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct LimitKey {
    /// The partition's token.
    pub token: i64,
    /// The table's id.
    pub table: u128,
    /// The kind of operation.
    pub kind: LimitKind,
}

impl LimitKey {
    /// The key under which a replica counts what other coordinators send it. No table has the
    /// complement of another one's id.
    #[inline]
    pub fn elsewhere(self) -> LimitKey {
        LimitKey { table: !self.table, ..self }
    }
}

/// Whether an operation is accepted. `count`: the partition's operations, including this one.
/// `draw`: uniformly distributed.
///
/// The probability beyond twice the limit is `limit / (count ln 2)`. At a steady rate of at least
/// twice the limit, exactly the limit is accepted, because counts are halved each second.
#[inline]
pub fn decide(count: u64, limit: u32, draw: u32) -> bool {
    count <= 2 * u64::from(limit) || {
        const DRAWS: f64 = (1u64 << 32) as f64;
        f64::from(draw) * count as f64 * LN_2 < f64::from(limit) * DRAWS
    }
}

/// Counters of a limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimiterCounters {
    /// Slots taken by a new key.
    pub allocations: u64,
    /// Operations whose key had a slot.
    pub successful_lookups: u64,
    /// Slots whose count was lost, because a new key needed one.
    pub failed_allocations: u64,
    /// Cache lines looked at.
    pub probe_count: u64,
}

/// A slot: the tag of its key; the count in the upper 40 bits and the window in the lower 24 bits.
/// A count of 0 means that the slot is free. The lowest bit of the tag is set if the count is a
/// debt; then the lower bits are a tick ([`debt`]).
#[derive(Clone, Copy, Default)]
struct Slot {
    tag: u64,
    state: u64,
}

impl Slot {
    fn count(self) -> u64 {
        self.state >> WINDOW_BITS
    }

    /// Windows since the slot was touched. Right over wraps of the window number.
    fn age(self, window: u64) -> u64 {
        window.wrapping_sub(self.state) & WINDOW_MASK
    }

    /// The count, halved for each window since the slot was touched.
    fn count_at(self, window: u64) -> u64 {
        self.count().checked_shr(self.age(window).min(64) as u32).unwrap_or(0)
    }

    fn set(&mut self, count: u64, window: u64) {
        self.state = count.min(MAX_COUNT) << WINDOW_BITS | window & WINDOW_MASK;
    }
}

/// Four slots in one cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line([Slot; SLOTS_PER_LINE]);

/// Counts operations by partition.
pub struct Limiter {
    lines: Box<[Line]>,
    salt: [u64; 4],
    /// The last window that the caller named.
    seen: u64,
    /// The windows passed. Differs from `seen` once the caller's number has jumped back.
    window: u64,
    /// The next slot to sweep.
    hand: usize,
    /// Slots with a count, as far as known.
    occupied: usize,
    counters: LimiterCounters,
}

impl Limiter {
    /// A limiter with about `bytes` bytes of slots. `salt` must be random and secret: otherwise
    /// clients could choose keys that share lines.
    pub fn new(bytes: usize, salt: [u64; 4]) -> Limiter {
        let lines = (bytes / size_of::<Line>()).clamp(1, MAX_LINES);
        let lines = 1 << lines.ilog2();
        Limiter {
            lines: vec![Line::default(); lines].into_boxed_slice(),
            salt,
            seen: 0,
            window: 0,
            hand: 0,
            occupied: 0,
            counters: LimiterCounters::default(),
        }
    }

    /// Counts operations, and returns the count of their key, including them. `window`: the number
    /// of the current second.
    ///
    /// If `window` is below the window of the last call, a clock has jumped back: no window has
    /// passed. Later windows are counted from the new number. Counts are never kept for longer
    /// because of it.
    pub fn add(&mut self, key: LimitKey, weight: u64, window: u64) -> u64 {
        let (tag, lines) = self.at(key, window);
        let now = self.window;
        let Some(slot) = self.find(lines, |slot| slot.tag == tag && slot.count_at(now) > 0) else {
            return self.take(tag, lines, weight, now);
        };
        let count = (slot.count_at(now) + weight).min(MAX_COUNT);
        slot.set(count, now);
        self.counters.successful_lookups += 1;
        count
    }

    /// The tag of a key, and its lines, in a window of the caller.
    fn at(&mut self, key: LimitKey, window: u64) -> (u64, [usize; 2]) {
        if window != self.seen {
            self.pass(window);
        }
        self.place(key)
    }

    /// The first slot of two lines that `is_wanted`.
    #[inline]
    fn find(&mut self, lines: [usize; 2], is_wanted: impl Fn(&Slot) -> bool) -> Option<&mut Slot> {
        for line in lines {
            self.counters.probe_count += 1;
            if let Some(at) = self.lines[line].0.iter().position(&is_wanted) {
                return Some(&mut self.lines[line].0[at]);
            }
        }
        None
    }

    /// The count of a key in a window; counts nothing.
    pub fn count(&self, key: LimitKey, window: u64) -> u64 {
        let now = self.window.wrapping_add(window.saturating_sub(self.seen));
        let (tag, lines) = self.place(key);
        let of_key = lines.iter().flat_map(|line| &self.lines[*line].0).filter(|slot| slot.tag == tag);
        of_key.map(|slot| slot.count_at(now)).find(|count| *count > 0).unwrap_or(0)
    }

    /// Gives a slot to a key that has none: a free one, or else the one with the smallest count, of
    /// these the oldest. `time`: the window, or the tick.
    fn take(&mut self, tag: u64, lines: [usize; 2], weight: u64, time: u64) -> u64 {
        let now = self.window;
        let (mut best, mut rank) = ((lines[0], 0), (u64::MAX, 0));
        for line in lines {
            for (at, slot) in self.lines[line].0.iter().enumerate() {
                let of_slot = (slot.rank(now), u64::MAX - slot.idle(now));
                if of_slot < rank && rank.0 > 0 {
                    (best, rank) = ((line, at), of_slot);
                }
            }
        }
        self.counters.allocations += 1;
        self.counters.failed_allocations += u64::from(rank.0 > 0);
        let slot = &mut self.lines[best.0].0[best.1];
        self.occupied += usize::from(slot.count() == 0);
        slot.tag = tag;
        let count = weight.min(MAX_COUNT);
        slot.set(count, time);
        count
    }

    /// Notes that the caller's window has changed.
    #[cold]
    fn pass(&mut self, window: u64) {
        let passed = window.saturating_sub(self.seen);
        self.seen = window;
        self.window = self.window.wrapping_add(passed);
        if passed >= SWEEP {
            self.lines.fill(Line::default());
            self.occupied = 0;
            return;
        }
        let slots = self.lines.len() * SLOTS_PER_LINE;
        for _ in 0..(passed * (slots as u64).div_ceil(SWEEP)).min(slots as u64) {
            let slot = &mut self.lines[self.hand / SLOTS_PER_LINE].0[self.hand % SLOTS_PER_LINE];
            let count = slot.swept_at(self.window);
            match count {
                Some(0) => {
                    self.occupied -= usize::from(slot.count() > 0);
                    *slot = Slot::default();
                }
                Some(count) => slot.set(count, self.window),
                None => {}
            }
            self.hand = (self.hand + 1) % slots;
        }
    }

    /// The tag of a key, and its lines.
    fn place(&self, key: LimitKey) -> (u64, [usize; 2]) {
        let [a, b, c, d] = self.salt;
        let table = fold(key.table as u64 ^ a, (key.table >> 64) as u64 ^ b);
        let tag = fold(key.token as u64 ^ c, table ^ d ^ key.kind as u64) & !1 | u64::from(key.kind.is_bytes());
        let place = fold(tag ^ b, c | 1);
        // The number of lines is a power of two.
        let mask = self.lines.len() - 1;
        (tag, [place as usize & mask, (place >> 32) as usize & mask])
    }

    /// The counters so far.
    pub fn counters(&self) -> LimiterCounters {
        self.counters
    }

    /// The share of the slots that are taken, at most.
    pub fn load_factor(&self) -> f64 {
        self.occupied as f64 / (self.lines.len() * SLOTS_PER_LINE) as f64
    }

    /// Bytes of the slots.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }
}

/// A hash of a partition and the kind of a limit.
pub(crate) fn hash(token: Token, kind: LimitKind) -> u32 {
    ((token.0 as u64 ^ kind as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// A folded 128-bit product.
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
