//! Leveled compaction. From level 1 on, the sstables of a level have the same size and do not
//! overlap. Each level holds `fan_out` (ten) times the bytes of the level before. If a level holds
//! more, one of its sstables goes to the next level, merged with the sstables that it overlaps
//! there. If it overlaps none, it moves unchanged.
//!
//! Flushes add sstables to level 0, which may overlap. While they are few and small, they are
//! merged with one another by size. Once they have the size of a level 1 sstable together, they go
//! to level 1. If there are many of them, merging them by size comes before all other levels.
//!
//! Sstables that overlap others of their level count as level 0. They were loaded from elsewhere,
//! or left by a crash during a replacement. A tablet runs one compaction at a time, which keeps
//! levels from overlapping.

use super::{Candidate, Pick, size_tiered};
use crate::compaction::options::Leveled;

/// An sstable with a larger fraction of droppable tombstones is rewritten on its way down instead
/// of moved.
const REWRITE_DROPPABLE: f64 = 0.1;
/// An sstable of up to this many times the target size is not split on its way down.
const MAX_MOVED: f64 = 1.5;
/// The last level. It has no size limit.
const LAST: usize = 8;
/// If level 0 has more sstables than this, they are merged with one another before anything else.
/// Also the most sstables that go to level 1 at once.
const MAX_LEVEL0: usize = 32;
/// A level is too large if it holds this much more than its capacity, so that rounding does not
/// start a merge.
const TOLERANCE: f64 = 1.001;

pub(super) fn pick(candidates: &[Candidate], options: &Leveled) -> Option<Pick> {
    if candidates.iter().any(|own| own.busy) {
        return None;
    }
    let levels = Levels::of(candidates);
    let first = &levels.0[0];
    if first.len() > MAX_LEVEL0
        && let Some(picked) = size_tiered::pick_among(candidates, first.clone(), &options.level0)
    {
        return Some(picked);
    }
    for level in (1..LAST).rev() {
        if levels.bytes(candidates, level) as f64 > options.capacity(level) * TOLERANCE
            && let Some(picked) = levels.pick_from(candidates, level, options)
        {
            return Some(picked);
        }
    }
    let bytes = levels.bytes(candidates, 0);
    if bytes < options.sstable_size {
        return size_tiered::pick_among(candidates, first.clone(), &options.level0);
    }
    if first.len() < options.level0.min_threshold && bytes < options.sstable_size * options.level0.min_threshold as u64
    {
        return None;
    }
    let mut inputs = first.clone();
    inputs.sort_by_key(|i| std::cmp::Reverse(candidates[*i].age));
    inputs.truncate(MAX_LEVEL0);
    inputs.extend(levels.overlapping(candidates, 1, &inputs));
    Some(Pick::new(inputs).at_level(1, options.sstable_size))
}

/// Merges everything into the first level that has room for it.
pub(super) fn pick_all(candidates: &[Candidate], inputs: Vec<usize>, options: &Leveled) -> Pick {
    let bytes: u64 = inputs.iter().map(|i| candidates[*i].size).sum();
    let level = (1..LAST).find(|level| bytes as f64 <= options.capacity(*level)).unwrap_or(LAST);
    Pick::new(inputs).at_level(level as u32, options.sstable_size)
}

/// The excess of each level must be merged with the overlapping sstables of the next level, level
/// by level.
pub(super) fn backlog(candidates: &[Candidate], options: &Leveled) -> f64 {
    let levels = Levels::of(candidates);
    let (mut total, mut moved) = (0.0, 0.0);
    for level in 0..LAST {
        let capacity = if level == 0 { options.sstable_size as f64 } else { options.capacity(level) };
        let excess = (levels.bytes(candidates, level) as f64 + moved - capacity).max(0.0);
        let next = levels.bytes(candidates, level + 1) as f64;
        let overlap = if level == 0 { next } else { next.min(excess * options.fan_out as f64) };
        if excess > 0.0 {
            total += excess + overlap;
        }
        moved = excess;
    }
    total
}

impl Leveled {
    /// The target size of a level from 1 on, in bytes.
    fn capacity(&self, level: usize) -> f64 {
        self.sstable_size as f64 * (self.fan_out as f64).powi(level as i32)
    }
}

/// Indexes of candidates by level. From level 1 on, sorted by token.
struct Levels(Vec<Vec<usize>>);

impl Levels {
    fn of(candidates: &[Candidate]) -> Levels {
        let mut levels = vec![Vec::new(); LAST + 1];
        for (i, own) in candidates.iter().enumerate() {
            levels[(own.level as usize).min(LAST)].push(i);
        }
        for level in 1..=LAST {
            let mut members = std::mem::take(&mut levels[level]);
            members.sort_by_key(|i| candidates[*i].span);
            for i in members {
                let overlaps =
                    levels[level].last().is_some_and(|last| candidates[*last].span.1 >= candidates[i].span.0);
                levels[if overlaps { 0 } else { level }].push(i);
            }
        }
        Levels(levels)
    }

    fn bytes(&self, candidates: &[Candidate], level: usize) -> u64 {
        self.0[level].iter().map(|i| candidates[*i].size).sum()
    }

    /// The sstables of a level that may hold keys of any of `inputs`.
    fn overlapping(&self, candidates: &[Candidate], level: usize, inputs: &[usize]) -> Vec<usize> {
        let first = inputs.iter().map(|i| candidates[*i].span.0).min().unwrap_or(i64::MAX);
        let last = inputs.iter().map(|i| candidates[*i].span.1).max().unwrap_or(i64::MIN);
        let touches = |i: &usize| candidates[*i].span.0 <= last && first <= candidates[*i].span.1;
        self.0[level].iter().copied().filter(touches).collect()
    }

    /// The sstable of a level that overlaps the fewest bytes of the next level, relative to its own
    /// size.
    fn pick_from(&self, candidates: &[Candidate], level: usize, options: &Leveled) -> Option<Pick> {
        let mut best: Option<(f64, usize, Vec<usize>)> = None;
        for i in &self.0[level] {
            let overlapped = self.overlapping(candidates, level + 1, &[*i]);
            let bytes: u64 = overlapped.iter().map(|i| candidates[*i].size).sum();
            let cost = bytes as f64 / candidates[*i].size.max(1) as f64;
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, *i, overlapped));
            }
        }
        let (_, own, mut inputs) = best?;
        let candidate = &candidates[own];
        if inputs.is_empty()
            && candidate.size as f64 <= options.sstable_size as f64 * MAX_MOVED
            && candidate.droppable <= REWRITE_DROPPABLE
        {
            return Some(Pick::move_of(own, level as u32 + 1));
        }
        inputs.push(own);
        Some(Pick::new(inputs).at_level(level as u32 + 1, options.sstable_size))
    }
}
