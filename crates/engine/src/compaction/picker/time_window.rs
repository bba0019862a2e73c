//! Time-window compaction: an sstable belongs to the window of its newest write. The newest window
//! is merged by size. An older window gets no more writes: its sstables are merged into one, which
//! stays until it has expired entirely.

use super::{Candidate, Pick, size_tiered};
use crate::compaction::options::TimeWindow;
use std::collections::BTreeMap;

pub(super) fn pick(candidates: &[Candidate], options: &TimeWindow) -> Option<Pick> {
    let mut newest = true;
    for (_, members) in windows(candidates, (0..candidates.len()).collect(), options).into_iter().rev() {
        if std::mem::take(&mut newest) {
            let free = members.into_iter().filter(|i| !candidates[*i].busy).collect();
            if let Some(picked) = size_tiered::pick_among(candidates, free, &options.newest) {
                return Some(picked);
            }
            continue;
        }
        // An sstable that is being merged would join the others later, so wait and merge them all
        // at once.
        if members.len() < 2 || members.iter().any(|i| candidates[*i].busy) {
            continue;
        }
        let mut smallest = members;
        smallest.sort_by_key(|i| candidates[*i].size);
        smallest.truncate(options.newest.max_threshold);
        return Some(Pick::new(smallest));
    }
    None
}

/// Merges each window separately.
pub(super) fn pick_all(candidates: &[Candidate], free: Vec<usize>, options: &TimeWindow) -> Vec<Pick> {
    windows(candidates, free, options).into_values().map(Pick::new).collect()
}

pub(super) fn backlog(candidates: &[Candidate], options: &TimeWindow) -> f64 {
    let windows = windows(candidates, (0..candidates.len()).collect(), options);
    let newest = windows.last_key_value().map(|(window, _)| *window);
    let bytes = |members: &[usize]| members.iter().map(|i| candidates[*i].size as f64).sum::<f64>();
    windows
        .iter()
        .map(|(window, members)| match members.len() {
            _ if Some(*window) == newest => {
                size_tiered::backlog(members.iter().map(|i| candidates[*i].size), &options.newest)
            }
            0 | 1 => 0.0,
            _ => bytes(members),
        })
        .sum()
}

/// Indexes of candidates by window, in order of time.
fn windows(candidates: &[Candidate], among: Vec<usize>, options: &TimeWindow) -> BTreeMap<i64, Vec<usize>> {
    let mut windows: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for i in among {
        windows.entry(candidates[i].newest.div_euclid(options.window)).or_default().push(i);
    }
    windows
}
